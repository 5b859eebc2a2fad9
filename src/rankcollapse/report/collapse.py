"""How far and how fast the ratio falls, and how much the centre matters."""

from dataclasses import dataclass

import pandas as pd

from rankcollapse.figures.panels import in_order, select
from rankcollapse.figures.style import VARIANTS
from rankcollapse.report.findings import counted, curve_name, percent
from rankcollapse.tables import KEY

COLLAPSED = 0.01
CUBIC = (2.5, 3.5)
EXPONENTIAL = (0.8, 1.3)


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
            sentences.append(
                f"{VARIANTS[variant].label} falls below {percent(COLLAPSED)} in {said}."
            )
    return sentences


def _collapsed(rows: pd.DataFrame, layer: str, where: str) -> str:
    if rows.empty:
        return ""
    latest = rows[layer].max()
    when = "" if pd.isna(latest) else f", by layer {latest:.0f} at the latest"
    return f"{rows[layer].count()} of {counted(len(rows), 'panel')} {where}{when}"


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
    groups = chosen.groupby(keys, sort=False)
    return [
        _rate(str(checkpoint), str(weights), str(variant), rows)
        for (checkpoint, weights, variant), rows in groups
    ]


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
        curve_name(checkpoint, weights, variant),
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
