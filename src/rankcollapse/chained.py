"""Chained attention: how close products of attention matrices along random paths come to rank one.

Shapes: L layers, B sequences, H heads, T tokens, N pairs of path and sequence, K the longest path.

A path of depth k passes k layers by one head each. Which layers: with the rule "any", each choice
of k among the L layers is as likely, as for the paths of the trained experiments; with "first",
layers 1 to k. A product `as-published` has the earliest layer on the left, `as-described` the
latest, as the tokens pass through it.

One pair of path and sequence is drawn for all depths: a head for every layer, and an order in which
layers join the path. So the pairs of one depth are independent and as likely as said above, while
depths share pairs, and with them parts of their products.

Source: Dong et al. 2021, reference notebook. Differs from the paper: seeded, float64, both orders.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float64
from numpy.typing import NDArray
from torch import Tensor

from rankcollapse.chained_measures import dobrushin, rank_one_distance
from rankcollapse.chained_tables import CHAINED_COLUMNS, LAYERS
from rankcollapse.errors import RankCollapseError
from rankcollapse.tasks import stream
from rankcollapse.vocabulary import READINGS, require_known

PAIRS = 2000
DRAW_SEED = 2021
ROW_SUM_TOLERANCE = 1e-5  # a float32 softmax is right to 1e-6

_BLOCK = 8  # pairs measured together: their products of one depth stay in the CPU's cache

Integers = NDArray[np.int64]


class ChainedError(RankCollapseError):
    """Attention that cannot be chained."""


class Walks(NamedTuple):
    """Random pairs of path and sequence; the path of depth k passes layers `order[:k]`, sorted."""

    sequence: Integers  # [N]
    heads: Integers  # [N, L]
    order: Integers  # [N, L], a permutation of the layers each


def draw_walks(
    *,
    layers: int,
    heads: int,
    sequences: int,
    pairs: int = PAIRS,
    rule: str = "any",
    seed: int = DRAW_SEED,
) -> Walks:
    """Draw pairs of path and sequence.

    The first of many pairs are those that few would be; models with as many heads and sequences
    share the sequences, and the heads of the layers that both have.

    Args:
        layers: L.
        heads: H.
        sequences: B.
        pairs: N.
        rule: "any" or "first", which layers a path passes.
        seed: of the draw.

    Raises:
        ValueError: a number is below 1, or the rule is unknown.
    """
    require_known("layers", rule, LAYERS)
    if min(layers, heads, sequences, pairs) < 1:
        raise ValueError(
            f"{layers} layers, {heads} heads, {sequences} sequences and {pairs} pairs: "
            "each must be at least 1"
        )
    sequence = stream(seed, "chained", "sequence").integers(sequences, size=pairs)
    streams = [stream(seed, "chained", "head", str(layer)) for layer in range(layers)]
    chosen = [generator.integers(heads, size=pairs) for generator in streams]
    order = np.tile(np.arange(layers), (pairs, 1))
    if rule == "any":
        order = stream(seed, "chained", "order").random((pairs, layers)).argsort(axis=1)
    return Walks(sequence, np.stack(chosen, axis=1), order)


def chained(
    attention: Tensor | Iterable[Tensor],
    *,
    checkpoint: str,
    weights: str,
    seed: int | None = None,
    sequences: int | None = None,
    depth: int | None = None,
    pairs: int = PAIRS,
    rule: str = "any",
) -> pd.DataFrame:
    """Measure the products of attention along random paths.

    Rows are scaled in float64 to sum to one: a deviation of 1e-7, as float32 leaves it, would else
    be the floor of the Dobrushin coefficient.

    Args:
        attention: probabilities [L, B, H, T, T], or parts of them [L, b, H, T, T] with the
            sequences in order, which are read one after the other.
        checkpoint: goes into the table.
        weights: "init" or "pretrained", goes into the table.
        seed: of the initialisation, goes into the table.
        sequences: B, where parts are given.
        depth: K; L if not given.
        pairs: N.
        rule: "any" or "first", which layers a path passes.

    Returns:
        `CHAINED_COLUMNS`, a row for each reading, depth and pair.

    Raises:
        ChainedError: there is one token, or a row is not a distribution.
        ValueError: a shape, a number or a name is wrong.
    """
    if isinstance(attention, Tensor):
        sequences = attention.shape[1] if attention.ndim > 1 else 0
        attention = [attention]
    if sequences is None:
        raise ValueError("parts of attention need `sequences=`, how many they hold in all")
    walks: Walks | None = None
    values: NDArray[np.float64] = np.empty(0)
    first = 0
    for part in attention:
        _check(part, first)
        if walks is None:
            layers, heads = part.shape[0], part.shape[2]
            values = np.empty((len(READINGS), _deepest(depth, layers), pairs, 2))
            walks = draw_walks(
                layers=layers, heads=heads, sequences=sequences, pairs=pairs, rule=rule
            )
        last = first + part.shape[1]
        here = np.flatnonzero((walks.sequence >= first) & (walks.sequence < last))
        for block in np.split(here, range(_BLOCK, len(here), _BLOCK)):
            paths = [_path(part, walks, pair, first) for pair in block.tolist()]
            values[:, :, block] = _measure(paths, walks.order[block], values.shape[1])
        first = last
    if walks is None or first != sequences:
        raise ValueError(f"the parts of attention hold {first} sequences, not {sequences}")
    names = {"checkpoint": checkpoint, "weights": weights, "seed": seed, "layers": rule}
    return _table(values, walks.sequence, names)


def _check(part: Tensor, first: int) -> None:
    """Refuse what is no attention; `first` is the number of its first sequence."""
    shape = tuple(part.shape)
    if part.ndim != 5 or shape[-2] != shape[-1] or 0 in shape:
        raise ValueError(f"attention has shape {shape}; expected [L, B, H, T, T]")
    if shape[-1] == 1:
        raise ChainedError("attention over one token is 1: give sequences of at least 2 tokens")
    sums = part.sum(-1, dtype=torch.float64)  # [L, b, H, T]; NaN stays NaN
    wrong = ~((sums - 1).abs() <= ROW_SUM_TOLERANCE) | (part.amin(-1) < 0)
    if wrong.any():
        place = tuple(wrong.nonzero()[0].tolist())
        layer, sequence, head, row = place
        raise ChainedError(
            f"attention of layer {layer + 1}, sequence {first + sequence}, head {head}: row {row} "
            f"is no distribution (sum {float(sums[place]):.6g}); give the "
            "probabilities after the softmax, of tokens that are not masked out"
        )


def _deepest(depth: int | None, layers: int) -> int:
    deepest = layers if depth is None else depth
    if not 1 <= deepest <= layers:
        raise ValueError(f"depth is {deepest}; a path passes 1 to {layers} layers of this model")
    return deepest


def _path(part: Tensor, walks: Walks, pair: int, first: int) -> Tensor:
    """Return the matrices of one pair, float64 [L, T, T]."""
    heads = torch.from_numpy(walks.heads[pair])
    chosen = part[torch.arange(len(heads)), int(walks.sequence[pair]) - first, heads]
    matrices = chosen.detach().to("cpu", torch.float64)
    return matrices / matrices.sum(-1, keepdim=True)


def _measure(paths: Sequence[Tensor], orders: Integers, depth: int) -> NDArray[np.float64]:
    """Return distance and Dobrushin coefficient, [reading, K, pair, 2]."""
    values = np.empty((len(READINGS), depth, len(paths), 2))
    for index, reading in enumerate(READINGS):
        joined = zip(paths, orders[:, :depth].tolist(), strict=True)
        chains = [products(path, order, reading=reading) for path, order in joined]
        for level, matrices in enumerate(zip(*chains, strict=True)):
            if level == 0 and index > 0:
                values[index, 0] = values[0, 0]  # one matrix has no order
                continue
            stacked = torch.stack(matrices)
            values[index, level, :, 0] = rank_one_distance(stacked)
            values[index, level, :, 1] = dobrushin(stacked)
    return values


def products(
    matrices: Float64[Tensor, "layer token token"], order: Sequence[int], *, reading: str
) -> Iterator[Float64[Tensor, "token token"]]:
    """Yield the products over the layers `order[:1]`, `order[:2]`, ... of one pair.

    Products over parts of the layers (halves, quarters, ...) are kept: one layer more changes few.

    Args:
        matrices: one for each layer, [L, T, T].
        order: of the layers that join the path, at most L, none twice.
        reading: "as-published" (earliest layer on the left) or "as-described" (latest).

    Raises:
        ValueError: the reading is unknown.
    """
    require_known("reading", reading, READINGS)
    known: dict[tuple[int, ...], Tensor] = {(n,): matrix for n, matrix in enumerate(matrices)}

    def product(passed: tuple[int, ...], low: int, high: int) -> Tensor:
        if passed not in known:
            middle = (low + high) // 2
            cut = bisect_left(passed, middle)
            if cut == 0:
                return product(passed, middle, high)
            if cut == len(passed):
                return product(passed, low, middle)
            early = product(passed[:cut], low, middle)
            late = product(passed[cut:], middle, high)
            known[passed] = early @ late if reading == "as-published" else late @ early
        return known[passed]

    for depth in range(1, len(order) + 1):
        yield product(tuple(sorted(order[:depth])), 0, len(matrices))


def _table(
    values: NDArray[np.float64], sequence: Integers, names: dict[str, str | int | None]
) -> pd.DataFrame:
    readings, depths, pairs = values.shape[:3]
    index = pd.MultiIndex.from_product(
        [READINGS[:readings], range(1, depths + 1), range(pairs)],
        names=["reading", "depth", "pair"],
    )
    frame = index.to_frame(index=False).assign(
        **names,
        sequence=sequence[index.get_level_values("pair")],
        distance=values[..., 0].ravel(),
        dobrushin=values[..., 1].ravel(),
    )
    return frame.astype({"seed": "Int64"})[CHAINED_COLUMNS]
