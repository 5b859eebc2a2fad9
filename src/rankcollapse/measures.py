"""Measures of rank collapse, in float64 whatever the precision of the states.

Shapes: L layers, B sequences, T tokens, D features. A residual is what is left of a sequence's
token matrix X [T, D] when one row, the centre, is taken from every token; a matrix without
residual has rank one. The centre is the column mean unless a name says otherwise.
"""

from collections.abc import Callable

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor

Matrices = Float[Tensor, "*batch token feature"]
Values = Float64[Tensor, "*batch"]
TINY = torch.finfo(torch.float64).tiny


def composite_norm(x: Matrices) -> Values:
    """Return sqrt(||x||_1 ||x||_inf) of each matrix.

    Not a norm: the triangle inequality fails, so a ratio of two may exceed 1.

    Args:
        x: matrices [*batch, T, D], of any floating dtype.

    Returns:
        The root of largest column sum times largest row sum of magnitudes, float64 [*batch].

    Source: Dong et al. 2021, section 2.
    """
    magnitude = x.double().abs()
    columns = magnitude.sum(-2).amax(-1)  # [*batch]
    rows = magnitude.sum(-1).amax(-1)  # [*batch]
    return (columns * rows).sqrt()


def residual_ratio(
    states: Float[Tensor, "state batch token feature"],
    *,
    mask: Bool[Tensor, "batch token"] | Int[Tensor, "batch token"] | None = None,
) -> Float64[Tensor, "state batch"]:
    """Return ||res(X)|| / ||X|| in the composite norm, with the column mean as centre.

    This is what figure 2 shows. A matrix of zeros has ratio 0; NaN gives NaN.

    Args:
        states: hidden states [L + 1, B, T, D].
        mask: which tokens are real, [B, T], 0 or False for padding; all of them if not given.

    Returns:
        The ratio of each state of each sequence, float64 [L + 1, B].

    Raises:
        ValueError: the mask has another shape, or leaves a sequence without tokens.

    Source: Dong et al. 2021, section 2 and figure 2. Differs from the paper: its text takes the
    centre that minimises the norm, its figures the mean; `minimiser_bracket` says how much
    that is.
    """
    return by_sequence(_state_ratios, states, mask)


def by_sequence(
    measure: Callable[[Tensor], Tensor], states: Tensor, mask: Tensor | None
) -> Float64[Tensor, "state batch"]:
    """Apply a measure of [L + 1, B, T, D] to the real tokens alone.

    Raises:
        ValueError: the mask has another shape, or leaves a sequence without tokens.
    """
    if mask is None:
        return measure(states)
    if mask.shape != states.shape[1:3]:
        raise ValueError(f"mask is {tuple(mask.shape)}, expected {tuple(states.shape[1:3])}")
    real = mask.bool()
    if not real.any(1).all():
        raise ValueError("mask leaves a sequence without tokens")
    return torch.cat([measure(states[:, [b]][:, :, real[b]]) for b in range(len(real))], dim=1)


def _state_ratios(states: Tensor) -> Tensor:
    return torch.stack([in_cache(composite_ratio, x) for x in states])


def in_cache(measure: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Apply a measure to two matrices at a time: their float64 copies stay in the CPU's cache.

    Args:
        measure: from matrices [2, T, D] to values [..., 2].
        x: matrices [B, T, D].

    Returns:
        The values [..., B].
    """
    return torch.cat([measure(pair) for pair in torch.split(x, 2)], dim=-1)


def composite_ratio(x: Matrices) -> Values:
    """Return the composite norm of the residual over that of the matrix, [*batch]."""
    x = x.double()
    return _over(composite_norm(residual(x)), composite_norm(x))


def residual(x: Matrices) -> Float64[Tensor, "*batch token feature"]:
    """Return each matrix less its column mean, float64 [*batch, T, D]."""
    x = x.double()
    return torch.sub(x, x.mean(-2, keepdim=True))


def minimiser_bracket(x: Matrices) -> tuple[Values, Values]:
    """Return proven bounds of the ratio whose centre minimises the composite norm.

    The minimiser has no closed form. Column medians minimise ||.||_1, and ||.||_inf of any
    residual is at least half the distance of two tokens; so the root of the product is a lower
    bound. The better of mean and median is an upper bound.

    Args:
        x: matrices [*batch, T, D].

    Returns:
        Lower and upper bound of the ratio, float64 [*batch] each.
    """
    from_median = x.double() - _median(x)
    x = x.double()
    columns = from_median.abs().sum(-2).amax(-1)
    norm = composite_norm(x)
    low = (columns * _far_distance(x) / 2).sqrt()
    high = torch.minimum(composite_norm(residual(x)), composite_norm(from_median))
    low = torch.minimum(low, high)  # Equal for two tokens, but for rounding.
    return _over(low, norm), _over(high, norm)


def _median(x: Tensor) -> Tensor:
    """Return the lower median of each column, float64 [*batch, 1, D].

    By numpy, which finds it in a fifth of the time that torch needs on a CPU.
    """
    columns = x.detach().mT.to("cpu", torch.promote_types(x.dtype, torch.float32)).contiguous()
    middle = (x.shape[-2] - 1) // 2
    median = np.partition(columns.numpy(), middle, axis=-1)[..., middle]  # [*batch, D]
    row: Tensor = torch.from_numpy(median)[..., None, :]
    return row.to(x.device, torch.double)


def _far_distance(x: Tensor) -> Tensor:
    """Return the 1-norm distance of a far pair of rows, found in two sweeps, [*batch]."""
    first = (x - x[..., :1, :]).abs().sum(-1).argmax(-1)  # [*batch]
    index = first[..., None, None].expand(*first.shape, 1, x.shape[-1])
    return (x - x.gather(-2, index)).abs().sum(-1).amax(-1)


def frobenius_ratio(x: Matrices) -> Values:
    """Return the Frobenius norm of the residual over that of the matrix; the mean minimises it."""
    return _over(torch.linalg.matrix_norm(residual(x)), torch.linalg.matrix_norm(x.double()))


def mean_cosine(x: Matrices) -> Values:
    """Return the mean cosine of all pairs of different tokens, [*batch].

    A token of zeros has cosine 0 with all others. With one token there is no pair: NaN.
    """
    tokens = x.shape[-2]
    unit = torch.nn.functional.normalize(x.double(), dim=-1, eps=TINY)
    total = unit.sum(-2).square().sum(-1) - unit.square().sum((-1, -2))
    pairs = tokens * (tokens - 1) or torch.nan
    mean: Tensor = total / pairs
    return mean


def singular_values(x: Matrices) -> Float64[Tensor, "*batch rank"]:
    """Return the singular values of each matrix, descending, float64 [*batch, min(T, D)]."""
    values: Tensor = torch.linalg.svdvals(x.double())
    return values


def effective_rank(spectrum: Float64[Tensor, "*batch rank"]) -> Values:
    """Return exp of the entropy of the singular values' shares; 0 for a matrix of zeros.

    Source: Roy and Vetterli 2007, "The effective rank".
    """
    share = _over(spectrum, spectrum.sum(-1, keepdim=True))
    rank = torch.exp(torch.special.entr(share).sum(-1))
    return torch.where(spectrum[..., 0] > 0, rank, 0.0)


def stable_rank(spectrum: Float64[Tensor, "*batch rank"]) -> Values:
    """Return ||X||_F^2 / ||X||_2^2 from the singular values; 0 for a matrix of zeros."""
    return _over(spectrum.square().sum(-1), spectrum[..., 0].square())


def numerical_rank(spectrum: Float64[Tensor, "*batch rank"], *, tolerance: float) -> Values:
    """Return how many singular values exceed `tolerance` times the largest."""
    return torch.count_nonzero(spectrum > tolerance * spectrum[..., :1], dim=-1).double()


def participation_ratio(centred: Float64[Tensor, "*batch rank"]) -> Values:
    """Return (sum v)^2 / sum v^2 of the tokens' variances v along their principal axes.

    Args:
        centred: singular values of the residual, [*batch, rank].

    Returns:
        Between 1 (tokens on a line) and the rank; 0 where all tokens are the same.
    """
    variance = centred.square()
    return _over(variance.sum(-1).square(), variance.square().sum(-1))


def rate(ratios: Float64[Tensor, "state batch"]) -> Float64[Tensor, "state batch"]:
    """Return log r_l / log r_{l-1} of successive ratios: about 3 is cubic, 1 exponential.

    Args:
        ratios: composite ratios, [L + 1, B].

    Returns:
        The rate at each layer, [L + 1, B]; NaN at layer 0, where r_{l-1} is at least 1/2 (nothing
        has collapsed yet, and the constants in front outweigh the exponent), and where a ratio
        is 0 or not finite.
    """
    logs = ratios.log()
    rates = torch.full_like(ratios, torch.nan)
    defined = (ratios[:-1] < 0.5) & logs[1:].isfinite() & logs[:-1].isfinite()
    rates[1:] = torch.where(defined, logs[1:] / logs[:-1], torch.nan)
    return rates


def _over(part: Tensor, whole: Tensor) -> Tensor:
    """Return part / whole, and 0 where the whole is 0."""
    return torch.where(whole == 0, 0.0, part / whole)
