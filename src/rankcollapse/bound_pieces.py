"""What is proven of the pieces beside attention, on a model's own states: skips, norms, MLPs.

A skip and a LayerNorm are judged by the largest 2-norm distance of two tokens, after over before:
a skip X + SA(X) leaves between 1 - c and 1 + c of it with c = sum_h tau_h |W_h|_2, so that it
provably keeps something only where c < 1; of a LayerNorm there is a limit above alone. An MLP is
judged by the composite norm of the residual, before around the mean token y, after around the row
that it makes of y.

Shapes: L blocks, B sequences, T tokens, D features.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pandas as pd
import torch
from torch import Tensor

from rankcollapse.architectures.parts import Parts
from rankcollapse.bound_chains import (
    Verdict,
    layer_norm_log10,
    lipschitz,
    mlp_log10,
    skip_log10,
    verdict,
)
from rankcollapse.bound_claims import BoundViolatedError
from rankcollapse.bound_tables import LEAST, MOST, PIECE_COLUMNS, pieces_over_sequences
from rankcollapse.precision import precision_floor
from rankcollapse.progress import steps
from rankcollapse.subjects import Subject
from rankcollapse.sublayers import attention_sums, contraction_log10, distance_log10
from rankcollapse.theory import composite_log10
from rankcollapse.trace import gate_of, trace

Gate = Callable[[Tensor], Tensor]
VARIANTS = ("san_skip", "transformer")
_FLOOR = math.log10(precision_floor("float64"))


class Change(NamedTuple):
    """What one piece does to a measure of the tokens' differences, and its limits; log10, [B].

    Attributes:
        piece: of `bound_tables.PIECES`.
        before: the measure.
        after: the measure.
        limits: of after over before, by side, of `bound_tables.SIDES`.
        sizes: largest norm of a token, or the composite norm of all: before and after.
    """

    piece: str
    before: Tensor
    after: Tensor
    limits: dict[str, Tensor]
    sizes: tuple[Tensor, Tensor]


def bound_pieces(of: Subject) -> pd.DataFrame:
    """Hold what is proven of skips, LayerNorms and MLPs against a model's states.

    Args:
        of: a model in float64; its ids are read without padding.

    Returns:
        `bound_tables.PIECE_COLUMNS`.

    Raises:
        BoundViolatedError: a proven bound is exceeded; never seen.
        ValueError: the model is not in float64, or its architecture or activation is not known.
    """
    if of.model.dtype != torch.float64:
        raise ValueError(f"the model is in {of.model.dtype}; load it in torch.float64")
    tables = []
    label = f"bounding the pieces of {of.named['checkpoint']}"
    for (variant,) in steps([(variant,) for variant in VARIANTS], label):
        rows = [
            (layer, change.piece, side, *values)
            for layer, change in _changes(of, variant)
            for side in change.limits
            for values in _judged(variant, layer, change, side)
        ]
        columns = [name for name in PIECE_COLUMNS if name not in {"variant", *of.named}]
        table = pieces_over_sequences(pd.DataFrame(rows, columns=columns))
        tables.append(table.assign(variant=variant))
    return pd.concat(tables, ignore_index=True).assign(**of.named)[PIECE_COLUMNS]


@torch.no_grad()
def _changes(of: Subject, variant: str) -> Iterator[tuple[int, Change]]:
    with attention_sums(of.model) as sums:
        found = trace(of.model, {"input_ids": of.ids}, variant=variant)
    gate, factors = gate_of(of.model), dict[int, Tensor]()
    slope = lipschitz(gate)
    blocks = zip(found.states[:-1], found.parts, found.frozen, sums, found.states[1:], strict=True)
    for layer, (x, part, frozen, added, after) in enumerate(blocks, start=1):
        least, most = skip_log10(contraction_log10(part, frozen.attention))
        yield layer, _distances("skip", x, added, {LEAST: least, MOST: most})
        normed = part.attention_norm(added)
        limit = layer_norm_log10(part.attention_norm.weight, frozen.scale)
        yield layer, _distances("attention norm", added, normed, {MOST: limit})
        if frozen.mlp is None or not found.structure.maps:
            continue
        if id(part) not in factors:  # ALBERT has one block
            maps = (part.inner.weight.mT, part.outer.weight.mT)
            factors[id(part)] = x.new_tensor(mlp_log10(*maps, slope=slope))
        yield layer, _mlp(part, frozen.mlp.output, normed, gate, factors[id(part)])
        limit = layer_norm_log10(part.mlp_norm.weight, frozen.mlp.scale)
        yield layer, _distances("mlp norm", normed + frozen.mlp.output, after, {MOST: limit})


def _distances(piece: str, before: Tensor, after: Tensor, limits: dict[str, Tensor]) -> Change:
    sizes = tuple(x.norm(dim=-1).amax(-1).log10() for x in (before, after))
    return Change(piece, distance_log10(before), distance_log10(after), limits, sizes)


def _mlp(part: Parts, output: Tensor, y: Tensor, gate: Gate, limit: Tensor) -> Change:
    row = y.mean(-2, keepdim=True)
    inner = part.inner(row)
    rest = output - part.outer(inner * gate(inner))
    before, after = composite_log10(y - row), composite_log10(rest)
    sizes = (composite_log10(y), composite_log10(output))
    return Change("mlp", before, after, {MOST: limit.expand_as(before)}, sizes)


def _judged(variant: str, layer: int, change: Change, side: str) -> Iterator[tuple[Any, ...]]:
    """Yield measured, bound, margin and verdict of each sequence."""
    columns = (change.before, change.after, change.limits[side], *change.sizes)
    for before, after, bound, size, size_after in zip(*map(Tensor.tolist, columns), strict=True):
        if before <= size + _FLOOR:  # one token, or tokens that differ by round-off
            yield math.nan, bound, math.nan, "below floor"
            continue
        said = judge(side, after - before, bound, floor_log10=size_after + _FLOOR - before)
        if said.name == "violated":
            raise BoundViolatedError(
                f"{variant}, layer {layer}: the {change.piece} changes by 10^{after - before:.9g} "
                f"what it can change by 10^{bound:.9g} at {side}: report it, for a proven bound is "
                "never exceeded"
            )
        yield after - before, bound, said.margin, said.name


def judge(side: str, measured_log10: float, bound_log10: float, *, floor_log10: float) -> Verdict:
    """Say what a limit says of a ratio.

    Args:
        side: of `bound_tables.SIDES`.
        measured_log10: log10 of the ratio.
        bound_log10: log10 of its limit; -inf for one below says nothing.
        floor_log10: log10 of what round-off may add to the ratio.

    Returns:
        `holds`, with its margin in decades, `vacuous`, `below floor` or `violated`.
    """
    if side == MOST:
        return verdict(measured_log10, bound_log10, trivial_log10=math.inf, floor_log10=floor_log10)
    if bound_log10 == -math.inf:
        return Verdict("vacuous", math.nan)
    return verdict(bound_log10, measured_log10, trivial_log10=math.inf, floor_log10=floor_log10)
