"""Figure 6: how close products of attention matrices come to rank one as paths get longer.

A box holds the middle half of the pairs of path and sequence of all seeds, its whiskers the middle
nine tenths; the published boxes are drawn between ours.
"""

from math import ceil
from typing import TYPE_CHECKING, Any

import pandas as pd

from rankcollapse.chained_tables import (
    LAYERS,
    PUBLISHED_CHECKPOINT,
    QUARTILES,
    read_published,
    read_summary,
)
from rankcollapse.errors import RankCollapseError
from rankcollapse.figures import panels, style
from rankcollapse.precision import EPS, precision_floor
from rankcollapse.vocabulary import READINGS, require_known

if TYPE_CHECKING:  # the report reads the table, and draws nothing
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

READS = {"chained": read_summary, "published_chained": read_published}
LABELS = {
    "distance": r"$\|P - \mathrm{rank}_1(P)\|_{1,\infty} \, / \, \|P\|_{1,\infty}$",
    "dobrushin": r"Dobrushin coefficient $\tau(P)$",
}
PUBLISHED = "published: median and quartiles of 100 pairs"

_COLORS = {"as-published": "#2F7FB8", "as-described": "#E0873A"}
_SIDES = {
    "as-published": "as published: earliest layer on the left",
    "as-described": "as described: latest on the left",
}
_OFFSETS = {"as-published": -0.27, "as-described": 0.27}
_WIDTH = 0.25
_COLUMNS = 2
_FADED = 0.35
_KEY = ["checkpoint", "weights", "layers", "reading", "measure", "depth"]


def table(summary: pd.DataFrame, published: pd.DataFrame, *, layers: str = "any") -> pd.DataFrame:
    """Return the numbers of Figure 6.

    Args:
        summary: `chained_tables.SUMMARY_COLUMNS`.
        published: depth, weights, q1, median, q3 of the published boxes of BERT.
        layers: which layers a path passes, "any" or "first".

    Returns:
        A row for each box, measured or published: `SUMMARY_COLUMNS`, published_q1,
        published_median, published_q3. A published box stands beside ours as published.

    Raises:
        ValueError: the rule of the layers is unknown.
    """
    require_known("layers", layers, LAYERS)
    names = {name: f"published_{name}" for name in QUARTILES}
    boxes = published.rename(columns=names).assign(
        checkpoint=PUBLISHED_CHECKPOINT, layers=layers, reading=READINGS[0], measure="distance"
    )
    rows = panels.select(summary, layers=layers).merge(boxes, on=_KEY, how="outer")
    counts = ["seeds", "pairs", "below_floor"]
    rows[counts] = rows[counts].fillna(0).astype(int)
    # in_order keeps the depths as they are, within a measure.
    return panels.in_order(rows.sort_values("depth"))[[*summary.columns, *names.values()]]


def draw(
    summary: pd.DataFrame, published: pd.DataFrame, *, layers: str = "any"
) -> dict[str, "Figure"]:
    """Draw Figure 6, a panel for each model.

    Differs from the paper: float64, several seeds, both orders, more models.

    Args:
        summary: `chained_tables.SUMMARY_COLUMNS`.
        published: depth, weights, q1, median, q3 of the published boxes of BERT.
        layers: which layers a path passes, "any" or "first".

    Returns:
        Two pages: "" with the distance to rank one, "dobrushin" with the coefficient.

    Raises:
        RankCollapseError: no model was measured with that rule.
        ValueError: the rule of the layers is unknown.

    Source: Dong et al. 2021, reference notebook.
    """
    rows = table(summary, published, layers=layers)
    rows = rows[rows.groupby(["checkpoint", "weights"])["pairs"].transform("sum") > 0]
    if rows.empty:
        raise RankCollapseError(
            f"figure 6: no attention was chained with the layers {layers!r}; run `make reproduce`"
        )
    return {
        "": _page(panels.select(rows, measure="distance"), "distance"),
        "dobrushin": _page(panels.select(rows, measure="dobrushin"), "dobrushin"),
    }


@style.look()
def _page(rows: pd.DataFrame, measure: str) -> "Figure":
    from matplotlib.figure import Figure

    networks = [group for _, group in rows.groupby(["checkpoint", "weights"], sort=False)]
    lines, columns = ceil(len(networks) / _COLUMNS), min(_COLUMNS, len(networks))
    size = (style.DOUBLE_COLUMN * columns / _COLUMNS, 0.8 + 2.2 * lines)
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(lines, columns, squeeze=False).ravel()
    for axes in grid[len(networks) :]:
        axes.remove()
    for axes, network in zip(grid, networks, strict=False):
        _panel(axes, network)
    for axes in grid[max(0, len(networks) - columns) : len(networks)]:
        axes.set_xlabel("depth: matrices multiplied")
    figure.supylabel(LABELS[measure], fontsize=style.TEXT_SIZE)
    figure.legend(handles=_legend(rows), loc="outside lower center", ncols=2)
    return figure


def _panel(axes: "Axes", rows: pd.DataFrame) -> None:
    network = rows.iloc[0]
    deepest = int(rows["depth"].max())
    values = rows[["p05", "published_q1"]].min().min()
    panels.log_axis(axes, max(values, EPS["float64"]) / 3, 3.0, precision="float64")
    for reading in READINGS:
        _boxes(axes, panels.select(rows, reading=reading).dropna(subset="median"), reading)
    _published(axes, rows.dropna(subset="published_median"))
    axes.set_xlim(0.4, deepest + 0.6)
    axes.set_xticks(range(1, deepest + 1), [str(depth) for depth in range(1, deepest + 1)])
    axes.tick_params(axis="x", length=0)
    seeds = rows["seeds"].max()
    pairs = f"{rows['pairs'].max():,} pairs" + (f", {seeds} seeds" if seeds > 1 else "")
    name = f"{style.label(network['checkpoint'])} {panels.WEIGHTS[network['weights']]}"
    axes.set_title(f"{name}  ({pairs})")


def _boxes(axes: "Axes", rows: pd.DataFrame, reading: str) -> None:
    names = {"p05": "whislo", "q1": "q1", "median": "med", "q3": "q3", "p95": "whishi"}
    stats = rows[list(names)].clip(lower=EPS["float64"] / 3).rename(columns=names)
    color = _COLORS[reading]
    line = {"color": color, "linewidth": 0.7}
    axes.bxp(
        [dict(zip(names.values(), box, strict=True)) for box in stats.to_numpy()],
        positions=(rows["depth"] + _OFFSETS[reading]).tolist(),
        widths=_WIDTH,
        showfliers=False,
        showcaps=False,
        patch_artist=True,
        manage_ticks=False,
        boxprops={"facecolor": color, "alpha": 0.55, "linewidth": 0, "label": reading},
        medianprops={"color": "black", "linewidth": 0.9},
        whiskerprops=line,
    )


def _published(axes: "Axes", rows: pd.DataFrame) -> None:
    floor = precision_floor("float32")
    for compared, boxes in rows.groupby(rows["published_q1"] >= floor):
        middle = boxes["published_median"]
        ends = [middle - boxes["published_q1"], boxes["published_q3"] - middle]
        alpha = 1.0 if compared else _FADED
        axes.errorbar(boxes["depth"], middle, yerr=ends, alpha=alpha, **_published_look())
    if not rows.empty:
        axes.axhline(floor, color=style.MUTED, linewidth=0.7, linestyle=":", zorder=0)


def _published_look() -> dict[str, Any]:
    return {
        "color": "black",
        "linestyle": "",
        "elinewidth": 1.0,
        "capsize": 1.6,
        "marker": "D",
        "markersize": 2.6,
        "markerfacecolor": "white",
        "zorder": 4,
        "label": PUBLISHED,
    }


def _legend(rows: pd.DataFrame) -> list[Any]:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Any] = [
        Patch(color=_COLORS[reading], alpha=0.55, linewidth=0, label=_SIDES[reading])
        for reading in READINGS
    ]
    if rows["published_median"].notna().any():
        look = _published_look()
        marker = {name: look[name] for name in ("color", "marker", "markersize", "label")}
        handles.append(Line2D([], [], linewidth=1.0, markerfacecolor="white", **marker))
        label = "float32 round-off: published boxes that reach below are faded"
        handles.append(Line2D([], [], color=style.MUTED, linewidth=0.7, linestyle=":", label=label))
    if (rows["below_floor"] > 0).any():
        handles.append(panels.floor_handle("float64"))
    return handles
