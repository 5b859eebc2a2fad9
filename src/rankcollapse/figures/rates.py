"""The rate of collapse by layer, and what a relative position term does to it.

The first page: log r_l / log r_{l-1} of each model, with intervals over texts and seeds. The
second, `relative`: SANs with their term scaled, beside what the term alone predicts, and a small
network in so many digits that no floor ends it.
"""

import math
from collections.abc import Iterator
from functools import partial

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from rankcollapse.errors import RankCollapseError
from rankcollapse.figures import panels, style
from rankcollapse.figures.style import Curve
from rankcollapse.precision import precision_floor
from rankcollapse.rates import ORDER_COLUMNS, RATE_COLUMNS
from rankcollapse.relative_tables import (
    ASYMPTOTE_COLUMNS,
    CONTRACTION_COLUMNS,
    RELATIVE_COLUMNS,
    predicted,
)
from rankcollapse.tables import read_csv

READS = {
    "rates": partial(read_csv, columns=RATE_COLUMNS),
    "orders": partial(read_csv, columns=ORDER_COLUMNS),
    "relative": partial(read_csv, columns=RELATIVE_COLUMNS),
    "contraction": partial(read_csv, columns=CONTRACTION_COLUMNS),
    "asymptote": partial(read_csv, columns=ASYMPTOTE_COLUMNS),
}
SCALES = {
    1.0: Curve("its own term", "#1D2142", "-", "D"),
    0.5: Curve("half of it", "#2F7FB8", (0, (4.0, 1.2, 1.0, 1.2)), "s"),
    0.25: Curve("a quarter", "#E0873A", (0, (7.0, 1.5)), "^"),
    0.0: Curve("none", style.ACCENT, (0, (1.0, 1.2)), "o"),
}
# Below this ratio what content adds to the scores no longer counts beside the term.
PREDICTED_FROM = 0.05
_COLUMNS = 3
_LEAST_TOP = 5.0  # of the axis of rates
_RATIO_LIMITS = (1e-17, 30.0)
_DEEP_LIMITS = (1e-125, 1e8)  # of the small network
_DEEP_LAYERS = 24
_PREDICTIONS = {
    "second_eigenvalue": ("predicted: second eigenvalue", 0.9),
    "tau": ("predicted: Dobrushin coefficient", 0.4),
}
_AS_PREDICTED = {"limit": "second_eigenvalue"}
_RATE = r"rate  $\log r_l \, / \, \log r_{l-1}$"


def table(rates: pd.DataFrame, *_tables: pd.DataFrame, text: str = "wikibio") -> pd.DataFrame:
    """Return the rates of the first page: as published, one text, curves with a rate.

    Args:
        rates: `rates.RATE_COLUMNS`.
        text: the text whose rates are taken.
    """
    rows = panels.select(rates, text=text, reading="as-published")
    curve = ["checkpoint", "weights", "variant"]
    measured = rows.groupby(curve)["rate"].transform("count") > 0
    return panels.in_order(rows[measured].assign(measure="rate")).drop(columns="measure")


@style.look()
def draw(
    rates: pd.DataFrame,
    orders: pd.DataFrame,
    relative: pd.DataFrame,
    contraction: pd.DataFrame,
    asymptote: pd.DataFrame,
    *,
    text: str = "wikibio",
) -> dict[str, Figure]:
    """Draw the rates by layer, and the collapse with the relative term scaled.

    Args:
        rates: `rates.RATE_COLUMNS`.
        orders: `rates.ORDER_COLUMNS`.
        relative: `relative_tables.RELATIVE_COLUMNS`.
        contraction: `relative_tables.CONTRACTION_COLUMNS`.
        asymptote: `asymptote.ASYMPTOTE_COLUMNS`.
        text: the text whose rates are drawn.

    Returns:
        Two pages: the rates, "" by name, and "relative".

    Raises:
        RankCollapseError: no rate was measured.
    """
    rows = table(rates, text=text)
    if rows.empty:
        raise RankCollapseError(f"rates: none was measured on text {text!r}; measure in float64")
    orders = panels.select(orders, text=text, reading="as-published")
    pages = {"": _draw_rates(rows, orders), "relative": _draw_relative(relative, contraction)}
    _draw_asymptote(pages["relative"].axes, asymptote)
    return pages


def _draw_rates(rows: pd.DataFrame, orders: pd.DataFrame) -> Figure:
    models = list(rows.groupby(["checkpoint", "weights", "precision"], sort=False))
    lines = math.ceil(len(models) / _COLUMNS)
    figure = Figure(figsize=(style.DOUBLE_COLUMN, 0.7 + 2.1 * lines), layout="constrained")
    grid = figure.subplots(lines, min(_COLUMNS, len(models)), sharey=True, squeeze=False).ravel()
    for axes in grid[len(models) :]:
        axes.remove()
    for axes, (name, model) in zip(grid, models, strict=False):
        checkpoint, weights, precision = map(str, name)
        own = panels.select(orders, checkpoint=checkpoint, weights=weights)
        axes.set_title(f"{style.label(checkpoint)}, {panels.WEIGHTS[weights]}")
        remarks = "\n".join([precision, *_order_lines(own)])
        axes.annotate(
            remarks,
            (0.02, 0.98),
            xycoords="axes fraction",
            va="top",
            fontsize=style.SMALL_TEXT_SIZE,
        )
        _rate_axis(axes, int(model["layer"].max()), rows["rate"])
        for variant, curve in model.groupby("variant", sort=False):
            _rate_curve(axes, curve, style.variant(str(variant)))
        axes.set_xlabel("layer")
    for axes in grid[: len(models) : _COLUMNS]:
        axes.set_ylabel(_RATE)
    handles = [
        Line2D([], [], **look.line())
        for name, look in style.VARIANTS.items()
        if name in set(rows["variant"])
    ]
    interval = panels.band_handle("95 % interval, texts and seeds")
    figure.legend(handles=[*handles, interval], loc="outside lower center", ncols=5)
    return figure


def _order_lines(orders: pd.DataFrame) -> Iterator[str]:
    """Say the order of the SAN, if it is known."""
    for _, san in panels.select(orders, variant="san").dropna(subset="low").iterrows():
        interval = f"{san['low']:.2f} to {san['high']:.2f}"
        yield f"order of the SAN: {san['order']:.2f} ({interval})"


def _rate_axis(axes: Axes, depth: int, rates: pd.Series) -> None:
    """Prepare a panel that shows all of these rates."""
    panels.layer_axis(axes, depth)
    axes.set_ylim(min(0.0, rates.min()), max(_LEAST_TOP, math.ceil(rates.max())))
    panels.rate_lines(axes)


def _rate_curve(axes: Axes, curve: pd.DataFrame, look: Curve) -> None:
    panels.band(axes, curve["layer"], curve["low"], curve["high"], look.color)
    axes.plot(curve["layer"], curve["rate"], **look.line())


def _draw_relative(relative: pd.DataFrame, contraction: pd.DataFrame) -> Figure:
    models = list(relative.groupby(["checkpoint", "weights"], sort=False))
    columns = len(models) + 1
    figure = Figure(figsize=(style.DOUBLE_COLUMN, 4.9), layout="constrained")
    grid = figure.subplots(2, columns, sharex="col", squeeze=False)
    alone = predicted(contraction)
    for (above, below), (name, model) in zip(grid.T, models, strict=False):
        checkpoint, weights = map(str, name)
        above.set_title(f"{style.label(checkpoint)}, {panels.WEIGHTS[weights]}")
        panels.log_axis(above, *_RATIO_LIMITS, precision="float64")
        _rate_axis(below, int(model["layer"].max()), model["rate"])
        own = panels.select(alone, checkpoint=checkpoint, weights=weights)
        for scale, look in SCALES.items():
            curve = summary(model[model["scale"] == scale])
            _ratio_curve(above, curve, look)
            _rate_curve(below, curve, look)
            if scale:
                _predictions(above, curve, own[own["scale"] == scale], look.color)
        below.set_xlabel("layer")
    grid[0, 0].set_ylabel(f"ratio $r_l$ of the SAN\n({panels.CENTRE})")
    grid[1, 0].set_ylabel(_RATE)
    figure.legend(handles=_relative_handles(), loc="outside lower center", ncols=3)
    return figure


def summary(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the means of one model and scale over its seeds and sequences, by layer.

    Args:
        rows: `relative_tables.RELATIVE_COLUMNS`.

    Returns:
        layer; ratio, the geometric mean, with `ratio_low` and `ratio_high`, the least and the
        largest; rate, the mean, empty unless all have one, with `low` and `high`.
    """
    logs = rows.assign(ratio=np.log(rows["ratio"]))
    result = logs.groupby("layer", as_index=False).agg(
        ratio=("ratio", "mean"),
        ratio_low=("ratio", "min"),
        ratio_high=("ratio", "max"),
        rate=("rate", "mean"),
        low=("rate", "min"),
        high=("rate", "max"),
        missing=("rate", lambda column: column.isna().sum()),
    )
    ratios = ["ratio", "ratio_low", "ratio_high"]
    result[ratios] = np.exp(result[ratios])
    result.loc[result["missing"] > 0, ["rate", "low", "high"]] = np.nan
    return result.drop(columns="missing")


def _ratio_curve(axes: Axes, curve: pd.DataFrame, look: Curve) -> None:
    floor = precision_floor("float64")
    panels.band(axes, curve["layer"], curve["ratio_low"], curve["ratio_high"], look.color)
    panels.fading_line(axes, curve["layer"], curve["ratio"], look.line(), floor=floor)


def _predictions(axes: Axes, curve: pd.DataFrame, alone: pd.DataFrame, color: str) -> None:
    """Draw what the term alone predicts, from the layer at which it takes over.

    Args:
        axes: where.
        curve: layer, ratio.
        alone: layer, second_eigenvalue, tau: factors of the ratio.
        color: of the curve.
    """
    fallen = curve[curve["ratio"] < PREDICTED_FROM]
    if fallen.empty:
        return
    start = fallen.iloc[0]
    factors = alone[alone["layer"] > start["layer"]]
    for name, (label, width) in _PREDICTIONS.items():
        values = start["ratio"] * np.cumprod([1.0, *factors[name]])
        seen = values > precision_floor("float64")
        layers = np.array([start["layer"], *factors["layer"]])[seen]
        axes.plot(layers, values[seen], color=color, linewidth=width, alpha=0.7, label=label)


def _draw_asymptote(grid: list[Axes], asymptote: pd.DataFrame) -> None:
    """Draw the small networks in the last column."""
    above, below = grid[len(grid) // 2 - 1], grid[-1]
    above.set_title("small SAN, hundreds of digits")
    panels.log_axis(above, *_DEEP_LIMITS, precision="float64")
    above.set_yticks([10.0**-decades for decades in range(0, 121, 20)])
    shown = asymptote[asymptote["layer"] <= _DEEP_LAYERS]
    _rate_axis(below, _DEEP_LAYERS, shown["rate"])
    for (heads, scale), network in shown.groupby(["heads", "scale"]):
        look = SCALES[0.0 if scale == 0 else 1.0]
        line = {**look.line(), "markerfacecolor": look.color if heads == 1 else "white"}
        inside = network[network["log10_ratio"] > math.log10(_DEEP_LIMITS[0])]
        curve = inside.assign(ratio=10.0 ** inside["log10_ratio"])
        above.plot(curve["layer"], curve["ratio"], **line)
        below.plot(network["layer"], network["rate"], **line)
        if scale:
            _predictions(above, curve, curve.rename(columns=_AS_PREDICTED), look.color)
    below.set_xlabel("layer")


def _relative_handles() -> list[Line2D | Patch]:
    handles: list[Line2D | Patch] = [Line2D([], [], **look.line()) for look in SCALES.values()]
    for label, width in _PREDICTIONS.values():
        handles.append(Line2D([], [], color="black", linewidth=width, alpha=0.7, label=label))
    two = "small SAN with two heads (filled: one)"
    handles.append(Line2D([], [], color="black", marker="D", mfc="white", linestyle="", label=two))
    handles.append(panels.floor_handle("float64"))
    handles.append(panels.band_handle("range over texts and seeds"))
    return handles
