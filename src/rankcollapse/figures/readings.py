"""What the published code computes beside what the text describes, and how fast ratios fall.

Above, where the two readings differ: each curve as published and as described. Below, in float64:
the ratio r and its rate, which is about 3 for cubic collapse (doubly exponential in depth) and
about 1 for exponential collapse.
"""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from rankcollapse.errors import RankCollapseError
from rankcollapse.figures import panels, style
from rankcollapse.precision import precision_floor
from rankcollapse.tables import read_curves

READS = {"curves": read_curves}
_READINGS = {"as-published": "as published", "as-described": "as described"}
_COLUMNS = ["checkpoint", "weights", "variant", "reading", "precision", "measure", "layer"]
_COLUMNS += ["mean", "std", "seeds"]
_RATE_VARIANTS = ("san_mlp", "san")  # the last is drawn on top
_DEEP_LIMITS = (1e-17, 30.0)
_RATE_LIMITS = (0.0, 6.0)


def table(curves: pd.DataFrame, *, text: str = "wikibio") -> pd.DataFrame:
    """Return the numbers of the figure of readings and rates.

    Args:
        curves: the columns of `tables.CURVE_COLUMNS`.
        text: the text whose curves are taken.

    Returns:
        checkpoint, weights, variant, reading, precision, measure, layer; mean and std over seeds
        and texts (`panels.over_seeds`), seeds. In float32 the composite ratio in both readings,
        of the seeds that have both; in float64 the composite ratio and the rate of SAN and
        SAN + MLP as published, without a mean where a sequence is below the floor or has none.

    Raises:
        RankCollapseError: there is neither a second reading nor a curve in float64.
    """
    of_text = panels.select(curves, text=text)
    rows = panels.over_seeds(pd.concat([_in_both_readings(of_text), _in_float64(of_text)]))
    if rows.empty:
        raise RankCollapseError(
            f"readings: no second reading and no float64 curve on text {text!r}; measure one"
        )
    partial = (rows["below_floor"] > 0) | (rows["missing"] > 0)
    rows.loc[partial & (rows["precision"] == "float64"), ["mean", "std"]] = np.nan
    return panels.in_order(rows)[_COLUMNS]


def _in_both_readings(curves: pd.DataFrame) -> pd.DataFrame:
    rows = panels.select(curves, measure="composite_ratio", precision="float32")
    one_run = ["checkpoint", "weights", "seed", "variant", "layer"]
    readings = rows.groupby(one_run, dropna=False)["reading"].transform("nunique")
    return rows[readings == len(_READINGS)]


def _in_float64(curves: pd.DataFrame) -> pd.DataFrame:
    rows = panels.select(curves, precision="float64", reading="as-published")
    drawn = rows["measure"].isin(["composite_ratio", "rate"])
    return rows[drawn & rows["variant"].isin(_RATE_VARIANTS)]


@style.look()
def draw(curves: pd.DataFrame, *, text: str = "wikibio") -> dict[str, Figure]:
    """Draw the two readings where they differ, and the rates in float64.

    Args:
        curves: the columns of `tables.CURVE_COLUMNS`.
        text: the text whose curves are drawn.

    Returns:
        One page: above, a panel for each checkpoint and weights, both readings; below, the ratio
        and its rate of each that was measured in float64. A part without curves is left out.

    Raises:
        RankCollapseError: there is neither a second reading nor a curve in float64.
    """
    rows = table(curves, text=text)
    pairs = panels.select(rows, precision="float32")
    rates = panels.select(rows, precision="float64")
    heights = [0.9 + 1.3 * pairs["weights"].nunique()] * (not pairs.empty)
    heights += [3.3] * (not rates.empty)
    size = (max(panels.width(pairs), style.DOUBLE_COLUMN), sum(heights))
    figure = Figure(figsize=size, layout="constrained")
    parts = figure.subfigures(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0]
    if not pairs.empty:
        _draw_pairs(parts[0], pairs)
    if not rates.empty:
        _draw_rates(parts[-1], rates)
    return {"": figure}


def _draw_pairs(part: SubFigure, pairs: pd.DataFrame) -> None:
    weights = [name for name in panels.WEIGHTS if name in set(pairs["weights"])]
    for axes, rows in panels.grid(part, pairs, weights):
        panels.log_axis(axes, *panels.RATIO_LIMITS, precision="float32")
        for (variant, reading), curve in rows.groupby(["variant", "reading"]):
            _draw_reading(axes, curve, str(variant), str(reading))
        if rows.empty:
            panels.note(axes, panels.NOT_MEASURED)
    part.supylabel(f"{panels.RATIO}   ({panels.CENTRE})", fontsize=style.TEXT_SIZE)
    handles: list[Line2D | Patch] = [
        Line2D([], [], color=look.color, marker=look.marker, linestyle="", label=look.label)
        for variant, look in style.VARIANTS.items()
        if variant in set(pairs["variant"])
    ]
    handles.append(Line2D([], [], color="black", marker="o", label="as published"))
    handles.append(
        Line2D([], [], color="black", marker="o", mfc="white", linestyle=":", label="as described")
    )
    handles.append(panels.floor_handle("float32"))
    part.legend(handles=handles, loc="outside lower center", ncols=6, columnspacing=1.0)


def _draw_reading(axes: Axes, curve: pd.DataFrame, variant: str, reading: str) -> None:
    look = style.variant(variant)
    described = reading == "as-described"
    line = {
        "color": look.color,
        "marker": look.marker,
        "linestyle": ":" if described else "-",
        "markerfacecolor": "white" if described else look.color,
        "markeredgewidth": 0.8,
        "markevery": (int(described), 2),
        "label": f"{look.label}, {_READINGS[reading]}",
    }
    floor = precision_floor("float32")
    panels.fading_line(axes, curve["layer"], curve["mean"], line, floor=floor)


def _draw_rates(part: SubFigure, rates: pd.DataFrame) -> None:
    cases = list(rates.groupby(["checkpoint", "weights"], sort=False))
    grid = part.subplots(2, len(cases), sharex="col", sharey="row", squeeze=False)
    for ((checkpoint, weights), rows), (above, below) in zip(cases, grid.T, strict=True):
        above.set_title(f"{style.label(str(checkpoint))}\n{panels.WEIGHTS[str(weights)]}")
        panels.layer_axis(above, rows["layer"].max())
        _ratio_panel(above, panels.select(rows, measure="composite_ratio"))
        _rate_panel(below, panels.select(rows, measure="rate"))
        below.set_xlabel("layer")
    grid[0, 0].set_ylabel(f"ratio $r_l$\n({panels.CENTRE})")
    grid[1, 0].set_ylabel("rate\n" + r"$\log r_l \, / \, \log r_{l-1}$")
    handles: list[Line2D | Patch] = [
        Line2D([], [], **style.variant(name).line()) for name in reversed(_RATE_VARIANTS)
    ]
    handles.append(Line2D([], [], color="black", marker="^", linestyle="", label="off the scale"))
    handles.append(panels.floor_handle("float64"))
    part.legend(handles=handles, loc="outside lower center", ncols=4)


def _ratio_panel(axes: Axes, rows: pd.DataFrame) -> None:
    panels.log_axis(axes, *_DEEP_LIMITS, precision="float64")
    for variant in _RATE_VARIANTS:
        curve = panels.select(rows, variant=variant)
        axes.plot(curve["layer"], curve["mean"], **style.variant(variant).line())


def _rate_panel(axes: Axes, rows: pd.DataFrame) -> None:
    axes.set_ylim(*_RATE_LIMITS)
    panels.rate_lines(axes)
    for variant in _RATE_VARIANTS:
        curve, look = panels.select(rows, variant=variant), style.variant(variant)
        off_scale = curve["mean"] > _RATE_LIMITS[1]
        axes.plot(curve["layer"], curve["mean"].mask(off_scale), **look.line())
        layers = curve["layer"][off_scale]
        if layers.empty:
            continue  # an empty line that is not clipped would break the layout
        axes.plot(
            layers,
            np.full(len(layers), _RATE_LIMITS[1]),
            color=look.color,
            linestyle="",
            marker="^",
            clip_on=False,
            label=f"{look.label}, off the scale",
        )
