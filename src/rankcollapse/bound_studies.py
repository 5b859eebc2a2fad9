"""The bounds on models: a checkpoint's attention alone, and a network they were made for.

What is bounded is the residual of each attention sub-layer's output, before its LayerNorm. Every
bound applies one step from the layer's own measured input, but for a relative position term, which
leaves only Dobrushin's. From the first input alone, Dobrushin's goes through LayerNorms too: as the
largest 2-norm distance of two tokens, with how far each norm can stretch it where it was measured.

Shapes: L layers, B sequences, T tokens, D features, H heads.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pandas as pd
import torch
from torch import Tensor

from rankcollapse.architectures import model_type_of
from rankcollapse.architectures.parts import Parts
from rankcollapse.architectures.relative import TERMS
from rankcollapse.bound_chains import layer_norm_log10, lipschitz
from rankcollapse.bound_claims import CHAINED, Claim, closed, layer_by_layer, one_step, tables
from rankcollapse.bound_pieces import bound_pieces
from rankcollapse.bound_tables import DOBRUSHIN, PIECE_COLUMNS, PURE_SAN
from rankcollapse.bounds import LayerBounds, layer_bounds
from rankcollapse.errors import RankCollapseError
from rankcollapse.precision import precision_floor
from rankcollapse.progress import steps
from rankcollapse.subjects import Subject
from rankcollapse.sublayers import (
    States,
    attention_sums,
    contraction_log10,
    distance_log10,
    heads_of,
)
from rankcollapse.tasks import stream
from rankcollapse.theory import Head, measure_head, measure_state
from rankcollapse.trace import Frozen, gate_of, trace

# Of the pure network: weights N(0, 0.02^2) as BERT's, tokens N(0, 0.5^2). The residual after four
# layers, about 1e-215, still is a float64; that after five is not.
PURE_SEEDS = (0, 1, 2)
PURE_DEPTH, PURE_TOKENS, PURE_WIDTH, PURE_HEADS = 4, 16, 16, 2
PURE_STD, PURE_SCALE = 0.02, 0.5
_ROUND_OFF = 1e-11  # of the sum of the heads, relative to the attention's largest entry
_FLOOR = math.log10(precision_floor("float64"))


@dataclass(frozen=True)
class NormedLayer:
    """A layer that ends with a LayerNorm.

    Attributes:
        x: its input, [B, T, D].
        bounds: one step from its input.
        output: of the attention, before the norm, [B, T, D].
        contraction_log10: log10 sum_h tau_h |W_h|_2, [B].
        stretch_log10: log10 of how far what follows the attention can stretch the largest 2-norm
            distance of two tokens, [B].
    """

    x: Tensor
    bounds: LayerBounds
    output: Tensor
    contraction_log10: Tensor
    stretch_log10: Tensor


def bounds(of: Subject) -> dict[str, pd.DataFrame]:
    """Evaluate every bound on a checkpoint's attention alone, and of its other pieces.

    Args:
        of: a model in float64; its ids are read without padding.

    Returns:
        "bounds" (`bound_tables.BOUND_COLUMNS`; the bound is the form `tight`, the least of those
        without a condition), "bound_forms" (`FORM_COLUMNS`) and, of the variants that have more
        than attention, "bound_pieces" (`PIECE_COLUMNS`).

    Raises:
        BoundViolatedError: a proven bound is exceeded; never seen.
        RankCollapseError: the sum of the heads' outputs is not what the model's attention gives.
        ValueError: the model is not in float64, or its architecture is not known.

    Source: Dong et al. 2021, theorem 2.3.
    """
    if of.model.dtype != torch.float64:
        raise ValueError(f"the model is in {of.model.dtype}; load it in torch.float64")
    with torch.no_grad():
        layers = list(_normed_layers(of))
        ones = [layer.bounds for layer in layers]
        below = [one.state_residual_log10 < one.norm_log10 + _FLOOR for one in ones]
        claims = [*one_step(ones), *closed(ones, below, normed=True), *through_norms(layers)]
        pieces = bound_pieces(of)
        return tables(ones, claims, below, of.named) | {"bound_pieces": pieces}


def pure_san(*, seeds: Sequence[int] = PURE_SEEDS) -> dict[str, pd.DataFrame]:
    """Evaluate every bound on a small network of attention alone, of which the theorem says much.

    Its state is carried as a row and a rest, and no difference of nearly equal numbers is taken:
    the residual keeps its digits however small it is.

    Returns:
        As `bounds`, with `bound_tables.PURE_SAN` as checkpoint, and no pieces.

    Raises:
        BoundViolatedError: a proven bound is exceeded; never seen.
    """
    found = []
    for seed in seeds:
        layers = list(pure_layers(seed))
        exact = [torch.zeros(1, dtype=torch.bool)] * len(layers)
        claims = [*one_step(layers), *closed(layers, exact, normed=False), *layer_by_layer(layers)]
        named = {"checkpoint": PURE_SAN, "weights": "init", "seed": seed}
        found.append(tables(layers, claims, exact, named))
    whole = {name: pd.concat([one[name] for one in found], ignore_index=True) for name in found[0]}
    return whole | {"bound_pieces": pd.DataFrame(columns=PIECE_COLUMNS)}


def _normed_layers(of: Subject) -> Iterator[NormedLayer]:
    with attention_sums(of.model) as outputs:
        found = trace(of.model, {"input_ids": of.ids}, variant="san")
    relative = model_type_of(of.model) in TERMS
    slope = lipschitz(gate_of(of.model))
    names = [(f"layer {number}",) for number in range(1, len(outputs) + 1)]
    label = f"bounding {of.named['checkpoint']}"
    pieces = zip(found.states[:-1], found.parts, found.frozen, outputs, strict=True)
    for (name,), (x, part, frozen, output) in zip(steps(names, label), pieces, strict=True):
        heads = heads_of(part, frozen.attention if relative else None)
        require_same(x, heads, output, name)
        yield NormedLayer(
            x,
            layer_bounds(x, heads),
            output,
            contraction_log10(part, frozen.attention),
            _stretch_log10(part, frozen, slope),
        )


def _stretch_log10(part: Parts, frozen: Frozen, slope: float) -> Tensor:
    """Return log10 of how far what follows the attention can stretch a distance, [B].

    A LayerNorm, and where the ablation keeps a piece of the MLP (ALBERT as published), what
    y + act(y) can do to each feature, and a second LayerNorm.
    """
    stretch = layer_norm_log10(part.attention_norm.weight, frozen.scale)
    if frozen.mlp is None:
        return stretch
    second = layer_norm_log10(part.mlp_norm.weight, frozen.mlp.scale)
    return stretch + math.log10(1 + slope) + second


def require_same(x: States, heads: Sequence[Head], output: States, name: str) -> None:
    """Raise RankCollapseError unless heads give an attention's output, but for a constant row."""
    state = measure_state(x)
    apart = torch.stack([measure_head(state, head).output for head in heads]).sum(0) - output
    largest = (apart - apart.mean(-2, keepdim=True)).abs().amax().item()
    limit = _ROUND_OFF * output.abs().amax().item()
    if not largest <= limit:
        raise RankCollapseError(
            f"{name}: the heads' outputs differ from the attention's by {largest:.1e}, more than "
            f"the {limit:.1e} of round-off: the model is not what its architecture says"
        )


def through_norms(layers: Sequence[NormedLayer]) -> Iterator[Claim]:
    """Yield what Dobrushin's chain claims of the largest 2-norm distance of two tokens."""
    trivial = bound = distance_log10(layers[0].x)
    for number, layer in enumerate(layers, start=1):
        bound = bound + layer.contraction_log10
        measured = distance_log10(layer.output)
        floor = layer.output.norm(dim=-1).amax(-1).log10() + _FLOOR
        yield Claim(number, DOBRUSHIN, CHAINED, bound, measured, trivial, floor)
        bound = bound + layer.stretch_log10


def pure_layers(seed: int) -> Iterator[LayerBounds]:
    """Yield the layers of the pure network of a seed, with a batch of one."""
    random = stream(seed, PURE_SAN)

    def normal(*shape: int) -> Tensor:
        return torch.from_numpy(random.standard_normal(shape))

    rest = PURE_SCALE * normal(PURE_TOKENS, PURE_WIDTH)
    row = torch.zeros(PURE_WIDTH, dtype=torch.float64)
    for _ in range(PURE_DEPTH):
        mean = rest.mean(-2)
        rest, row = rest - mean, row + mean
        heads = [_pure_head(row, normal) for _ in range(PURE_HEADS)]
        yield layer_bounds(rest[None], heads)
        state = measure_state(rest)
        measured = [(measure_head(state, head), head.value_output) for head in heads]
        shared = [(row + one.log_reference.exp() @ rest) @ weight for one, weight in measured]
        rest = torch.stack([one.output for one, _ in measured]).sum(0)
        row = torch.stack(shared).sum(0)


def _pure_head(row: Tensor, normal: Callable[..., Tensor]) -> Head:
    """Draw a head for tokens less a row; what that adds to the queries keeps the scores."""
    width = PURE_WIDTH // PURE_HEADS
    query, key, value = (PURE_STD * normal(PURE_WIDTH, width) for _ in range(3))
    output = PURE_STD * normal(width, PURE_WIDTH)
    return Head(query, key, value @ output, query_bias=row @ query)
