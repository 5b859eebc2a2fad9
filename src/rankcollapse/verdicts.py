"""Does each published point of Figure 2 reproduce? The rule, fixed before any result was seen.

Compared are the composite ratios with the column mean as centre, of the ablations as published, on
the text in WikiBio's surface form, in float32. Symbols: S seeds, n texts (sequences) of ours, p the
published mean over 32 other texts, m_s and s_s our mean and standard deviation over the texts
with seed s, y_s = log m_s (a mean below one eps counts as one eps, so that it has a logarithm).

Initialisation. A published curve is one unseeded draw, so p is compared with the 95 % prediction
interval of one more draw judged on 32 other texts, on the log scale:

    Var = a + b,   a = var(y) (1 + 1/S),   b = mean_s (s_s / m_s)^2 (1/n + 1/32)
    interval = exp(mean(y) -+ t sqrt(Var))

with var(y) the variance (S - 1) and t the 97.5 % quantile of Student's distribution at the degrees
of freedom of Welch and Satterthwaite for a (S - 1) and b (n - 1). All our seeds see the same
texts, so the choice of texts moves our curves together: it enters once for ours and once for
theirs, and no number of seeds removes it. `measured_mean` is exp(mean(y)), the geometric mean over
the seeds: the centre of that interval. Fewer than 3 seeds say too little of var(y): not measured.

Pretrained. Both sides are means over texts of the same weights (Welch's test): p is reproduced if
|m - p| <= t sqrt(s^2 / n + s_p^2 / 32), with s_p the published standard deviation.

Below the precision floor of float32 a published mean is round-off and never compared, whatever we
measured. Where our own interval reaches below the floor, our value is only known to be at most the
floor: its low end stays as computed and its high end is at least the floor.

Error rate and power, simulated (the tests repeat the main cases): with 6 seeds 5.0 to 5.5 % of
right points fail, with 3 seeds up to 7.5 %, where Welch's approximation is at its worst. With 6
seeds a point shifted by 3 standard deviations of a draw fails in 60 to 67 of 100 cases. A whole
curve shifted so has p < 0.05 in 98 of 100 cases if neighbouring layers correlate by 0.3, in 96 at
0.5, in 76 at 0.9. Where all layers move as one, a curve holds no more evidence than a point.

Chance (`summarise`). One point in twenty fails though all is right, and the layers of one draw move
together, so failures come in groups. At initialisation the spread and the layer-by-layer
correlation of y are estimated from our seeds; S + 1 curves and two text errors (ours, theirs; of
the same correlation) are drawn from that normal distribution, and the last curve is judged by the
rule above. `p_value` is the share of draws with at least as many points outside as found (`p_basis`
"simulated"). With few seeds the estimated correlation is rather too strong, which makes the p-value
rather too large. With pretrained weights, or without 3 seeds that cover all compared layers, the
correlation is unknown, because the table keeps one mean and deviation per layer. None can be
assumed safely: independence makes large counts look too rare, full dependence small ones. `p_value`
is then the bound that holds for any of them, 0.05 x comparable / outside (Markov's inequality;
`p_basis` "upper bound"). It is never below 0.05: one set of 32 texts cannot by itself show more.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from rankcollapse.files import write_text
from rankcollapse.intervals import (
    DRAWS,
    ERROR_RATE,
    Interval,
    Seeds,
    outside_by_chance,
    prediction,
    two_means,
)
from rankcollapse.precision import EPS, precision_floor
from rankcollapse.published import read_figure2
from rankcollapse.tables import read_curves, write_csv
from rankcollapse.vocabulary import FORMS, require_known

VERDICTS = ("reproduced", "not reproduced", "below precision floor", "not measured")
CURVE = ["model", "weights", "variant"]
COLUMNS = [
    *CURVE,
    "layer",
    "published_mean",
    "published_std",
    "measured_mean",
    "measured_low",
    "measured_high",
    "verdict",
    "reason",
]
MINIMUM_SEEDS = 3

_PRECISION = "float32"
_COUNTS = ("reproduced", "not_reproduced", "below_floor", "not_measured")  # of VERDICTS, in order


def judge(curves: pd.DataFrame, published: pd.DataFrame, *, text: str = "wikibio") -> pd.DataFrame:
    """Judge every published point by the rule of this module.

    Args:
        curves: `tables.CURVE_COLUMNS`; rows of other measures, readings, texts and precisions
            than the compared ones are passed over.
        published: as `published.read_figure2` returns it.
        text: the form of our text that stands for the published one.

    Returns:
        `COLUMNS`, one row for each published point in the published order. `measured_mean`,
        `measured_low` and `measured_high` are ratios, missing where nothing was measured.

    Raises:
        ValueError: the text form is unknown; the message lists the known ones.
    """
    runs = _comparable_runs(curves, text)
    groups = dict(list(runs.groupby(["checkpoint", "weights", "variant", "layer"])))
    rows = []
    for point in published.itertuples(index=False):
        key = (point.model, point.weights, point.variant, point.layer)
        judged = _judge_point(point, groups.get(key, runs[:0]))
        rows.append((*key, point.mean, point.std, *judged))
    return pd.DataFrame(rows, columns=COLUMNS)


def _comparable_runs(curves: pd.DataFrame, text: str) -> pd.DataFrame:
    """Keep the curves that the published ones are compared with, without unusable means."""
    require_known("text", text, FORMS)
    setting = (
        (curves["measure"] == "composite_ratio")
        & (curves["reading"] == "as-published")
        & (curves["text"] == text)
        & (curves["precision"] == _PRECISION)
    )
    usable = np.isfinite(curves["mean"].astype(float)) & np.isfinite(curves["std"].astype(float))
    return curves[setting & usable & (curves["sequences"] >= 2)]


def _judge_point(point: Any, runs: pd.DataFrame) -> tuple[float, float, float, str, str]:  # noqa: ANN401
    """Return measured mean, low and high, verdict and reason of one published point."""
    floor = precision_floor(_PRECISION)
    measured, verdict, reason = _compare(point, runs, floor)
    if point.mean < floor:
        verdict = "below precision floor"
        reason = f"the published value is round-off, below {floor:.2g}: not compared"
    return (*measured, verdict, reason)


def _compare(
    point: Any,  # noqa: ANN401
    runs: pd.DataFrame,
    floor: float,
) -> tuple[tuple[float, float, float], str, str]:
    init = point.weights == "init"
    needed, unit = (MINIMUM_SEEDS, "seeds") if init else (1, "runs")
    if len(runs) < needed:
        reason = f"{len(runs)} usable {unit} of at least {needed}: `make paper` measures this curve"
        return (np.nan, np.nan, np.nan), "not measured", reason
    interval = prediction(_seeds(runs)) if init else _same_weights(point, runs)
    mean, low, high = _ends(interval, floor, logarithmic=init)
    place = f"the 95 % prediction interval of {len(runs)} seeds" if init else "the 95 % interval"
    if low <= point.mean <= high:
        return (mean, low, high), "reproduced", f"inside {place}"
    side = "above" if point.mean > high else "below"
    distance = interval.distance(np.log(point.mean) if init else point.mean)
    far = f"{distance:.3g} standard errors from our mean, {interval.reach:.3g} allowed"
    return (mean, low, high), "not reproduced", f"{side} {place}: {far}"


def _seeds(runs: pd.DataFrame) -> Seeds:
    means = np.maximum(runs["mean"].to_numpy(float), EPS[_PRECISION])
    relative = runs["std"].to_numpy(float) / means
    texts = runs["sequences"].to_numpy(float).min()  # the fewest give the widest interval
    return Seeds(np.log(means), np.asarray(np.mean(relative**2)), np.asarray(texts))


def _same_weights(point: Any, runs: pd.DataFrame) -> Interval:  # noqa: ANN401
    mean, std, texts = runs[["mean", "std", "sequences"]].to_numpy(float)[0].tolist()
    return two_means((mean, std, texts), point.std)


def _ends(interval: Interval, floor: float, *, logarithmic: bool) -> tuple[float, float, float]:
    half = interval.reach * interval.error
    ends = interval.centre + half * np.array([0.0, -1.0, 1.0])
    mean, low, high = (np.exp(ends) if logarithmic else ends).tolist()
    return mean, low, max(high, floor) if low < floor else high


def summarise(
    verdicts: pd.DataFrame, curves: pd.DataFrame, *, text: str = "wikibio"
) -> pd.DataFrame:
    """Count the verdicts of each published curve, and say how likely the misses are by chance.

    Args:
        verdicts: as `judge` returns it.
        curves: what it was judged by.
        text: as for `judge`.

    Returns:
        One row per curve in the published order: `model, weights, variant, points, comparable`,
        the four counts, `p_value` (the chance of at least `not_reproduced` points outside, missing
        where nothing is comparable), `p_basis` ("simulated", "upper bound" or "nothing compared")
        and `outside_layers` (numbers with spaces between).
    """
    runs = _comparable_runs(curves, text)
    rows = []
    for (model, weights, variant), points in verdicts.groupby(CURVE, sort=False):
        compared = points[points["verdict"].isin(VERDICTS[:2])]
        outside = compared.loc[compared["verdict"] == "not reproduced", "layer"]
        same = (runs["checkpoint"] == model) & (runs["weights"] == weights)
        same &= (runs["variant"] == variant) & runs["layer"].isin(compared["layer"])
        p_value, basis = _chance(runs[same], len(compared), len(outside))
        rows.append(
            {
                **dict(zip(CURVE, (model, weights, variant), strict=True)),
                "points": len(points),
                "comparable": len(compared),
                **_counts(points),
                "p_value": p_value,
                "p_basis": basis,
                "outside_layers": " ".join(map(str, outside)),
            }
        )
    return pd.DataFrame(rows)


def _chance(runs: pd.DataFrame, comparable: int, outside: int) -> tuple[float, str]:
    if comparable == 0:
        return np.nan, "nothing compared"
    seeds = _whole_curves(runs, comparable)
    if seeds is None:
        bound = min(1.0, ERROR_RATE * comparable / outside) if outside else 1.0
        return bound, "upper bound"
    as_many = np.count_nonzero(outside_by_chance(seeds) >= outside)
    return (1 + as_many) / (1 + DRAWS), "simulated"


def _whole_curves(runs: pd.DataFrame, layers: int) -> Seeds | None:
    """Return the seeds that cover all compared layers, [layer, S], if they are enough."""
    whole = runs[runs.groupby("seed")["layer"].transform("count") == layers]
    if whole["seed"].nunique() < MINIMUM_SEEDS:
        return None
    parts = [_seeds(group.sort_values("seed")) for _, group in whole.groupby("layer")]
    return Seeds(*map(np.stack, zip(*parts, strict=True)))


def _counts(points: pd.DataFrame) -> dict[str, int]:
    return {
        name: int((points["verdict"] == verdict).sum())
        for name, verdict in zip(_COUNTS, VERDICTS, strict=True)
    }


def totals(verdicts: pd.DataFrame) -> dict[str, Any]:
    """Count the verdicts for `dvc metrics`.

    Returns:
        `{"overall": counts, model: {weights: {variant: counts}}}` with the counts of points
        `reproduced`, `not_reproduced`, `below_floor` and `not_measured`.
    """
    result: dict[str, Any] = {"overall": _counts(verdicts)}
    for (model, weights, variant), points in verdicts.groupby(CURVE):
        curves = result.setdefault(str(model), {}).setdefault(weights, {})
        curves[variant] = _counts(points)
    return result


def write_verdicts(
    curves_path: Path, published_path: Path, folder: Path, *, text: str
) -> pd.DataFrame:
    """Judge the published points and write `figure2.csv`, `curves.csv` and `summary.json`.

    Args:
        curves_path: the table that `tables.curves` made, as CSV.
        published_path: `data/published/figure2.csv`.
        folder: where the three files shall be.
        text: the form of our text that stands for the published one.

    Returns:
        The verdicts, as `judge`.

    Raises:
        TableError: the curves are missing or damaged.
        PublishedError: the published numbers are missing or changed.
        ValueError: the text form is unknown.
    """
    curves = read_curves(curves_path)
    verdicts = judge(curves, read_figure2(published_path), text=text)
    summary = summarise(verdicts, curves, text=text)
    write_csv(folder / "figure2.csv", verdicts)
    write_csv(folder / "curves.csv", summary)
    counts = json.dumps(totals(verdicts), indent=2, sort_keys=True)
    write_text(folder / "summary.json", f"{counts}\n")
    return verdicts
