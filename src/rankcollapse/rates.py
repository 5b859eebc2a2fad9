"""How fast the residual falls: the rate of each layer, the order of each curve, and a word for it.

With r_l the ratio of composite norms after layer l, the rate is log r_l / log r_{l-1}. Where
collapse is cubic, r_l = a r_{l-1}^3, it is 3 + log a / log r_{l-1}; where it is exponential,
r_l = c r_{l-1}, it is 1 + log c / log r_{l-1}. Both come near 3 or 1 only as r goes to 0. The order
of a curve is the slope of log r_l over log r_{l-1}, which is 3 or 1 whatever the constants.

What is measured. r_{l-1} is below 1/2, as `measures.rate` has it; no value below the floor of the
precision is used. A layer counts if at least half of its sequences have a rate and none of them has
fallen below the floor: those that stay above it are the slow ones, and their mean would be too low.
That some have not yet come below 1/2 does no such harm, since it says nothing of the next layer.

Interval: 95 %, of the mean over texts and seeds. The mean is that of the seeds' means over their
sequences. Its variance is that of the seeds' means by S, plus the mean over seeds of the variance
over the sequences by B (Welch's degrees of freedom). All seeds read the same texts, so what the
choice of texts adds does not shrink with the number of seeds; the sum errs on the wide side. With
one seed, or trained weights, only the second part is there: the interval is for those weights.

The word, from the interval of the rate or the order; "near" is within 0.25:

    cubic           the interval reaches near 3, and lies between 2 and 5
    exponential     the interval reaches near 1, and lies below 2
    no collapse     as exponential or lower, and the interval of log(r_l / r_{l-1}) does not lie
                    below 0: a ratio that stays has rate 1 too
    between         it lies between 1 and 3 and reaches near neither
    neither         it lies elsewhere, or is so wide that it says nothing
    not measured    there is no interval

Shapes: L layers, S seeds, B sequences.
"""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from jaxtyping import Float64
from scipy.special import stdtrit

from rankcollapse.intervals import ERROR_RATE, Array
from rankcollapse.vocabulary import PRECISIONS

CURVE = ["checkpoint", "weights", "variant", "reading", "text", "precision"]
_RESULT = ["seeds", "sequences", "low", "high", "factor", "word"]
RATE_COLUMNS = [*CURVE, "layer", "rate", *_RESULT]
ORDER_COLUMNS = [*CURVE, "first", "last", "order", *_RESULT]
WORDS = ("cubic", "exponential", "between", "neither", "no collapse", "not measured")
CUBIC, EXPONENTIAL = 3.0, 1.0
NEAR = 0.25
_FROM_MOST_EXACT = [name for name in ("float64", "float32", "bfloat16") if name in PRECISIONS]

Values = Float64[np.ndarray, "*layer seed sequence"]


class Mean(NamedTuple):
    """A mean over seeds and sequences, and the ends of its 95 % interval (NaN without one)."""

    mean: float
    low: float
    high: float


class _Curve(NamedTuple):
    """One curve's ratios, NaN where a value may not be used, and which layers count, [L + 1]."""

    name: tuple[str, ...]
    ratios: Values
    rates: Values
    counts: Array


def rates(frames: Iterable[pd.DataFrame]) -> pd.DataFrame:
    """Return the rate of collapse of every layer from 1 on.

    Args:
        frames: tidy tables, the columns of `tables.SCHEMA`; only composite_ratio is read. Of
            several precisions of a curve the most exact is taken.

    Returns:
        The columns of `RATE_COLUMNS`, one row a curve and layer: rate, mean over `seeds` and
        `sequences` (those that have a rate, of all seeds together), `low` and `high` of its
        interval; factor, the geometric mean of r_l / r_{l-1}; word. Empty where not measured.
    """
    rows = [
        (*curve.name, layer, *_result(curve, curve.rates[layer], [layer]))
        for curve in _curves(frames)
        for layer in range(1, len(curve.ratios))
    ]
    return pd.DataFrame(rows, columns=RATE_COLUMNS)


def orders(frames: Iterable[pd.DataFrame]) -> pd.DataFrame:
    """Return the order of collapse of every curve, by least squares within each sequence.

    Args:
        frames: as `rates` takes them.

    Returns:
        The columns of `ORDER_COLUMNS`, one row a curve: `first` and `last` of the layers that
        count; order, `seeds`, `sequences`, `low`, `high`, `factor` and `word` as for `rates`.
        There is no order with fewer than two layers that count.
    """
    rows = []
    for curve in _curves(frames):
        layers = [layer for layer in range(1, len(curve.ratios)) if curve.counts[layer]]
        ends = (layers[0], layers[-1]) if layers else (pd.NA, pd.NA)
        rows.append((*curve.name, *ends, *_result(curve, _slopes(curve, layers), layers)))
    return pd.DataFrame(rows, columns=ORDER_COLUMNS).astype({"first": "Int64", "last": "Int64"})


def _curves(frames: Iterable[pd.DataFrame]) -> Iterator[_Curve]:
    rows = pd.concat(frames, ignore_index=True)
    rows = rows[rows["measure"] == "composite_ratio"]
    rank = rows["precision"].map(_FROM_MOST_EXACT.index)
    best = rank.groupby([rows[name] for name in CURVE[:-1]]).transform("min")
    for name, curve in rows[rank == best].groupby(CURVE, sort=True):
        yield _curve(
            tuple(map(str, name)), curve.assign(seed=curve["seed"].astype("Int64").fillna(-1))
        )


def _curve(name: tuple[str, ...], rows: pd.DataFrame) -> _Curve:
    """Arrange the rows of one curve as [L + 1, S, B]."""
    index = ["layer", "seed", "sequence"]
    axes = [sorted(rows[column].unique()) for column in index]
    full = rows.set_index(index).reindex(pd.MultiIndex.from_product(axes, names=index))
    shape = [len(axis) for axis in axes]
    usable = full["value"].where(full["status"] == "ok").to_numpy(float).reshape(shape)
    fallen = (full["status"] == "below floor").to_numpy().reshape(shape)
    found = _rates(usable)
    enough = np.isfinite(found).sum((1, 2)) * 2 >= full["value"].size / shape[0]
    return _Curve(name, usable, found, enough & ~fallen.any((1, 2)))


def _rates(ratios: Values) -> Values:
    import torch  # not for those who only read the tables

    from rankcollapse.measures import rate

    flat = torch.tensor(ratios.reshape(len(ratios), -1))
    found: Values = rate(flat).numpy().reshape(ratios.shape)
    return found


def _result(curve: _Curve, values: Values, layers: list[int]) -> tuple[Any, ...]:
    """Return the columns of one row from rate or order on: values are [S, B]."""
    if not layers or not curve.counts[layers].all() or not np.isfinite(values).any():
        return (np.nan, 0, 0, np.nan, np.nan, np.nan, "not measured")
    there = np.isfinite(values)
    falls = np.log(curve.ratios[layers] / curve.ratios[[layer - 1 for layer in layers]])
    has_rate = np.isfinite(curve.rates[layers])
    fall = mean_over(_mean(np.where(has_rate, falls, np.nan)))
    found = mean_over(values)
    seeds = int(there.any(1).sum())
    return (
        found.mean,
        seeds,
        int(there.sum()),
        found.low,
        found.high,
        float(np.exp(fall.mean)),
        word(found, fall),
    )


def _mean(values: Values) -> Values:
    """Return the mean over the first axis of what is there, NaN where nothing is."""
    count = np.isfinite(values).sum(0)
    lacking = np.full(count.shape, np.nan)
    mean: Values = np.divide(np.nansum(values, 0), count, out=lacking, where=count > 0)
    return mean


def _slopes(curve: _Curve, layers: list[int]) -> Values:
    """Return the slope of log r_l over log r_{l-1} of each sequence, [S, B]."""
    if len(layers) < 2:
        return np.full(curve.ratios.shape[1:], np.nan)
    defined = np.isfinite(curve.rates[layers])
    logs = np.log(curve.ratios)
    x, y = (np.where(defined, logs[[layer - back for layer in layers]], np.nan) for back in (1, 0))
    x, y = x - _mean(x), y - _mean(y)
    spread = np.nansum(x**2, 0)
    lacking = np.full(spread.shape, np.nan)
    slope: Values = np.divide(np.nansum(x * y, 0), spread, out=lacking, where=spread > 0)
    return slope


def mean_over(values: Float64[np.ndarray, "seed sequence"]) -> Mean:
    """Return the mean over seeds and sequences with its interval, as this module states it.

    Args:
        values: NaN where there is none; at least one is there.
    """
    seeds = [row[np.isfinite(row)] for row in values]
    means = np.array([row.mean() for row in seeds if row.size])
    texts = [row for row in seeds if row.size > 1]
    parts = []
    if len(means) > 1:
        parts.append((means.var(ddof=1) / len(means), len(means) - 1))
    if texts:
        variance = np.mean([row.var(ddof=1) / row.size for row in texts])
        parts.append((variance, min(row.size for row in texts) - 1))
    mean = float(means.mean())
    if not parts:
        return Mean(mean, np.nan, np.nan)
    total = float(sum(variance for variance, _ in parts))
    inverse = float(sum(variance**2 / degrees for variance, degrees in parts))
    degrees = total**2 / inverse if inverse > 0 else 1.0  # without any spread, whatever they are
    half = float(stdtrit(degrees, 1 - ERROR_RATE / 2)) * np.sqrt(total)
    return Mean(mean, mean - half, mean + half)


def word(found: Mean, fall: Mean) -> str:
    """Return the word for a rate or an order by the rule of this module.

    Args:
        found: the rate or the order.
        fall: log(r_l / r_{l-1}).
    """
    if not np.isfinite([found.low, found.high, fall.high]).all():
        return "not measured"
    near_cubic, near_exponential = (
        found.low <= value + NEAR and found.high >= value - NEAR for value in (CUBIC, EXPONENTIAL)
    )
    middle = (CUBIC + EXPONENTIAL) / 2
    if near_cubic:
        return "cubic" if found.low > middle and found.high < CUBIC + middle else "neither"
    if found.low <= EXPONENTIAL + NEAR and fall.high >= 0:
        return "no collapse"
    if near_exponential:
        return "exponential" if found.high < middle else "neither"
    return "between" if found.low > EXPONENTIAL and found.high < CUBIC else "neither"
