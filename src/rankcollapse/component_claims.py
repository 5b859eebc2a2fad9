"""Which pieces stop the collapse: effects, intervals over seeds, verdicts.

Of one network and seed, with layers 0..L and their ratios r:

    last         the last layer up to which every ratio is above `components.RESOLVED`
    rate         log r_l / log r_{l-1} at l = last; 1 where the network ends with r_{l-1} still at
                 least 1/2, since a ratio that has not fallen falls no faster than exponentially;
                 none where r falls from 1/2 to below `RESOLVED` at once, as it does where all
                 tokens attend to one token and to nothing else
    contraction  (log10 r_n - log10 r_m) / (n - m), n = min(last + 1, L), m = floor(n / 2): decades
                 a layer in the second half; r_n counts as `RESOLVED` where it is below
    fall         the layer at which the ratio passes 1e-3, log-linear between two layers; L, which
                 is then a lower bound, where it never does

A network collapses *doubly exponentially* if its rate is above 2, half way between exponential
(1) and cubic (3). It *stops*, that is does not collapse, if a layer takes off less than a tenth of
its ratio (contraction above log10 0.9 = -0.046): a slower fall counts as none, whether it goes on
exponentially or fades. What does neither collapses exponentially.

A claim is *supported* where the whole 95 % interval of its effect (Student's, over seeds; each
difference within a seed) lies on the side of its rule, *opposite* where it lies on the other side,
*not supported* where it holds the limit:

    fast             the rate, above 2: doubly exponential
    slow             the rate, below 2: no longer doubly exponential
    stops            the contraction, above -0.046
    same rate        rate minus that of the reference, within -+0.5 (a quarter of the way from
                     exponential to cubic); opposite where it lies wholly outside
    later            fall minus that of the reference, above 0
    later on average  fall minus that without the piece, above 0: the mean over all combinations
                     of the other pieces (`components.CROSSED`)

The reference is the network of the same condition without the change; an MLP's scale is compared
with the same MLP at scale 1. From fewer than 2 seeds there is no interval: *one seed*, or *not
measured*. Nothing is corrected for the number of claims: about one in twenty errs by chance.

What to expect of a skip: a layer multiplies what the tokens have in common by sqrt(s^2 + 1), for
the weights are random and independent, and the residual, once small, by s. So the ratio falls
exponentially, by log10(s / sqrt(s^2 + 1)) = -0.15 decades a layer at s = 1, less with small value
weights.

The limits were fixed before any network was run. How the numbers are read was refined after a first
run, and not towards a claim: ratios that a plain pass in float64 resolves (above 4e-15) end so
early that the rate still showed the constant before r^3 and not the exponent; whole layers were too
coarse for a fall; the factorial was judged by contraction, which in a cubic fall says only where
`RESOLVED` lies; a fall from 0.1 to 0 at once had not been counted as one; and "exponential" was
judged at once by rate and contraction, so that a slow exponential fall counted as refuting it: now
`slow` and `stops` are claims by themselves. Weights of scale 8 and the networks of 24 and 48 layers
other than the skip's were added where 12 layers left the answer open.
"""

from collections.abc import Iterator
from math import log10
from typing import NamedTuple

import numpy as np
import pandas as pd

from rankcollapse.components import CONDITIONS, CROSSED, FACTORIAL, FACTORS, RESOLVED, name
from rankcollapse.intervals import MINIMUM_SEEDS, mean_interval

COLUMNS = ["claim", "source", "condition", "effect", "low", "high", "verdict"]
FALLEN = 1e-3
CUBIC = 2.0  # above this rate
STEADY = log10(0.9)  # above this contraction, decades a layer
SAME = 0.5  # rate

_CHANGE = f"change of layer where ratio passes {FALLEN:g}"

# What the effect of each rule is; a claim's `condition` ends with it.
EFFECTS = {
    "fast": "rate",
    "slow": "rate",
    "same rate": "change of rate",
    "stops": "contraction, decades a layer",
    "later": _CHANGE,
    "later on average": f"{_CHANGE}, mean over the factorial",
}
_KEY = ["condition", "factor", "level"]
_MEASURE = {"stops": "contraction", "later": "fall"}  # others judge the rate

_DONG = "Dong et al. 2021, section 3"
_THEOREM = "Dong et al. 2021, theorem 2.2"
_WU = "Wu et al. 2024"
_WU_CHOSEN = "Wu et al. 2024, for chosen weights"
_HERE = "this project"
_PRE_NORM = "pre-norm with skip"


class Claim(NamedTuple):
    """What is claimed of one network of `components.networks`.

    Attributes:
        claim: a sentence.
        source: who claims it.
        rule: a key of `EFFECTS`.
        factor: which piece is changed.
        level: to what.
        condition: in which network.
    """

    claim: str
    source: str
    rule: str
    factor: str
    level: object
    condition: str = "baseline"


def _statements() -> Iterator[Claim]:
    """Yield what is judged, in the order of the table; the factorial comes after it."""
    yield Claim("attention alone is doubly exponential", _THEOREM, "fast", "skip", 0.0)
    yield from _skip()
    for mlp in ("gelu", "gelu_skip"):
        yield Claim("MLP slows it", _DONG, "later", "mlp", mlp)
        yield Claim("MLP leaves the rate", _DONG, "same rate", "mlp", mlp)
        yield Claim("MLP stops it", _HERE, "stops", "mlp", mlp)
    for scale in (2.0, 4.0):
        yield Claim("larger MLP slows it", _DONG, "later", "mlp_scale", scale)
        yield Claim("larger MLP stops it", _HERE, "stops", "mlp_scale", scale)
    yield from _normalisation()
    for mask in ("causal", "window"):
        yield Claim(f"{mask} mask ends the cubic rate", _WU, "slow", "mask", mask)
        yield Claim(f"{mask} mask ends the cubic rate", _WU, "slow", "mask", mask, "post-norm")
        yield Claim(f"{mask} mask stops it", _HERE, "stops", "mask", mask)
    yield Claim("window mask stops it", _HERE, "stops", "depth", 48, "window")
    for level in ("relative", "rotary"):
        for condition in ("baseline", "post-norm"):
            claim = f"{level} positions end the cubic rate"
            yield Claim(claim, _HERE, "slow", "positions", level, condition)
            claim = f"{level} positions stop it"
            yield Claim(claim, _HERE, "stops", "positions", level, condition)
    for condition in ("baseline", "post-norm"):
        claim = "absolute positions leave the rate"
        yield Claim(claim, _HERE, "same rate", "positions", "absolute", condition)
    yield from _sizes()


def _skip() -> Iterator[Claim]:
    scales = FACTORS["skip"][1:]
    for condition in ("baseline", "post-norm"):
        for scale in scales:
            yield Claim("skip stops it", _DONG, "stops", "skip", scale, condition)
    yield Claim("skip stops it", _DONG, "stops", "norm", "layer_before", "skip")
    for condition in ("skip", _PRE_NORM):
        for value in (0.25, 0.5, 2.0):
            yield Claim("skip stops it", _DONG, "stops", "value", value, condition)
        yield Claim("skip stops it", _DONG, "stops", "depth", 48, condition)
    for scale in scales:
        yield Claim("skip ends the cubic rate", _HERE, "slow", "skip", scale)


def _normalisation() -> Iterator[Claim]:
    for norm in FACTORS["norm"][1:]:
        yield Claim("normalisation leaves the rate", _DONG, "same rate", "norm", norm)
        yield Claim("normalisation slows it", _HERE, "later", "norm", norm)
        yield Claim("normalisation stops it", _WU_CHOSEN, "stops", "norm", norm)
    claim = "normalisation with large weights stops it"
    for scale in (2.0, 4.0, 8.0):
        yield Claim(claim, _WU_CHOSEN, "stops", "query_key", scale, "post-norm")
    yield Claim(claim, _WU_CHOSEN, "stops", "depth", 48, "large post-norm")


def _sizes() -> Iterator[Claim]:
    for factor, weights in (("query_key", "query-key"), ("value", "value")):
        for scale in (2.0, 4.0, 8.0):
            yield Claim(f"large {weights} weights slow it", _HERE, "later", factor, scale)
            yield Claim(f"large {weights} weights stop it", _HERE, "stops", factor, scale)
    sizes = {"heads": "number of heads", "width": "width", "tokens": "number of tokens"}
    for factor, what in sizes.items():
        for level in (FACTORS[factor][0], FACTORS[factor][-1]):
            yield Claim(f"{what} leaves the rate", _THEOREM, "same rate", factor, level)


def claims(frame: pd.DataFrame) -> pd.DataFrame:
    """Judge every claim by the rules of this module.

    Args:
        frame: `components.COLUMNS`.

    Returns:
        `COLUMNS`. `condition` names the network, then after ": " what the effect is, with its unit
        (`EFFECTS`). `low` and `high` are the ends of the effect's 95 % interval over seeds.
    """
    found = outcomes(frame)
    rows = [_row(claim, found) for claim in _statements()]
    return pd.DataFrame([*rows, *_on_average(found)], columns=COLUMNS)


def outcomes(frame: pd.DataFrame) -> pd.DataFrame:
    """Return condition, factor, level, seed, last, rate, contraction and fall of each network.

    Args:
        frame: `components.COLUMNS`.
    """
    wide = frame.set_index([*_KEY, "seed", "layer"])[["ratio", "rate"]].unstack("layer")
    ratios, rates = wide["ratio"].to_numpy(), wide["rate"].to_numpy()  # [network, L + 1]
    every = np.arange(len(wide))
    depth = np.isfinite(ratios).sum(1) - 1
    last = np.logical_and.accumulate(ratios >= RESOLVED, axis=1).sum(1) - 1
    logs = np.log10(np.maximum(ratios, RESOLVED))
    end = np.minimum(last + 1, depth)
    half = end // 2
    slow = (last == depth) & ~(ratios[every, np.maximum(last - 1, 0)] < 0.5)
    found = wide.index.to_frame(index=False)
    return found.assign(
        last=last,
        rate=np.where(slow, 1.0, rates[every, last]),
        contraction=(logs[every, end] - logs[every, half]) / (end - half),
        fall=[_fall(row[: end + 1]) for row, end in zip(ratios, depth, strict=True)],
    )


def _fall(ratios: np.ndarray) -> float:
    """Return the layer at which ratios [L + 1] pass 1e-3; L if they never do."""
    low = int((ratios < FALLEN).argmax())
    if low == 0:
        return float(len(ratios) - 1) if ratios[0] >= FALLEN else 0.0
    before, after = np.log10(np.maximum(ratios[low - 1 : low + 1], RESOLVED))
    return float(low - 1 + (before - log10(FALLEN)) / (before - after))


def _row(claim: Claim, found: pd.DataFrame) -> tuple[object, ...]:
    measure = _MEASURE.get(claim.rule, "rate")
    values = _of(found, claim, claim.level)[measure]
    if claim.rule in ("same rate", "later"):
        base = getattr(CONDITIONS[claim.condition], claim.factor)
        values = values - _of(found, claim, base)[measure]
    where = f"{name({claim.factor: claim.level})}, {claim.condition}"
    return (
        claim.claim,
        claim.source,
        f"{where}: {EFFECTS[claim.rule]}",
        *_judged(claim.rule, values),
    )


def _judged(rule: str, values: pd.Series) -> tuple[float, float, float, str]:
    """Return mean, 95 % interval over the seeds that have a value, and verdict."""
    known = values.dropna().tolist()
    mean = float(np.mean(known)) if known else np.nan
    if len(known) < MINIMUM_SEEDS:
        return mean, np.nan, np.nan, "one seed" if known else "not measured"
    low, high = mean_interval(known)
    return mean, low, high, _verdict(rule, low, high)


def _of(found: pd.DataFrame, claim: Claim, level: object) -> pd.DataFrame:
    """Return the outcomes of one network, indexed by seed."""
    of_condition = found[found["condition"] == claim.condition]
    return of_condition[of_condition["level"] == name({claim.factor: level})].set_index("seed")


def _verdict(rule: str, low: float, high: float) -> str:
    """Return where an interval lies."""
    if rule == "same rate":
        inside, outside = low > -SAME and high < SAME, low > SAME or high < -SAME
        return "supported" if inside else "opposite" if outside else "not supported"
    if rule == "slow":
        low, high, limit = -high, -low, -CUBIC
    else:
        limit = {"fast": CUBIC, "stops": STEADY}.get(rule, 0.0)
    return "supported" if low > limit else "opposite" if high < limit else "not supported"


def _on_average(found: pd.DataFrame) -> Iterator[tuple[object, ...]]:
    """Yield the main effect of each level of each crossed factor on the fall."""
    cells = found[found["condition"] == FACTORIAL].reset_index(drop=True)
    levels = cells["level"].str.split("|", expand=True).reindex(columns=range(len(CROSSED)))
    cells = cells[["seed", "fall"]].join(levels.set_axis(list(CROSSED), axis=1))
    for factor, (base, *others) in CROSSED.items():
        rest = ["seed", *(other for other in CROSSED if other != factor)]
        names = {level: name({factor: level}) for level in (base, *others)}
        wide = cells.set_index([*rest, factor])["fall"].unstack(factor)
        wide = wide.reindex(columns=list(names.values()))
        for level in others:
            written = names[level]
            change = wide[written] - wide[names[base]]
            judged = _judged("later on average", change.groupby("seed").mean())
            claim = f"{written.replace('=', ' ').replace('_', ' ')} slows it on average"
            condition = f"{written}, {FACTORIAL}: {EFFECTS['later on average']}"
            yield claim, _HERE, condition, *judged
