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

from rankcollapse.decomposition import Decomposition, Part, require_sum
from rankcollapse.measures import composite_norm, residual
from rankcollapse.sweep import SOURCES, lengths

MEASURED = ("norm", "residual", "share", "rank_one_distance")


def measure(found: Decomposition) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Measure the terms after every block, and what the last state loses without those of a length.

    Args:
        found: what is measured.

    Returns:
        Columns layer, length, norm, residual, share, rank_one_distance, paths; and columns length,
        cosine: of the states with and without it, all tokens of a sequence as one vector, mean
        over sequences.
    """
    rows: list[dict[str, Any]] = []
    cosines: list[Tensor] = []
    for part in found.parts():
        masks = found.masks(part.sequences)
        rows += list(_measured(part, masks))
        if part.layer == found.layers:
            cosines += _cosines_without(part, masks)
    means = pd.DataFrame(rows).groupby(["layer", "length"], as_index=False)[[*MEASURED]].mean()
    pairs = zip(means["layer"], means["length"], strict=True)
    paths = [comb(layer, length) * found.heads**length for layer, length in pairs]
    left_out = pd.DataFrame({"cosine": torch.stack(cosines).mean(0).tolist()})
    return means.assign(paths=paths), left_out.rename_axis("length").reset_index()


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


def _cosines_without(part: Part, masks: Tensor) -> Iterator[Tensor]:
    """Yield for each sequence the cosine of its state with and without each length, [K + 1]."""
    for index, mask in enumerate(masks):
        state, terms = part.state[index][mask].double(), part.terms[:, index][:, mask].double()
        without = (state - terms).flatten(1)
        yield torch.cosine_similarity(without, state.flatten().unsqueeze(0))


def by_source(found: Decomposition) -> pd.DataFrame:
    """Return which share of each length's residual in the last state starts where.

    Returns:
        Columns length, source, share: of the residual of X_k, mean over sequences; the shares of
        a length sum to 1.
    """
    rows = []
    for parts in zip(*(_last(found, source) for source in SOURCES), strict=True):
        whole = torch.stack([part.terms for part in parts]).sum(0)
        require_sum(whole, parts[0].state, found.layers)
        for index, mask in enumerate(found.masks(parts[0].sequences)):
            totals = [residual(total[mask]) for total in whole[:, index]]
            for source, part in zip(SOURCES, parts, strict=True):
                pairs = zip(part.terms[:, index], totals, strict=True)
                rows += [
                    (length, source, share(residual(term[mask]), total))
                    for length, (term, total) in enumerate(pairs)
                ]
    frame = pd.DataFrame(rows, columns=["length", "source", "share"])
    return frame.groupby(["length", "source"], as_index=False, sort=False)[["share"]].mean()


def _last(found: Decomposition, source: str) -> Iterator[Part]:
    return (part for part in found.parts(sources=[source]) if part.layer == found.layers)


def by_head(found: Decomposition) -> pd.DataFrame:
    """Return how much of each length's residual in the last state passes each head.

    A path of length k passes k heads: the shares of a length sum to k, biases aside. They are the
    gradient of <res X_k, r> / <r, r>, r the value of res X_k, by a factor at each head's output.

    Returns:
        Columns layer (the block, from 1), head, length, share: the signed projection of what
        passes the head on the residual of X_k, mean over sequences.

    Raises:
        ValueError: the terms do not sum to the model's own state, or this is called in
            `torch.inference_mode`, where there are no gradients.
    """
    if torch.is_inference_mode_enabled():
        raise ValueError("by_head needs gradients: call it outside of torch.inference_mode")
    shares = []  # of each batch [L, b, H, K + 1]
    for some, seen in found.traces():
        size = (found.layers, some.stop - some.start, found.heads)
        gains = torch.ones(size, dtype=seen.states.dtype, requires_grad=True)
        masks = found.masks(some)
        with torch.enable_grad():
            *_, terms = lengths(seen, mlp=found.mlp, sources=frozenset(SOURCES), gains=gains)
            require_sum(terms.detach(), seen.states[-1], found.layers)
            projections = [_projection(terms[length], masks) for length in range(len(terms))]
        gradients = [torch.autograd.grad(one, gains, retain_graph=True)[0] for one in projections]
        shares.append(torch.stack(gradients, dim=-1))
    means = torch.cat(shares, dim=1).double().mean(1)
    index = pd.MultiIndex.from_product(
        [range(size) for size in means.shape], names=["layer", "head", "length"]
    )
    frame = pd.DataFrame({"share": means.flatten().numpy()}, index=index).reset_index()
    return frame.assign(layer=frame["layer"] + 1)


def _projection(term: Tensor, masks: Tensor) -> Tensor:
    """Return the sum over sequences of <res X_k, r> / <r, r>, [] in float64, r held fixed."""
    total = torch.zeros((), dtype=torch.float64)
    for one, mask in zip(term, masks, strict=True):
        rest = one[mask].double() - one[mask].double().mean(0)
        fixed = rest.detach()
        square = (fixed * fixed).sum()
        total = total + (rest * fixed).sum() / torch.where(square > 0, square, 1.0)
    return total
