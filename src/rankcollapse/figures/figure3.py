"""Figure 3: one layer applied again and again to two points on a circle.

The trajectories are those of one seed; each panel says how many of all runs ended in one point.
"""

from functools import partial
from math import pi, sin
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from rankcollapse.errors import RankCollapseError
from rankcollapse.figures import panels, style
from rankcollapse.intervals import share_interval
from rankcollapse.tables import read_csv
from rankcollapse.task_tables import CIRCLE_COLUMNS, TRAJECTORY_COLUMNS
from rankcollapse.vocabulary import READINGS

if TYPE_CHECKING:  # the report takes the numbers, and draws nothing
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

READS = {
    "trajectories": partial(read_csv, columns=TRAJECTORY_COLUMNS),
    "circle": partial(read_csv, columns=CIRCLE_COLUMNS),
}
VARIANTS = ("san", "san_skip", "san_mlp")
WIDTHS = (32, 64, 128)
RADIUS = 0.3
STEP = 2 * RADIUS * sin(pi / 1000)  # what one application shall learn to move a point
LEARNED = STEP / 2  # largest error of a run that has learned it
THRESHOLD = 0.05  # final distance of the points below which a run has collapsed
THRESHOLDS = np.geomspace(1e-3, 1, 601)

_POINT_COLORS = {0: "#1D2142", 1: "#E0873A"}
_MARGIN = 1.15


def table(trajectories: pd.DataFrame, circle: pd.DataFrame) -> pd.DataFrame:
    """Return how many runs of each panel collapsed; the trajectories have a table of their own.

    Args:
        trajectories: `task_tables.TRAJECTORY_COLUMNS`; not used, as it is in the files already.
        circle: `task_tables.CIRCLE_COLUMNS`.

    Returns:
        reading, variant, width; runs; collapsed, how many of them; share, low, high, its
        95 % interval (Wilson); learned, how many have a one-step error below half the step;
        median_distance of the points at the end; median_error of one step, in steps.
    """
    runs = circle.assign(learned=circle["one_step_error"] < LEARNED)
    grouped = runs.groupby(["reading", "variant", "width"], sort=False)
    rows = grouped.agg(
        runs=("collapsed", "size"),
        collapsed=("collapsed", "sum"),
        learned=("learned", "sum"),
        median_distance=("final_distance", "median"),
        median_error=("one_step_error", "median"),
    ).reset_index()
    rows["median_error"] /= STEP
    rows["share"] = rows["collapsed"] / rows["runs"]
    ends = [share_interval(*pair) for pair in zip(rows["collapsed"], rows["runs"], strict=True)]
    rows["low"] = [float(low) for low, _ in ends]
    rows["high"] = [float(high) for _, high in ends]
    ranks = {"reading": list(READINGS), "variant": list(VARIANTS)}
    by = ["reading", "variant", "width"]

    def rank(column: pd.Series) -> pd.Series:
        names = ranks.get(str(column.name))
        return column.map(names.index) if names else column

    counted = ["runs", "collapsed", "share", "low", "high", "learned"]
    columns = [*by, *counted, "median_distance", "median_error"]
    return rows.sort_values(by, key=rank).reset_index(drop=True)[columns]


def draw(trajectories: pd.DataFrame, circle: pd.DataFrame) -> dict[str, "Figure"]:
    """Draw the trajectories of both points, and how collapse depends on its definition.

    Differs from the paper: the runs that collapse are counted, over several seeds.

    Args:
        trajectories: `task_tables.TRAJECTORY_COLUMNS`, of one seed.
        circle: `task_tables.CIRCLE_COLUMNS`, of all seeds.

    Returns:
        The pages: "" as published; "as_described", if measured; "threshold", the share of
        collapsed runs against the distance below which a run counts as collapsed.

    Raises:
        RankCollapseError: there is no trajectory or no run.

    Source: Dong et al. 2021, figure 3.
    """
    if trajectories.empty or circle.empty:
        raise RankCollapseError("figure 3: no run of the circle was measured; run `make reproduce`")
    shares = table(trajectories, circle)
    pages: dict[str, Figure] = {}
    for reading in READINGS:
        of_reading = panels.select(trajectories, reading=reading)
        if not of_reading.empty:
            name = reading.replace("-", "_") if pages else ""
            pages[name] = _page(of_reading, panels.select(shares, reading=reading))
    return pages | {"threshold": _threshold_page(circle)}


@style.look()
def _page(trajectories: pd.DataFrame, shares: pd.DataFrame) -> "Figure":
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(style.DOUBLE_COLUMN, 7.4), layout="constrained")
    grid = figure.subplots(len(VARIANTS), len(WIDTHS), sharex="row", sharey="row", squeeze=False)
    for row, variant in zip(grid, VARIANTS, strict=True):
        of_variant = panels.select(trajectories, variant=variant)
        for axes, width in zip(row, WIDTHS, strict=True):
            _panel(axes, of_variant[of_variant["width"] == width])
            of_panel = panels.select(shares, variant=variant)
            top = f"width {width}" if variant == VARIANTS[0] else ""
            _title(axes, of_panel[of_panel["width"] == width], top)
        reach = _MARGIN * max(RADIUS, of_variant[["x", "y"]].abs().to_numpy().max(initial=0))
        row[0].set(xlim=(-reach, reach), ylim=(-reach, reach))
        row[0].set_ylabel(style.variant(variant).label)
        row[0].yaxis.set_major_locator(MaxNLocator(nbins=5))
        row[0].xaxis.set_major_locator(MaxNLocator(nbins=5))
    _page_legend(figure, trajectories)
    return figure


def _panel(axes: "Axes", rows: pd.DataFrame) -> None:
    from matplotlib.patches import Circle

    axes.set_aspect("equal")
    axes.add_patch(Circle((0, 0), RADIUS, fill=False, color=style.MUTED, linewidth=0.5, zorder=0))
    for point, color in _POINT_COLORS.items():
        path = rows[rows["point"] == point].sort_values("step")
        if path.empty:
            continue
        x, y = path["x"].to_numpy(), path["y"].to_numpy()
        dots: dict[str, Any] = {
            "marker": ".",
            "markersize": 2.2,
            "markeredgewidth": 0,
            "linewidth": 0.5,
        }
        axes.plot(x, y, color=color, **dots, label=f"point {point + 1}")
        ends: dict[str, Any] = {
            "linestyle": "",
            "markersize": 6,
            "markeredgecolor": color,
            "markeredgewidth": 1.0,
        }
        axes.plot(x[0], y[0], marker="o", markerfacecolor="white", **ends, label="start")
        shape = "s" if point == 0 else "D"
        axes.plot(x[-1], y[-1], marker=shape, markerfacecolor=color, **ends, label="end")


def _title(axes: "Axes", share: pd.DataFrame, top: str) -> None:
    lines = [top] if top else []
    for run in share.to_dict("records"):
        low, high = (f"{100 * run[name]:.0f}" for name in ("low", "high"))
        lines.append(f"collapsed: {run['collapsed']} of {run['runs']}, {low} to {high} %")
        error = f"error {run['median_error']:.2g} $\\times$ the step"
        lines.append(f"learned: {run['learned']} of {run['runs']} ({error})")
    if share.empty:
        lines.append(panels.NOT_MEASURED)
    axes.set_title("\n".join(lines), fontsize=style.SMALL_TEXT_SIZE)


def _page_legend(figure: "Figure", trajectories: pd.DataFrame) -> None:
    from matplotlib.lines import Line2D

    seeds = ", ".join(map(str, sorted(trajectories["seed"].unique())))
    steps = int(trajectories["step"].max())
    handles = [
        Line2D([], [], color=color, label=f"point {point + 1} (seed {seeds})")
        for point, color in _POINT_COLORS.items()
    ]
    grey: dict[str, Any] = {"linestyle": "", "color": style.MUTED, "markersize": 6}
    handles += [
        Line2D([], [], marker="o", markerfacecolor="white", label="start", **grey),
        Line2D([], [], marker="s", label=f"end, after {steps} steps", **grey),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=4)


@style.look()
def _threshold_page(circle: pd.DataFrame) -> "Figure":
    from matplotlib.figure import Figure

    readings = [reading for reading in READINGS if reading in set(circle["reading"])]
    size = (style.DOUBLE_COLUMN, 2.7)
    figure = Figure(figsize=size, layout="constrained")
    row = figure.subplots(1, len(readings), sharey=True, squeeze=False)[0]
    for axes, reading in zip(row, readings, strict=True):
        of_reading = panels.select(circle, reading=reading)
        for variant in VARIANTS:
            _share_curve(axes, panels.select(of_reading, variant=variant), variant)
        look: dict[str, Any] = {"color": style.MUTED, "linewidth": 0.9, "zorder": 0}
        axes.axvline(THRESHOLD, **look, label=f"threshold used: {THRESHOLD}")
        axes.set_title(reading.replace("-", " "))
        axes.set_xscale("log")
        axes.set_xlim(THRESHOLDS[0], THRESHOLDS[-1])
        axes.set_ylim(-0.02, 1.02)
        axes.set_xlabel("distance below which a run has collapsed")
    row[0].set_ylabel("share of runs, all widths")
    band = panels.band_handle("95 % interval (Wilson)")
    figure.legend(handles=[*row[0].get_lines(), band], loc="outside lower center", ncols=5)
    return figure


def _share_curve(axes: "Axes", runs: pd.DataFrame, variant: str) -> None:
    if runs.empty:
        return
    look = style.variant(variant)
    distances = np.sort(runs["final_distance"].to_numpy(float))
    counts = np.searchsorted(distances, THRESHOLDS, side="left")  # below, not at, the threshold
    low, high = share_interval(counts, len(distances))
    axes.fill_between(THRESHOLDS, low, high, color=look.color, alpha=0.18, linewidth=0)
    line = look.line() | {"label": look.label, "markevery": (50, 100)}
    axes.plot(THRESHOLDS, counts / len(distances), **line)
