"""What the tables say, in words: each sentence is computed from the numbers that it is about."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pandas as pd

from rankcollapse.figures.panels import WEIGHTS, in_order, select
from rankcollapse.figures.style import VARIANTS, label
from rankcollapse.intervals import ERROR_RATE
from rankcollapse.tables import KEY
from rankcollapse.verdicts import VERDICTS

COLLAPSED = 0.01
CUBIC = (2.5, 3.5)
EXPONENTIAL = (0.8, 1.3)


@dataclass(frozen=True)
class Panel:
    """A panel of Figure 2 that was compared, and what came out, curve by curve."""

    name: str
    sentences: list[str]


def panel_name(checkpoint: str, weights: str) -> str:
    """Return "BERT at initialisation" for bert-base-cased and init."""
    return f"{label(checkpoint)} {WEIGHTS[weights]}"


def listed(words: Iterable[object]) -> str:
    """Return "a, b and c"."""
    *first, last = [str(word) for word in words] or [""]
    return f"{', '.join(first)} and {last}" if first else last


def number(value: float, digits: int = 3) -> str:
    """Return a number for a reader: significant digits, powers of ten written out."""
    if pd.isna(value):
        return "–"
    mantissa, _, exponent = f"{value:.{digits}g}".partition("e")
    if not exponent:
        return mantissa.replace("-", "−")
    power = str(int(exponent)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return f"{mantissa.replace('-', '−')} × 10{power}"


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def answer(verdicts: pd.DataFrame) -> list[str]:
    """Return the result in a few sentences, from the 312 verdicts."""
    reproduced, not_reproduced, below, absent = (
        int((verdicts["verdict"] == verdict).sum()) for verdict in VERDICTS
    )
    compared = reproduced + not_reproduced
    sentences = [
        f"Of the {len(verdicts)} published points of Figure 2, {compared} could be compared here: "
        f"{reproduced} reproduce, {not_reproduced} do not."
        if compared
        else f"None of the {len(verdicts)} published points of Figure 2 could be compared here."
    ]
    if compared:
        sentences.append(
            f"The intervals leave {ERROR_RATE:.0%} of right points outside, so about "
            f"{number(ERROR_RATE * compared, 2)} misses are to be expected if all is right."
        )
    if below:
        sentences.append(
            f"{_counted(below, 'point')} below the precision floor of float32 "
            f"{'is' if below == 1 else 'are'} round-off and not compared."
        )
    if absent:
        commands = commands_that_measure(verdicts)
        how = f" ({commands} measures more)" if commands else ""
        sentences.append(f"{_counted(absent, 'point')} not measured in this profile{how}.")
    return sentences


def commands_that_measure(verdicts: pd.DataFrame) -> str:
    """Return the commands that the reasons of unmeasured points name."""
    reasons = verdicts.loc[verdicts["verdict"] == "not measured", "reason"].astype(str)
    found = reasons.str.extract(r"(`[^`]+`)", expand=False).dropna().unique()
    return listed(found) if len(found) else ""


def panels(summary: pd.DataFrame) -> list[Panel]:
    """Return what came out in each panel with at least one point that could be compared."""
    return [
        Panel(panel_name(str(model), str(weights)), [_curve_sentence(row) for row in _rows(curves)])
        for (model, weights), curves in summary.groupby(["model", "weights"], sort=False)
        if curves["comparable"].sum()
    ]


def panels_without_points(summary: pd.DataFrame) -> list[str]:
    """Return the panels of which nothing could be compared."""
    comparable = summary.groupby(["model", "weights"], sort=False)["comparable"].sum()
    return [panel_name(*names) for names in comparable.index[comparable == 0]]


def _rows(frame: pd.DataFrame) -> list[Any]:
    return list(frame.itertuples(index=False))


def _curve_sentence(curve: Any) -> str:  # noqa: ANN401
    name = VARIANTS[curve.variant].label
    aside = [
        f"{count} {words}"
        for count, words in (
            (curve.below_floor, "below the floor"),
            (curve.not_measured, "not measured"),
        )
        if count
    ]
    rest = f" ({listed(aside)})" if aside else ""
    if not curve.comparable:
        return f"{name}: nothing to compare{rest}."
    inside = (
        f"{name}: {curve.reproduced} of {_counted(curve.comparable, 'comparable point')} inside"
    )
    if not curve.not_reproduced:
        return f"{inside}{rest}."
    layers = curve.outside_layers.split()
    where = f"{'layer' if len(layers) == 1 else 'layers'} {listed(layers)}"
    return f"{inside}{rest}; outside at {where}. {_chance(curve)}"


def _chance(curve: Any) -> str:  # noqa: ANN401
    found = f"{curve.not_reproduced} or more outside"
    if curve.p_basis == "upper bound":
        return (
            f"If all were right, {found} would have a probability of at most "
            f"{number(curve.p_value, 2)}, whatever the correlation of the layers."
        )
    meaning = "chance alone can do that" if curve.p_value >= ERROR_RATE else "hardly chance"
    return f"If all were right, {found} would have p = {number(curve.p_value, 2)}: {meaning}."


def unlikely_curves(summary: pd.DataFrame) -> str:
    """Say how many curves miss more often than chance does, and how many would by chance."""
    simulated = summary[summary["p_basis"] == "simulated"]
    if simulated.empty:
        return "No curve has enough seeds to say how likely its misses are by chance."
    unlikely = simulated[simulated["p_value"] < ERROR_RATE]
    names = [
        f"{panel_name(row.model, row.weights)}, {VARIANTS[row.variant].label}"
        for row in _rows(unlikely)
    ]
    which = f" ({'; '.join(names)})" if names else ""
    return (
        f"Of {_counted(len(simulated), 'curve')} with a simulated p-value, {len(unlikely)} "
        f"{'has' if len(unlikely) == 1 else 'have'} p < {ERROR_RATE}{which}; by chance alone about "
        f"{number(ERROR_RATE * len(simulated), 2)} would."
    )


def collapse(figure2: pd.DataFrame) -> pd.DataFrame:
    """Return where the ratio without attention's skip first falls below 1 %, ours and published.

    Args:
        figure2: the numbers of Figure 2.

    Returns:
        checkpoint, weights, variant (san and san_mlp); `layer` and `published_layer`, the first
        below 1 %, missing if there is none; `last` and `published_last`, the ratio after the last
        layer, missing if there is no curve.

    Source: Dong et al. 2021, figure 2.
    """
    rows = []
    keys = ["checkpoint", "weights", "variant"]
    chosen = figure2[figure2["variant"].isin(["san", "san_mlp"])].sort_values("layer")
    for names, curve in chosen.groupby(keys, sort=False):
        row = dict(zip(keys, names, strict=True))
        for prefix in ("", "published_"):
            values = curve.dropna(subset=f"{prefix}mean")
            low = values.loc[values[f"{prefix}mean"] < COLLAPSED, "layer"]
            row[f"{prefix}layer"] = low.min()
            row[f"{prefix}last"] = values[f"{prefix}mean"].iloc[-1] if len(values) else None
        rows.append(row)
    columns = [*keys, "layer", "last", "published_layer", "published_last"]
    return in_order(pd.DataFrame(rows, columns=columns).astype(dict.fromkeys(columns[3:], float)))


def collapse_sentences(rows: pd.DataFrame) -> list[str]:
    """Say in how many panels each variant collapses, here and as published."""
    sentences = []
    for variant in ("san", "san_mlp"):
        of_variant = rows[rows["variant"] == variant]
        parts = [
            _collapsed(of_variant.dropna(subset=f"{prefix}last"), f"{prefix}layer", where)
            for prefix, where in (("", "measured here"), ("published_", "published"))
        ]
        said = "; ".join(part for part in parts if part)
        if said:
            sentences.append(f"{VARIANTS[variant].label} falls below {COLLAPSED:.0%} in {said}.")
    return sentences


def _collapsed(rows: pd.DataFrame, layer: str, where: str) -> str:
    if rows.empty:
        return ""
    latest = rows[layer].max()
    when = "" if pd.isna(latest) else f", by layer {latest:.0f} at the latest"
    return f"{rows[layer].count()} of {_counted(len(rows), 'panel')} {where}{when}"


@dataclass(frozen=True)
class Rate:
    """How fast one curve collapses in float64.

    Attributes:
        checkpoint: as in tables.
        curve: its name for a reader.
        layers: layer, mean rate over the sequences that have one, how many those are, of how many.
        median: over the layers that count; missing if there is none.
        counted: the layers where at least half of the sequences have a rate.
        kind: "cubic", "exponential", "neither" or "undefined".
    """

    checkpoint: str
    curve: str
    layers: list[tuple[int, float, int, int]]
    median: float
    counted: list[int]
    kind: str


def rates(curves: pd.DataFrame, text: str) -> list[Rate]:
    """Return the rate of collapse of SAN and SAN + MLP wherever float64 was run.

    Args:
        curves: `tables.CURVE_COLUMNS`.
        text: the text whose curves are taken.
    """
    chosen = select(curves, measure="rate", precision="float64", reading="as-published", text=text)
    chosen = in_order(chosen[chosen["variant"].isin(["san", "san_mlp"])])
    keys = ["checkpoint", "weights", "variant"]
    return [_rate(*map(str, names), rows) for names, rows in chosen.groupby(keys, sort=False)]


def _rate(checkpoint: str, weights: str, variant: str, rows: pd.DataFrame) -> Rate:
    of_layer = rows.groupby("layer").agg(
        mean=("mean", "mean"), with_rate=("sequences", "sum"), without=("missing", "sum")
    )
    of_layer = of_layer[of_layer["with_rate"] > 0]
    total = of_layer["with_rate"] + of_layer["without"]
    counted = of_layer[of_layer["with_rate"] * 2 >= total]
    median = float(counted["mean"].median())
    return Rate(
        checkpoint,
        f"{panel_name(checkpoint, weights)}, {VARIANTS[variant].label}",
        list(zip(of_layer.index, of_layer["mean"], of_layer["with_rate"], total, strict=True)),
        median,
        list(counted.index),
        _kind(median),
    )


def _kind(median: float) -> str:
    if pd.isna(median):
        return "undefined"
    for kind, (low, high) in {"cubic": CUBIC, "exponential": EXPONENTIAL}.items():
        if low <= median <= high:
            return kind
    return "neither"


def centre_effect(curves: pd.DataFrame) -> pd.DataFrame:
    """Return how far the minimising centre lowers the composite ratio, relative to it.

    Args:
        curves: `tables.CURVE_COLUMNS`.

    Returns:
        One row for each mean above the floor: the key, layer, `ratio` (centre: column mean), and
        the fractions by which the minimiser's ratio is lower, `at_least` and `at_most`.
    """
    keys = [*KEY, "layer"]
    above = curves[curves["below_floor"] == 0]
    wide = select(above, measure="composite_ratio")[[*keys, "mean"]].rename(
        columns={"mean": "ratio"}
    )
    for name in ("low", "high"):
        bound = select(above, measure=f"composite_ratio_{name}")[[*keys, "mean"]]
        wide = wide.merge(bound.rename(columns={"mean": name}), on=keys)
    wide = wide[wide["ratio"] > 0]
    return wide.assign(
        at_least=1 - wide["high"] / wide["ratio"], at_most=1 - wide["low"] / wide["ratio"]
    )
