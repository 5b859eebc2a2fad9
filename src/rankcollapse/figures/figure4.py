"""Figure 4: accuracy against path length, and the controls that say what its fall means.

Every line is measured. A curve of several training seeds has a band, one standard deviation over
the seeds; a curve of one seed has thin bars, one standard deviation over the sets of paths.
"""

from collections.abc import Iterable
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from rankcollapse.errors import RankCollapseError
from rankcollapse.figures import panels, style
from rankcollapse.figures.style import Curve
from rankcollapse.precision import precision_floor
from rankcollapse.task_tables import ACCURACY_COLUMNS, in_order, read_accuracy, training, typed
from rankcollapse.vocabulary import READINGS

READS = {"accuracy": read_accuracy}
TASKS = {"memorization": "Memorisation", "sorting": "Sorting", "convex_hull": "Convex hull"}
SIZES = {
    "5": Curve("5 paths", "#2B9CB3", (0, (4.0, 1.2, 1.0, 1.2)), "s"),
    "20": Curve("20 paths", style.ACCENT, "-", "o"),
    "all": Curve("single paths, mean of all", "#8E2C6B", (0, (1.0, 1.2)), "v"),
}
CONTROLS = {
    "published": Curve("as published: residual cut", style.ACCENT, "-", "o"),
    "residual_kept": Curve("residual kept", "#1D2142", (0, (7.0, 1.5)), "D"),
    "frozen": Curve("frozen terms of this length", "#2B9CB3", (0, (4.0, 1.2, 1.0, 1.2)), "s"),
    "reread": Curve("as published, re-read", "#E5B53D", (0, (1.0, 1.2)), "^"),
    "layer_drop": Curve("trained with layer drop", "#8E2C6B", (0, (4.0, 1.2, 1.0, 1.2)), "v"),
    "pure": Curve("trained without residual", "#6E9E2A", (0, (1.0, 1.2)), "X"),
}
LEVELS = {
    "entire": Curve("entire network", "#3A3A3A", "-", ""),
    "trivial": Curve("trivial predictor", "#3A3A3A", (0, (3.0, 2.0)), ""),
}
MEASURE = "make full"  # measures the panels that are empty

_PATHS = {"frozen": "only"}  # of every other control: "20"
_DEPTH = 6
_PRECISION = "float32"
_FIRST_MARKER = {"reread": 1}  # shares its states with "published": they take turns


def table(accuracy: pd.DataFrame) -> pd.DataFrame:
    """Return the numbers of Figure 4 and of its controls.

    Args:
        accuracy: `task_tables.ACCURACY_COLUMNS`. Of each task and reading, the networks with the
            fewest epochs are shown.

    Returns:
        The rows that are drawn, in the same columns.
    """
    rows = typed(accuracy)
    level = rows["control"].isin(list(LEVELS))
    size = (rows["control"] == "published") & rows["paths"].isin(list(SIZES))
    control = rows["control"].isin(list(CONTROLS)) & rows["length"].notna()
    control &= rows["paths"] == rows["control"].map(lambda name: _PATHS.get(name, "20"))
    rows = rows[level | size | control]
    trained = rows["control"].map(training)
    fewest = rows.groupby([rows["task"], rows["reading"], trained])["epochs"].transform("min")
    return in_order(rows[rows["epochs"] == fewest])[ACCURACY_COLUMNS]


def draw(accuracy: pd.DataFrame) -> dict[str, Figure]:
    """Draw accuracy against path length, and the same beside its controls.

    Differs from the paper: every line is measured, training seeds are repeated, the third curve
    and the page of controls are new.

    Args:
        accuracy: `task_tables.ACCURACY_COLUMNS`.

    Returns:
        The pages: "" the paper's Figure 4, "controls" the same 20 paths under each control with
        the residual ratio of the same states below, in the published reading; then
        "as_described" and "controls_as_described", if that reading was measured.

    Raises:
        RankCollapseError: nothing was measured.

    Source: Dong et al. 2021, figure 4.
    """
    rows = table(accuracy)
    if rows.empty:
        raise RankCollapseError("figure 4: no accuracy was measured; run `make reproduce`")
    pages: dict[str, Figure] = {}
    for reading in READINGS:
        of_reading = panels.select(rows, reading=reading)
        if of_reading.empty:
            continue
        name = reading.replace("-", "_") if pages else ""
        pages[name] = _published_page(of_reading)
        pages[f"controls_{name}".rstrip("_")] = _controls_page(of_reading)
    return pages


@style.look()
def _published_page(rows: pd.DataFrame) -> Figure:
    figure = Figure(figsize=(style.DOUBLE_COLUMN, 2.7), layout="constrained")
    remarks: list[str] = []
    sizes = {size: look for size, look in SIZES.items() if size in set(rows["paths"])}
    for axes, of_task in _panels(figure.subplots(1, 3, sharey=True), rows):
        published = panels.select(of_task, control="published")
        for size, look in sizes.items():
            curve = panels.select(published, paths=size)
            _spread(axes, curve, look.color, bars=size != "all")  # of which there is no draw
            axes.plot(curve["length"], curve["accuracy_mean"], **look.line())
        _levels(axes, of_task, "accuracy_mean")
        axes.set_xlabel("path length")
        remarks.append("" if len(published) else f"{panels.NOT_MEASURED}: {MEASURE}")
    _remarks(figure.axes, remarks)
    _accuracy_axis(figure)
    _legend(figure, [*sizes.values(), *LEVELS.values()], panels.select(rows, control="published"))
    return figure


@style.look()
def _controls_page(rows: pd.DataFrame) -> Figure:
    figure = Figure(figsize=(style.DOUBLE_COLUMN, 4.6), layout="constrained")
    rows = rows[~((rows["control"] == "published") & (rows["paths"] != "20"))]
    above, below = figure.subplots(2, 3, sharex=True, sharey="row")
    for axes, of_task in _panels(above, rows):
        for control, look in CONTROLS.items():
            curve = panels.select(of_task, control=control)
            _spread(axes, curve, look.color, bars=False)
            axes.plot(curve["length"], curve["accuracy_mean"], **look.line())
        _levels(axes, of_task, "accuracy_mean")
    _remarks(list(above), [_remark(of_task) for _, of_task in _tasks(rows)])
    _accuracy_axis(figure)
    floor = _ratios(list(below), rows)
    curves = [*CONTROLS.values(), *LEVELS.values()]
    shown = rows[rows["control"].isin(list(CONTROLS))]
    _legend(figure, curves, shown, bars=False, floor=floor)
    return figure


def _panels(row: Iterable[Axes], rows: pd.DataFrame) -> list[tuple[Axes, pd.DataFrame]]:
    """Give each task its panel, with the number of seeds and epochs in its title."""
    result = []
    for axes, (task, name) in zip(row, TASKS.items(), strict=True):
        of_task = panels.select(rows, task=task)
        ours = of_task[of_task["control"].map(training) == "residual"]
        title = name
        if not ours.empty:
            seeds = int(ours["seeds"].max())
            unit = "seed" if seeds == 1 else "seeds"
            title += f" ({ours['epochs'].iloc[0]} epochs, {seeds} {unit})"
        axes.set_title(title)
        panels.layer_axis(axes, _DEPTH)
        result.append((axes, of_task))
    return result


def _accuracy_axis(figure: Figure) -> None:
    first = figure.axes[0]
    first.set_ylim(0, 1.02)
    first.set_ylabel("accuracy of tokens")


def _levels(axes: Axes, rows: pd.DataFrame, column: str) -> None:
    for control, look in LEVELS.items():
        for value in panels.select(rows, control=control)[column].dropna():
            line = {name: x for name, x in look.line().items() if name != "marker"}
            axes.axhline(value, **line | {"linewidth": 0.9, "zorder": 1})


def _spread(axes: Axes, curve: pd.DataFrame, color: str, *, bars: bool = True) -> None:
    """Draw the spread over seeds as a band, or that over draws as bars where there is one seed."""
    mean = curve["accuracy_mean"]
    if curve["std_seeds"].notna().any():
        low, high = mean - curve["std_seeds"], mean + curve["std_seeds"]
        panels.band(axes, curve["length"], low, high, color)
    elif bars and curve["std_draws"].notna().any():
        look: dict[str, Any] = {"ecolor": color, "elinewidth": 0.7, "capsize": 1.8, "capthick": 0.7}
        axes.errorbar(curve["length"], mean, curve["std_draws"].fillna(0), fmt="none", **look)


def _remark(rows: pd.DataFrame) -> str:
    """Say in two lines at most what was not measured, and what had other epochs than the title."""
    if rows.empty:
        return f"{panels.NOT_MEASURED}: {MEASURE}"
    found = rows[rows["length"].notna()].groupby("control")["epochs"].first()
    usual = rows.loc[rows["control"].map(training) == "residual", "epochs"].unique()
    lines = []
    other = [name for name in found.index if list(usual) and found[name] != usual[0]]
    if other:
        lines.append("; ".join(f"{style.CONTROLS[name]}: {found[name]} epochs" for name in other))
    absent = [name for control, name in style.CONTROLS.items() if control not in found.index]
    if absent:
        lines.append(f"not measured here: {', '.join(absent)}")
    return "\n".join(lines)


def _remarks(row: list[Axes], remarks: list[str]) -> None:
    """Write each panel's remark between it and its title, with no more room than they need."""
    lines = max(remark.count("\n") + 1 if remark else 0 for remark in remarks)
    for axes, remark in zip(row, remarks, strict=True):
        if remark:
            panels.note(axes, remark)
    for axes in row:
        axes.set_title(axes.get_title(), pad=6 + 1.4 * style.SMALL_TEXT_SIZE * lines)


def _ratios(row: list[Axes], rows: pd.DataFrame) -> bool:
    """Draw the residual ratios below the accuracies; return whether the floor is to be seen."""
    floor = precision_floor(_PRECISION)
    drawn = rows["residual_ratio"]
    lowest, highest = drawn[drawn > 0].min(), drawn.max()
    low, high = (max(panels.RATIO_LIMITS[0], lowest / 2), 2 * highest) if highest > 0 else (0.1, 1)
    for axes, (_, of_task) in zip(row, _tasks(rows), strict=True):
        if low < floor:
            panels.log_axis(axes, low, high, precision=_PRECISION)
        else:
            axes.set_yscale("log")
            axes.set_ylim(low, high)
        for control, look in CONTROLS.items():
            curve = panels.select(of_task, control=control)
            values = curve["residual_ratio"].clip(lower=low)
            line = look.line() | {"markevery": (_FIRST_MARKER.get(control, 0), 2)}
            panels.fading_line(axes, curve["length"], values, line, floor=floor)
        _levels(axes, of_task, "residual_ratio")
        axes.set_xlabel("path length")
    row[0].set_ylabel(f"{panels.RATIO}\n({panels.CENTRE})")
    return bool(low < floor)


def _tasks(rows: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    return [(task, panels.select(rows, task=task)) for task in TASKS]


def _legend(
    figure: Figure,
    curves: list[Curve],
    shown: pd.DataFrame,
    *,
    bars: bool = True,
    floor: bool = False,
) -> None:
    handles: list[Line2D | Patch] = [Line2D([], [], **curve.line()) for curve in curves]
    if (shown["seeds"] > 1).any():
        handles.append(panels.band_handle("one s.d., training seeds"))
    if bars and (shown["seeds"] == 1).any():
        look: dict[str, Any] = {"linestyle": "", "marker": "|", "markersize": 8, "color": "#3A3A3A"}
        handles.append(Line2D([], [], label="one s.d., draws of paths (one seed)", **look))
    if floor:
        handles.append(panels.floor_handle(_PRECISION))
    figure.legend(handles=handles, loc="outside lower center", ncols=3 if bars else 4)
