"""Figure 2: the residual against the layer, with and without skip connections and MLPs.

Our curve is the mean over seeds and texts, its band one standard deviation of both together;
the published curve lies dashed on top.
"""

from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from rankcollapse.errors import RankCollapseError
from rankcollapse.figures import panels, style
from rankcollapse.precision import precision_floor
from rankcollapse.published import read_figure2
from rankcollapse.tables import read_curves

READS = {"curves": read_curves, "published": read_figure2}
_KEY = ["checkpoint", "weights", "variant", "layer"]
_PRECISION = "float32"
_PUBLISHED: dict[str, Any] = {
    "color": "black",
    "linestyle": "--",
    "linewidth": 0.7,
    "markerfacecolor": "white",
    "markeredgewidth": 0.8,
    "zorder": 4,
}
# Curves that coincide take turns: each marks other layers, and the published ones the odd layers.
_FIRST_MARKER = {"san": 0, "san_mlp": 2, "san_skip": 0, "transformer": 2}


def table(curves: pd.DataFrame, published: pd.DataFrame, *, text: str = "wikibio") -> pd.DataFrame:
    """Return the numbers of Figure 2.

    Args:
        curves: the columns of `tables.CURVE_COLUMNS`.
        published: model, weights, variant, layer, mean, std of the published curves.
        text: the text whose curves are taken.

    Returns:
        One row for each point, measured or published: checkpoint, weights, variant, layer; mean
        and std over seeds and texts (`panels.over_seeds`), seeds; published_mean, published_std.
    """
    chosen = panels.select(
        curves,
        measure="composite_ratio",
        reading="as-published",
        text=text,
        precision=_PRECISION,
    )
    measured = panels.over_seeds(chosen)[[*_KEY, "mean", "std", "seeds"]]
    names = {"model": "checkpoint", "mean": "published_mean", "std": "published_std"}
    rows = measured.merge(published.rename(columns=names), on=_KEY, how="outer")
    rows["seeds"] = rows["seeds"].fillna(0).astype(int)
    return panels.in_order(rows)


def draw(
    curves: pd.DataFrame,
    published: pd.DataFrame,
    *,
    text: str = "wikibio",
    measure_command: str = "make paper",
) -> dict[str, Figure]:
    """Draw Figure 2: a column for each model, at initialisation above, pretrained below.

    Differs from the paper: the mean of several seeds, their spread in the band, more models.

    Args:
        curves: the columns of `tables.CURVE_COLUMNS`.
        published: model, weights, variant, layer, mean, std of the published curves.
        text: the text whose curves are drawn.
        measure_command: what measures the panels that have only a published curve.

    Returns:
        Two pages: "" with a linear axis, "log" with a logarithmic one, which shows the floor of
        float32 and fades what lies below it.

    Raises:
        RankCollapseError: there is neither a measured nor a published curve.

    Source: Dong et al. 2021, figure 2.
    """
    rows = table(curves, published, text=text)
    if rows.empty:
        raise RankCollapseError(
            f"figure 2: no curve as published in {_PRECISION} on text {text!r}; measure one"
        )
    return {
        "": _page(rows, log=False, command=measure_command),
        "log": _page(rows, log=True, command=measure_command),
    }


@style.look()
def _page(rows: pd.DataFrame, *, log: bool, command: str) -> Figure:
    figure = Figure(figsize=(panels.width(rows), 4.0), layout="constrained")
    top = max(1.05, (rows["mean"] + rows["std"]).max(), rows["published_mean"].max())
    for axes, curves in panels.grid(figure, rows, panels.WEIGHTS):
        if log:
            panels.log_axis(axes, *panels.RATIO_LIMITS, precision=_PRECISION)
        else:
            axes.set_ylim(-0.03 * top, 1.03 * top)
        _panel(axes, curves, floor=precision_floor(_PRECISION) if log else 0.0)
        if curves["mean"].isna().all():
            remedy = "" if curves.empty else f":\n{command}"
            panels.note(axes, panels.NOT_MEASURED + remedy)
    figure.supylabel(f"{panels.RATIO}   ({panels.CENTRE})", fontsize=style.TEXT_SIZE)
    figure.legend(handles=_legend(log), loc="outside lower center", ncols=4)
    return figure


def _panel(axes: Axes, rows: pd.DataFrame, *, floor: float) -> None:
    for variant in style.VARIANTS:
        curve = panels.select(rows, variant=variant)
        if curve["mean"].notna().any():
            _draw_measured(axes, curve, variant, floor)
        if curve["published_mean"].notna().any():
            _draw_published(axes, curve, variant, floor)


def _draw_measured(axes: Axes, curve: pd.DataFrame, variant: str, floor: float) -> None:
    look = style.variant(variant)
    mean = curve["mean"].where(curve["mean"] >= floor)
    low, high = (mean - curve["std"]).clip(lower=floor), mean + curve["std"]
    panels.band(axes, curve["layer"], low, high, look.color)
    line = look.line() | {"markevery": (_FIRST_MARKER[variant], 4)}
    panels.fading_line(axes, curve["layer"], curve["mean"], line, floor=floor)


def _draw_published(axes: Axes, curve: pd.DataFrame, variant: str, floor: float) -> None:
    look = style.variant(variant)
    line = _PUBLISHED | {
        "label": f"{look.label}, published",
        "marker": look.marker,
        "markeredgecolor": look.color,
        "markevery": (_FIRST_MARKER[variant] + 1, 4),
    }
    panels.fading_line(axes, curve["layer"], curve["published_mean"], line, floor=floor)


def _legend(log: bool) -> list[Line2D | Patch]:
    handles: list[Line2D | Patch] = [
        Line2D([], [], **curve.line()) for curve in style.VARIANTS.values()
    ]
    handles.append(Line2D([], [], marker="o", label="published", **_PUBLISHED))
    handles.append(panels.band_handle("one s.d., seeds and texts"))
    if log:
        handles.append(panels.floor_handle(_PRECISION))
    return handles
