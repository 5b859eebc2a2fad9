"""Theory beside measurement: what attention leaves of a residual, and what bounds it.

The first page has a panel for each network: the measured residual of each layer's attention, before
its norm, and its bounds. The second, `quantities`, shows what the bounds are made of, and so why a
condition fails. Layers whose input has nothing but round-off for a residual are left out, but the
number in a title is for all layers, with the largest beta and gamma of those that are drawn.
Dobrushin's bound is of another quantity, a distance of tokens, and its markers are judged by that.
"""

import math
from functools import partial
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from rankcollapse.bound_tables import (
    BOUND_COLUMNS,
    DOBRUSHIN,
    FIRST_LIMIT,
    FORM_COLUMNS,
    PAPER_LIMIT,
    PURE_SAN,
    over_seeds,
)
from rankcollapse.errors import RankCollapseError
from rankcollapse.figures import panels, style
from rankcollapse.figures.style import Curve
from rankcollapse.tables import read_csv

READS = {
    "bounds": partial(read_csv, columns=BOUND_COLUMNS),
    "bound_forms": partial(read_csv, columns=FORM_COLUMNS),
}
MEASURED = Curve("measured residual", "#1D2142", "-", "o")
FORMS = {
    "paper": Curve(
        rf"paper: $4\gamma$, if $D \leq {PAPER_LIMIT:.2f}$",
        *(style.ACCENT, (0, (4.0, 1.2, 1.0, 1.2)), "^"),
    ),
    "sharp": Curve("ours, closed form", "#2F7FB8", (0, (7.0, 1.5)), "s"),
    "tight": Curve("ours, refined", "#E0873A", (0, (4.0, 1.2, 1.0, 1.2, 1.0, 1.2)), "D"),
    DOBRUSHIN: Curve("Dobrushin: 1-norm distance of tokens", "#8E2C6B", (0, (1.0, 1.2)), "v"),
}
QUANTITIES = {
    "max_D": r"largest oscillation of scores $D$",
    "gamma": r"largest $\gamma$",
    "beta": r"largest $\beta$ of a head, over $\sqrt{k}$",
}
LIMITS = {"paper": PAPER_LIMIT, "first version": FIRST_LIMIT}  # of D
VACUOUS = "vacuous for the residual's bounds"
THROUGH_NORMS = "Dobrushin, chained, real models: 2-norm"
ROUND_OFF = "round-off"
HOLLOW = "hollow: vacuous, or under round-off"
_PURE = Curve("pure SAN, small weights", "#6E9E2A", "-", "P")
_LIMITS = f"limits of $D$: paper {LIMITS['paper']:.2f}, first version $\\ln 8$"
_LEAST_OSCILLATION = 1e-8  # of the axis: below it no condition is in question
_CHAIN_WIDTH, _CHAIN_SIZE = 0.6, 2.2
_SHADE = 0.16
_DEEP = -100.0  # log10 of a residual
_COLUMNS = 3


def table(bounds: pd.DataFrame, bound_forms: pd.DataFrame) -> pd.DataFrame:
    """Return the numbers of the figure.

    Args:
        bounds: `bound_tables.BOUND_COLUMNS`.
        bound_forms: `bound_tables.FORM_COLUMNS`.

    Returns:
        `FORM_COLUMNS` with `seeds` for `seed`: means over the seeds, the worst verdict, the least
        margin; and the largest max_D, gamma and beta of the layer. The pure network comes first.
    """
    keys = ["checkpoint", "weights", "layer"]
    largest = bounds.groupby(keys, as_index=False)[list(QUANTITIES)].max()
    rows = over_seeds(bound_forms).merge(largest, on=keys, how="left")
    pure = rows["checkpoint"] == PURE_SAN
    # in_order sorts by layer and keeps the order of the forms within it.
    return pd.concat([rows[pure], panels.in_order(rows[~pure])], ignore_index=True)


@style.look()
def draw(bounds: pd.DataFrame, bound_forms: pd.DataFrame) -> dict[str, Figure]:
    """Draw measured residuals with their bounds, and what the bounds are made of.

    Args:
        bounds: `bound_tables.BOUND_COLUMNS`.
        bound_forms: `bound_tables.FORM_COLUMNS`.

    Returns:
        Two pages: the bounds, "" by name, and "quantities".

    Raises:
        RankCollapseError: no bound was evaluated.
    """
    rows = table(bounds, bound_forms)
    if rows.empty:
        raise RankCollapseError("bounds: none was evaluated; run `make reproduce`")
    models = [of_model for _, of_model in rows.groupby(["checkpoint", "weights"], sort=False)]
    return {"": _draw_bounds(models), "quantities": _draw_quantities(models)}


def _look(rows: pd.DataFrame) -> Curve:
    checkpoint = str(rows["checkpoint"].iloc[0])
    return _PURE if checkpoint == PURE_SAN else style.model(checkpoint)


def _title(rows: pd.DataFrame) -> str:
    name = _look(rows).label
    if rows["checkpoint"].iloc[0] == PURE_SAN:
        return name
    return f"{name}, {panels.WEIGHTS[str(rows['weights'].iloc[0])]}"


def _draw_bounds(models: list[pd.DataFrame]) -> Figure:
    lines, columns = math.ceil(len(models) / _COLUMNS), min(_COLUMNS, len(models))
    size = (style.DOUBLE_COLUMN * max(columns, 2) / _COLUMNS, 0.9 + 2.15 * lines)
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(lines, columns, squeeze=False).ravel()
    for axes in grid[len(models) :]:
        axes.remove()
    for axes, rows in zip(grid, models, strict=False):
        _panel(axes, rows)
        axes.set_title(f"{_title(rows)}\n{_closed(rows)}", linespacing=1.3)
    for axes in grid[: len(models) : columns]:
        axes.set_ylabel(r"$\log_{10}$ of the residual")
    for axes in grid[max(0, len(models) - columns) : len(models)]:
        axes.set_xlabel("layer")
    figure.legend(handles=_handles(), loc="outside lower center", ncols=3)
    return figure


def _closed(rows: pd.DataFrame) -> str:
    """Say what the paper's theorem says after the last layer."""
    last = rows[rows["layer"] == rows["layer"].max()]
    theorem = panels.select(last, form="paper", chain="closed").iloc[0]
    if math.isnan(theorem["bound_log10"]):
        return "theorem: does not apply"
    number = f"{theorem['bound_log10']:,.0f}".replace(",", "{,}")
    beside = "" if theorem["verdict"] == "holds" else f", {theorem['verdict']}"
    return f"theorem: $10^{{{number}}}${beside}"


def _panel(axes: Axes, rows: pd.DataFrame) -> None:
    seen = rows[~rows["below_floor"]]
    steps = panels.select(seen, chain="one step")
    measured = panels.select(steps, form="tight")
    for name, look in FORMS.items():
        _curve(axes, panels.select(steps, form=name), look.line())
        chain = panels.select(seen, form=name, chain="chained")
        thin = {
            "linewidth": _CHAIN_WIDTH,
            "markersize": _CHAIN_SIZE,
            "label": f"{look.label}, chained",
        }
        _curve(axes, chain, look.line() | thin)
    axes.plot(measured["layer"], measured["measured_log10"], **MEASURED.line(), zorder=4)
    _layer_axis(axes, rows, measured)
    _value_axis(axes, deep=bool((measured["measured_log10"] < _DEEP).any()))
    _trivial(axes, measured)
    for row, (name, look) in enumerate(FORMS.items()):
        _crosses(axes, panels.select(steps, form=name), look, height=0.97 - 0.045 * row)


def _value_axis(axes: Axes, *, deep: bool) -> None:
    """Leave room for the crosses; draw a deep fall so that a doubly exponential one is a line."""
    low, high = axes.get_ylim()
    if not deep:
        axes.set_ylim(low, high + 0.12 * (high - low))
        return
    axes.set_yscale("symlog", linthresh=1, linscale=0.5)
    axes.set_ylim(1.5 * low, max(5, 1.5 * axes.dataLim.y1))
    axes.set_yticks(
        [1, 0, -1, -10, -100],
        labels=["1", "0", "\N{MINUS SIGN}1", "\N{MINUS SIGN}10", "\N{MINUS SIGN}100"],
    )
    axes.minorticks_off()


def _curve(axes: Axes, rows: pd.DataFrame, line: dict[str, Any]) -> None:
    """Draw a bound; a marker is filled where the bound says something."""
    if rows["bound_log10"].isna().all():
        return
    axes.plot(rows["layer"], rows["bound_log10"], **{**line, "marker": ""})
    for holds, fill in ((True, line["color"]), (False, "white")):
        some = rows[(rows["verdict"] == "holds") == holds]
        points = {
            **line,
            "linestyle": "",
            "markerfacecolor": fill,
            "label": f"{line['label']} {holds}",
        }
        axes.plot(some["layer"], some["bound_log10"], **points)


def _layer_axis(axes: Axes, rows: pd.DataFrame, measured: pd.DataFrame) -> None:
    """Let the x axis run over the layers, the last that are round-off cut short."""
    last, depth = int(measured["layer"].max()), int(rows["layer"].max())
    margin = 0.25 + 0.02 * depth
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True, steps=[1, 2, 5, 10]))
    if last == depth:
        axes.set_xlim(1 - margin, depth + margin)
        return
    left, right = last + 0.04 * last, last + 0.16 * last
    axes.set_xlim(1 - margin, right)
    axes.axvspan(
        left, right, facecolor="white", edgecolor=style.MUTED, hatch="////", label=ROUND_OFF
    )
    first = f"layer {depth}" if last + 1 == depth else f"layers {last + 1} to {depth}"
    axes.annotate(
        f"{first}: {ROUND_OFF}",
        ((left + right) / 2, 0.5),
        xycoords=("data", "axes fraction"),
        rotation=90,
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.0},
        ha="center",
        va="center",
        fontsize=style.SMALL_TEXT_SIZE,
    )


def _trivial(axes: Axes, measured: pd.DataFrame) -> None:
    layers, level = measured["layer"], measured["trivial_log10"]
    axes.plot(layers, level, color=style.MUTED, linewidth=0.8, zorder=1, label="layer's input")
    top = axes.get_ylim()[1]
    axes.fill_between(layers, level, top, color=style.MUTED, alpha=_SHADE, linewidth=0, zorder=0)


def _crosses(axes: Axes, rows: pd.DataFrame, look: Curve, *, height: float) -> None:
    """Mark along the top the layers at which a bound's condition is not met."""
    unmet = rows[rows["verdict"] == "condition not met"]
    heights = [height] * len(unmet)
    place = axes.get_xaxis_transform()
    label = f"{look.label}: condition not met"
    axes.plot(
        *(unmet["layer"], heights),
        transform=place,
        color=look.color,
        marker="x",
        linestyle="",
        label=label,
    )


def _handles() -> list[Line2D | Patch]:
    looks = [MEASURED, *FORMS.values()]
    handles: list[Line2D | Patch] = [Line2D([], [], **look.line()) for look in looks]
    black: dict[str, Any] = {"color": "black", "linestyle": ""}
    thin: dict[str, Any] = {"linewidth": _CHAIN_WIDTH, "markersize": _CHAIN_SIZE}
    handles += [
        Line2D(
            [],
            [],
            color="black",
            marker="s",
            label="small: chained, judged by the first input",
            **thin,
        ),
        Line2D([], [], **FORMS[DOBRUSHIN].line() | thin | {"label": THROUGH_NORMS}),
        Line2D([], [], marker="s", markerfacecolor="white", label=HOLLOW, **black),
        Line2D([], [], marker="x", label="condition not met", **black),
        Patch(color=style.MUTED, alpha=_SHADE, linewidth=0, label=VACUOUS),
    ]
    return handles


def _draw_quantities(models: list[pd.DataFrame]) -> Figure:
    figure = Figure(figsize=(style.DOUBLE_COLUMN, 2.7), layout="constrained")
    grid = figure.subplots(1, len(QUANTITIES))
    for axes, (name, label) in zip(grid, QUANTITIES.items(), strict=True):
        for rows in models:
            layers = panels.select(rows[~rows["below_floor"]], form="tight", chain="one step")
            axes.plot(
                layers["layer"], layers[name], **{**_look(rows).line(), "label": _title(rows)}
            )
        axes.set_yscale("linear" if name == "gamma" else "log")
        axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
        axes.set_xlabel("layer")
        axes.set_title(label)
    oscillation, gamma, _ = grid
    largest = max(rows["max_D"].max() for rows in models)
    oscillation.set_ylim(_LEAST_OSCILLATION, 10 * largest)
    for name, limit in LIMITS.items():
        oscillation.axhline(limit, color=style.MUTED, linewidth=0.7, zorder=0, label=name)
    gamma.set_ylim(1, None)
    handles, _ = gamma.get_legend_handles_labels()
    limits = Line2D([], [], color=style.MUTED, linewidth=0.7, label=_LIMITS)
    figure.legend(handles=[*handles, limits], loc="outside lower center", ncols=3)
    return figure
