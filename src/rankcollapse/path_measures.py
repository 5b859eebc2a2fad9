"""What the terms of each path length are: tables of a decomposition, averaged over sequences.

`norm` and `residual` are composite norms, of the term and of the term less its column mean.
`share` is the signed projection of the term's residual on the state's: it sums to 1 over lengths.
`rank_one_distance` is the relative Frobenius distance to the nearest matrix of rank one, from the
eigenvalues of the Gram matrix: below about 1e-7 it is round-off. `paths` counts the paths from the
embedding. Padding never enters.

Shapes: K path lengths beside 0, B sequences, T tokens, D features.
"""

from collections.abc import Iterator
from math import comb
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from rankcollapse.decomposition import Decomposition, Part
from rankcollapse.measures import composite_norm, residual
from rankcollapse.sweep import SOURCES

MEASURED = ("norm", "residual", "share", "rank_one_distance")


def measure(found: Decomposition) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Measure the terms after every block, and what the last state loses without those of a length.

    Args:
        found: what is measured.

    Returns:
        Columns layer, length, norm, residual, share, rank_one_distance, paths; and columns length,
        cosine (of the states with and without it, all tokens of a sequence as one vector, mean
        over sequences), similarity_error: the root of the mean square by which the cosine of two
        sequences' mean tokens changes, over all pairs; empty for one sequence.
    """
    rows, losses = [], _Losses()
    for part in found.parts():
        masks = found.masks(part.sequences)
        rows += list(_measured(part, masks))
        if part.layer == found.layers:
            losses.add(part, masks)
    means = pd.DataFrame(rows).groupby(["layer", "length"], as_index=False)[[*MEASURED]].mean()
    pairs = zip(means["layer"], means["length"], strict=True)
    paths = [comb(layer, length) * found.heads**length for layer, length in pairs]
    return means.assign(paths=paths), losses.table()


def _measured(part: Part, masks: Tensor) -> Iterator[dict[str, Any]]:
    for index, mask in enumerate(masks):
        state = residual(part.state[index][mask])
        for length, term in enumerate(part.terms[:, index]):
            term = term[mask].double()
            rest = residual(term)
            yield {
                "layer": part.layer,
                "length": length,
                "norm": float(composite_norm(term)),
                "residual": float(composite_norm(rest)),
                "share": share(rest, state),
                "rank_one_distance": distance_to_rank_one(term),
            }


def share(part: Tensor, whole: Tensor) -> float:
    """Return <part, whole> / <whole, whole>; 0 where the whole is 0."""
    square = float((whole * whole).sum())
    return float((part * whole).sum()) / square if square else 0.0


def distance_to_rank_one(x: Tensor) -> float:
    """Return sqrt(1 - s_1^2 / sum s^2) of a matrix [T, D] with singular values s; 0 for zeros."""
    x = x / x.abs().max().clamp(min=torch.finfo(x.dtype).tiny)
    squares = torch.linalg.eigvalsh(x @ x.T if len(x) <= x.shape[1] else x.T @ x)
    total = float(squares.sum())
    return (max(0.0, 1 - float(squares[-1]) / total)) ** 0.5 if total > 0 else 0.0


class _Losses:
    """What the last state loses without the terms of a length, sequence by sequence."""

    def __init__(self) -> None:
        self._cosines: list[Tensor] = []
        self._pooled: list[Tensor] = []
        self._states: list[Tensor] = []

    def add(self, part: Part, masks: Tensor) -> None:
        """Take the sequences of a part."""
        for index, mask in enumerate(masks):
            state, terms = part.state[index][mask].double(), part.terms[:, index][:, mask].double()
            without = state - terms  # [K + 1, T, D]
            whole = state.flatten().unsqueeze(0)
            self._cosines.append(torch.cosine_similarity(without.flatten(1), whole))
            self._pooled.append(without.mean(1))
            self._states.append(state.mean(0))

    def table(self) -> pd.DataFrame:
        """Return the means over the sequences, and over their pairs."""
        pooled, states = torch.stack(self._pooled, 1), torch.stack(self._states)
        changes = _similarities(pooled) - _similarities(states)
        errors = changes.square().mean(-1).sqrt().tolist() if changes.shape[-1] else None
        return pd.DataFrame(
            {
                "length": range(len(pooled)),
                "cosine": torch.stack(self._cosines).mean(0).tolist(),
                "similarity_error": errors,
            }
        )


def _similarities(pooled: Tensor) -> Tensor:
    """Return the cosines of all pairs of rows, [..., B, D] -> [..., B (B - 1) / 2]."""
    unit = torch.nn.functional.normalize(pooled, dim=-1)
    first, second = torch.triu_indices(pooled.shape[-2], pooled.shape[-2], offset=1)
    similarities: Tensor = (unit[..., first, :] * unit[..., second, :]).sum(-1)
    return similarities


def by_source(found: Decomposition) -> pd.DataFrame:
    """Return which share of each length's residual in the last state starts where.

    Returns:
        Columns length, source, share: of the residual of X_k, mean over sequences; the shares of
        a length sum to 1.
    """
    whole = [part for part in found.parts() if part.layer == found.layers]
    rows = []
    for source in SOURCES:
        own = (part for part in found.parts(sources=[source]) if part.layer == found.layers)
        for all_of, of_source in zip(whole, own, strict=True):
            for index, mask in enumerate(found.masks(all_of.sequences)):
                pairs = zip(of_source.terms[:, index], all_of.terms[:, index], strict=True)
                rows += [
                    (length, source, share(residual(term[mask]), residual(total[mask])))
                    for length, (term, total) in enumerate(pairs)
                ]
    frame = pd.DataFrame(rows, columns=["length", "source", "share"])
    return frame.groupby(["length", "source"], as_index=False, sort=False)[["share"]].mean()


def by_head(found: Decomposition) -> pd.DataFrame:
    """Return how much of each length's residual in the last state passes each head.

    A path of length k passes k heads: the shares of a length sum to k, biases aside.

    Returns:
        Columns layer (the block, from 1), head, length, share: the signed projection of what
        passes the head on the residual of X_k, mean over sequences.
    """
    whole = torch.cat([part.terms for part in found.parts() if part.layer == found.layers], dim=1)
    masks = found.masks(slice(0, found.sequences))
    rows = []
    for layer in range(1, found.layers + 1):
        for head in range(found.heads):
            terms = found.through_heads({layer: head})
            for index, mask in enumerate(masks):
                pairs = zip(terms[:, index], whole[:, index], strict=True)
                rows += [
                    (layer, head, length, share(residual(term[mask]), residual(total[mask])))
                    for length, (term, total) in enumerate(pairs)
                ]
    frame = pd.DataFrame(rows, columns=["layer", "head", "length", "share"])
    return frame.groupby(["layer", "head", "length"], as_index=False)[["share"]].mean()
