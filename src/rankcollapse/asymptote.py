"""Where the rate of collapse tends: a small self-attention network in many digits.

One matrix of tokens goes through the same layer again and again,

    X <- sum_h softmax(X Q_h X^T / sqrt(D) + s B_h) X W_h,

without skip, MLP, LayerNorm or bias, until the ratio of composite norms lies below the limit (or
for 60 layers, where collapse is slow). In as many digits as that needs, the rate
log r_l / log r_{l-1} has no floor to stop at: without a relative term (s = 0) it tends to 3, with
one to 1.

With a term the factor r_l / r_{l-1} has a limit that follows from the weights. As the residual
vanishes, what content adds to the scores becomes constant along each row, and the attention tends
to P_h = softmax(s B_h): the residual is mapped by X -> sum_h P_h X W_h. The largest eigenvalue of
that map on differences of tokens, over that of sum_h W_h, is the limit (on average over layers,
where it is complex); with one head it is the second eigenvalue of P. Dobrushin's coefficient
tau(P) is never less than that eigenvalue.

Shapes: T tokens, D features, H heads. W_h is scaled so that the largest eigenvalue of sum_h W_h has
magnitude 1: the row that all tokens share then neither grows nor vanishes.
"""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import mpmath
import numpy as np
import pandas as pd
from jaxtyping import Float64

from rankcollapse.relative_tables import ASYMPTOTE_COLUMNS
from rankcollapse.tasks import stream

LIMIT = 180  # decades: some layers below 1e-60
TOKENS = FEATURES = 4
MOST_LAYERS = 60

Matrix = Any  # mpmath.matrix, which carries no types
Weights = Float64[np.ndarray, "head row column"]


class Network(NamedTuple):
    """The weights of the layer that is applied again and again.

    Attributes:
        x: tokens [T, D].
        scores: Q_h = W_Q W_K^T, [H, D, D].
        values: W_h = W_V W_O, [H, D, D].
        term: s B_h, [H, T, T], a function of the offset j - i alone.
    """

    x: Float64[np.ndarray, "token feature"]
    scores: Weights
    values: Weights
    term: Weights


def draw_network(*, heads: int, scale: float, seed: int) -> Network:
    """Draw a network of 4 tokens and 4 features; all scales of a seed share their other numbers.

    Args:
        heads: H, at least 1.
        scale: s of the relative term, from 0; B itself is standard normal for each offset.
        seed: of `tasks.stream`.

    Raises:
        ValueError: there is no head, or the scale is negative or not finite.
    """
    if heads < 1 or not 0 <= scale < math.inf:
        raise ValueError(f"heads is {heads}, scale {scale}: expected heads >= 1, 0 <= scale < inf")
    random = stream(seed, "asymptote", str(heads))
    x = random.standard_normal((TOKENS, FEATURES))
    shape = (heads, FEATURES, FEATURES)
    scores = random.standard_normal(shape) / FEATURES
    values = random.standard_normal(shape)
    values /= np.abs(np.linalg.eigvals(values.sum(0))).max()
    offsets = random.standard_normal((heads, 2 * TOKENS - 1))
    rows, columns = np.indices((TOKENS, TOKENS))
    return Network(x, scores, values, scale * offsets[:, columns - rows + TOKENS - 1])


def asymptote(*, heads: int, scale: float = 0.0, seed: int = 0, limit: int = LIMIT) -> pd.DataFrame:
    """Follow one network until its ratio lies below 10^-limit, or for 60 layers.

    Args:
        heads: H.
        scale: of the relative term; 0 for none.
        seed: of the weights.
        limit: how many decades the ratio shall fall, at least 1.

    Returns:
        The columns of `ASYMPTOTE_COLUMNS`, one row a layer from 0, the input: log10 of the ratio;
        rate (empty where r_{l-1} is 1/2 or more); factor r_l / r_{l-1}; without a term the bound of
        the ratio from the layer before it, in log10: not the paper's but ours, the form `ours` of
        rankcollapse.bounds with sqrt(2 exp D) for its min(gamma, sqrt(2 exp D)); with one, tau of
        softmax(term), the mean over the heads weighted by |W_h|_inf, and the limit of the factor.

    Raises:
        ValueError: the limit is below 1, or an argument is not one that `draw_network` takes.
    """
    if limit < 1:
        raise ValueError(f"limit is {limit}: expected at least 1 decade")
    network = draw_network(heads=heads, scale=scale, seed=seed)
    # A cubic step from just above the limit ends at three times as many decades.
    with mpmath.workdps(3 * limit + 40):
        layers = list(_follow(network, limit))
    logs = [float(log) for log, _ in layers]
    frame = pd.DataFrame({"layer": range(len(logs)), "log10_ratio": logs})
    before = frame["log10_ratio"].shift()
    frame["rate"] = (frame["log10_ratio"] / before).where(before < math.log10(0.5))
    frame["factor"] = 10.0 ** (frame["log10_ratio"] - before)
    frame["bound_log10"] = [bound for _, bound in layers] if scale == 0 else np.nan
    frame["tau"] = _weighted_tau(network) if scale > 0 else np.nan
    frame["limit"] = factor_limit(network) if scale > 0 else np.nan
    return frame.assign(heads=heads, scale=scale, seed=seed)[ASYMPTOTE_COLUMNS]


def _follow(network: Network, limit: int) -> Iterator[tuple[Any, float]]:
    """Yield log10 of the ratio and of its bound from the layer before, layer by layer."""
    x = mpmath.matrix(network.x.tolist())
    scores, values, terms = (
        [mpmath.matrix(one.tolist()) for one in stack] for stack in network[1:]
    )
    bound = mpmath.nan
    for _ in range(MOST_LAYERS + 1):
        size = _composite(x)
        ratio = mpmath.log10(_composite(_residual(x)) / size)
        yield ratio, float(mpmath.log10(bound / size))
        if ratio < -limit:
            break
        exponents = [x * one * x.T / mpmath.sqrt(FEATURES) for one in scores]
        bound = _bound(x, scores, values)
        products = [
            _softmax(exponent + term) * x * value
            for exponent, term, value in zip(exponents, terms, values, strict=True)
        ]
        x = sum(products[1:], products[0])


def _bound(x: Matrix, scores: list[Matrix], values: list[Matrix]) -> Any:  # noqa: ANN401
    """Bound the composite norm of the next residual, its centre being the mean, by the form `ours`.

    With R the residual and D the largest oscillation of a row of R Q R^T / sqrt(D), each head adds
    2 exp(D) q |R|^2 |R|_1 |W|_1 to the largest column sum and q |R|^2 |R|_inf |W|_inf to the
    largest row sum, q = |Q|_1 / sqrt(D); the mean as centre costs at most 2 (1 - 1/T). Nothing
    here holds with a relative term.
    """
    rest = _residual(x)
    columns = rows = mpmath.mpf(0)
    for score, value in zip(scores, values, strict=True):
        exponent = rest * score * rest.T / mpmath.sqrt(FEATURES)
        widths = [max(row) - min(row) for row in exponent.tolist()]
        size = mpmath.mnorm(score, 1) / mpmath.sqrt(FEATURES)
        columns += 2 * mpmath.exp(max(widths)) * size * mpmath.mnorm(value, 1)
        rows += size * mpmath.mnorm(value, mpmath.inf)
    return 2 * (1 - mpmath.mpf(1) / TOKENS) * mpmath.sqrt(columns * rows) * _composite(rest) ** 3


def _softmax(exponents: Matrix) -> Matrix:
    rows = []
    for row in exponents.tolist():
        weights = [mpmath.exp(value - max(row)) for value in row]
        rows.append([weight / mpmath.fsum(weights) for weight in weights])
    return mpmath.matrix(rows)


def _residual(x: Matrix) -> Matrix:
    means = [mpmath.fsum(x[:, j]) / x.rows for j in range(x.cols)]
    return mpmath.matrix([[x[i, j] - means[j] for j in range(x.cols)] for i in range(x.rows)])


def _composite(x: Matrix) -> Any:  # noqa: ANN401
    return mpmath.sqrt(mpmath.mnorm(x, 1) * mpmath.mnorm(x, mpmath.inf))


def _attention(network: Network) -> Weights:
    """Return softmax of the term alone, [H, T, T]."""
    weights = np.exp(network.term)
    attention: Weights = weights / weights.sum(-1, keepdims=True)
    return attention


def _weighted_tau(network: Network) -> float:
    attention = _attention(network)
    differences = np.abs(attention[:, :, None] - attention[:, None]).sum(-1)  # [H, T, T]
    weights = np.abs(network.values).sum(-1).max(-1)  # |W_h|_inf
    return float(np.average(differences.max((1, 2)) / 2, weights=weights))


def factor_limit(network: Network) -> float:
    """Return what r_l / r_{l-1} tends to with a relative term.

    The residual of T tokens is followed by their T - 1 differences to the first: a row that all
    tokens share has none.
    """
    differences = np.eye(TOKENS)[1:] - np.eye(TOKENS)[0]  # [T - 1, T]
    back = np.eye(TOKENS)[:, 1:]
    layer = sum(
        np.kron(differences @ one @ back, value.T)
        for one, value in zip(_attention(network), network.values, strict=True)
    )
    shared = np.abs(np.linalg.eigvals(network.values.sum(0))).max()
    return float(np.abs(np.linalg.eigvals(layer)).max() / shared)
