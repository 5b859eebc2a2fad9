"""The statistics behind the verdicts.

Where one more measurement falls, if all is right: the rule that these intervals serve is stated in
`rankcollapse.verdicts`. Shapes: S seeds. A leading axis of layers or draws is allowed everywhere.

What a share, a difference of two and a mean may be: the rule is stated in `rankcollapse.claims`.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri, stdtrit

from rankcollapse.published import TEXTS

ERROR_RATE = 0.05  # of right points
DRAWS = 4000
MINIMUM_SEEDS = 2  # below which no interval of a mean is given

_SEED = 2021

Array = NDArray[np.float64]


class Interval(NamedTuple):
    """Where a published mean may lie: centre -+ reach x error, logarithms at initialisation."""

    centre: Array
    error: Array  # one standard error of the difference
    reach: Array  # the quantile t

    def distance(self, value: float) -> float:
        """Return how many standard errors a value lies from the centre; infinite without spread."""
        offset = abs(float(value - self.centre))
        return offset / float(self.error) if self.error > 0 else np.inf


class Seeds(NamedTuple):
    """Our seeds at one layer, or at several (leading axes)."""

    log_means: Array  # [*layer, S]
    text_variance: Array  # [*layer]: squared relative deviation of one text
    texts: Array  # [*layer]


def prediction(seeds: Seeds) -> Interval:
    """Return where one more draw, judged on other texts, falls with probability 0.95.

    Args:
        seeds: at least 2 seeds and 2 texts, at any number of layers.

    Returns:
        The interval of each layer, on the log scale.
    """
    count = seeds.log_means.shape[-1]
    from_seeds = seeds.log_means.var(axis=-1, ddof=1) * (1 + 1 / count)
    from_texts = seeds.text_variance * (1 / seeds.texts + 1 / TEXTS)
    centre = seeds.log_means.mean(axis=-1)
    return _interval(centre, (from_seeds, from_texts), (count - 1, seeds.texts - 1))


def two_means(ours: tuple[float, float, float], published_std: float) -> Interval:
    """Return where the published mean over 32 texts falls, given the same weights (Welch).

    Args:
        ours: mean, standard deviation over the texts, and number of texts.
        published_std: the standard deviation over 32 texts.

    Returns:
        The interval of ratios around our mean.
    """
    mean, std, texts = ours
    variances = np.asarray(std**2 / texts), np.asarray(published_std**2 / TEXTS)
    return _interval(np.asarray(mean), variances, (texts - 1, TEXTS - 1))


def outside_by_chance(seeds: Seeds) -> NDArray[np.int64]:
    """Draw right curves and return how many points of each the interval would leave outside.

    The spread over seeds and its correlation between layers are those of the seeds given; the
    errors from the choice of texts have the same correlation.

    Args:
        seeds: the layers that are compared.

    Returns:
        One count for each of `DRAWS` draws; the same seeds give the same counts.
    """
    count = seeds.log_means.shape[-1]
    deviations = seeds.log_means - seeds.log_means.mean(axis=-1, keepdims=True)  # [layer, S]
    norms = np.linalg.norm(deviations, axis=-1, keepdims=True)
    # A layer without spread over seeds has no correlation; this vector is orthogonal to the others.
    flat = np.full_like(deviations, count**-0.5)
    directions = np.divide(deviations, norms, out=flat, where=norms > 0)
    normal = np.random.default_rng(_SEED).standard_normal((DRAWS, count + 3, count))
    errors = np.moveaxis(normal @ directions.T, 1, -1)  # [draw, layer, S + 3]: variance 1
    spread = norms / np.sqrt(count - 1)
    draws = spread * errors[..., : count + 1]
    text = np.sqrt(seeds.text_variance)
    ours = draws[..., :count] + (text / np.sqrt(seeds.texts) * errors[..., -2])[..., None]
    theirs = draws[..., count] + text / np.sqrt(TEXTS) * errors[..., -1]
    interval = prediction(seeds._replace(log_means=ours))
    outside = np.abs(theirs - interval.centre) > interval.reach * interval.error
    counts: NDArray[np.int64] = outside.sum(axis=-1)
    return counts


def share_interval(count: ArrayLike, runs: int) -> tuple[Array, Array]:
    """Return the ends of Wilson's 95 % interval of a share.

    Args:
        count: how many of the runs have the property, any shape.
        runs: at least 1.
    """
    z = ndtri(1 - ERROR_RATE / 2)
    share = np.asarray(count, dtype=float) / runs
    centre = (share + z**2 / (2 * runs)) / (1 + z**2 / runs)
    half = z / (1 + z**2 / runs) * np.sqrt(share * (1 - share) / runs + z**2 / (4 * runs**2))
    return centre - half, centre + half


def difference_interval(
    first: tuple[int, int], second: tuple[int, int]
) -> tuple[float, float, float]:
    """Return the difference of two independent shares and the ends of its 95 % interval.

    Args:
        first: how many of how many runs.
        second: the same of the runs whose share is taken off.

    Source: Newcombe 1998, method 10.
    """
    (low, high), (other_low, other_high) = share_interval(*first), share_interval(*second)
    share, other = first[0] / first[1], second[0] / second[1]
    below = float(np.hypot(share - low, other_high - other))
    above = float(np.hypot(high - share, other - other_low))
    return share - other, share - other - below, share - other + above


def mean_interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the ends of Student's 95 % interval of a mean, from at least 2 values."""
    count = len(values)
    half = (
        float(stdtrit(count - 1, 1 - ERROR_RATE / 2))
        * float(np.std(values, ddof=1))
        / np.sqrt(count)
    )
    return float(np.mean(values)) - half, float(np.mean(values)) + half


def _interval(centre: Array, variances: tuple[Array, Array], degrees: tuple[Any, Any]) -> Interval:
    """Add two independent variances, each with its degrees of freedom (Welch, Satterthwaite)."""
    total = variances[0] + variances[1]
    inverse = variances[0] ** 2 / degrees[0] + variances[1] ** 2 / degrees[1]
    # Without any spread the interval is a point, whatever the degrees of freedom.
    joint = np.divide(total**2, inverse, out=np.ones_like(total), where=inverse > 0)
    return Interval(centre, np.sqrt(total), stdtrit(joint, 1 - ERROR_RATE / 2))
