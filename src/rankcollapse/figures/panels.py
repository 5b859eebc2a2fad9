"""What the figures of curves share: which curves to draw, and how a panel of them looks."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from rankcollapse.figures import style
from rankcollapse.precision import precision_floor
from rankcollapse.rates import CUBIC, EXPONENTIAL
from rankcollapse.tables import KEY

if TYPE_CHECKING:  # the report chooses curves too, and draws nothing
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure
    from matplotlib.patches import Patch

RATIO = r"$\|\mathrm{res}(X)\|_{1,\infty} \, / \, \|X\|_{1,\infty}$"
CENTRE = "centre: column mean"
WEIGHTS = {"init": "at initialisation", "pretrained": "pretrained"}
RATIO_LIMITS = (3e-8, 3.0)  # of a logarithmic axis in float32
NOT_MEASURED = "not measured here"
_FADED = 0.3
_SHADE = 0.18
_BAND = 0.25


def select(curves: pd.DataFrame, **values: str) -> pd.DataFrame:
    """Return the rows whose columns have these values: `measure="rate", text="plain"`."""
    chosen = pd.Series(True, index=curves.index)
    for column, value in values.items():
        chosen &= curves[column] == value
    return curves[chosen]


def over_seeds(curves: pd.DataFrame) -> pd.DataFrame:
    """Average each curve over its seeds.

    Args:
        curves: the columns of `tables.CURVE_COLUMNS`.

    Returns:
        One row for each curve, measure and layer: `mean`; `std`, the spread over seeds and
        sequences together (the variance of the seeds' means plus the mean of their variances over
        the sequences; a single seed has only the latter); how many `seeds`; how many sequences
        are `below_floor` or `missing`.
    """
    keys = [*(name for name in KEY if name != "seed"), "measure", "layer"]
    squared = curves.assign(variance=curves["std"].astype(float) ** 2)
    result = squared.groupby(keys, sort=False).agg(
        mean=("mean", "mean"),
        between=("mean", "var"),
        within=("variance", "mean"),
        seeds=("mean", "size"),
        below_floor=("below_floor", "sum"),
        missing=("missing", "sum"),
    )
    result["std"] = np.sqrt(result["between"].fillna(0) + result["within"].fillna(0))
    return result.drop(columns=["between", "within"]).reset_index()


def in_order(rows: pd.DataFrame) -> pd.DataFrame:
    """Sort rows as the figures show them: checkpoint, weights, variant, what else names a curve."""
    ranks = {
        "checkpoint": checkpoints(rows["checkpoint"]),
        "weights": list(WEIGHTS),
        "variant": list(style.VARIANTS),
    }

    def rank(column: pd.Series) -> pd.Series:
        names = ranks.get(str(column.name))
        return column.map(names.index) if names else column

    by = [*ranks, "reading", "precision", "measure", "layer"]
    by = [name for name in by if name in rows.columns]
    return rows.sort_values(by, key=rank).reset_index(drop=True)


def checkpoints(names: Iterable[str]) -> list[str]:
    """Return each checkpoint once: those of the paper first, ones that a user brings last."""
    found = set(names)
    known = [name for name in style.MODELS if name in found]
    return known + sorted(found - set(known))


def width(rows: pd.DataFrame) -> float:
    """Return the width in inches of a grid: two text columns, or more for many checkpoints."""
    return style.DOUBLE_COLUMN * max(1.0, rows["checkpoint"].nunique() / len(style.MODELS))


def grid(
    parent: "Figure | SubFigure", rows: pd.DataFrame, weights: Iterable[str]
) -> list[tuple["Axes", pd.DataFrame]]:
    """Lay out panels: a column for each checkpoint of the rows, a row for each of the weights.

    Args:
        parent: what to draw in.
        rows: at least checkpoint, weights and layer.
        weights: "init", "pretrained" or both.

    Returns:
        Each panel and its rows, which may be none.
    """
    lines, columns = list(weights), checkpoints(rows["checkpoint"])
    axes = parent.subplots(len(lines), len(columns), sharey=True, squeeze=False)
    panels = []
    for row, line in zip(axes, lines, strict=True):
        row[0].set_ylabel(WEIGHTS[line])
        for panel, checkpoint in zip(row, columns, strict=True):
            of_checkpoint = select(rows, checkpoint=checkpoint)
            layer_axis(panel, int(of_checkpoint["layer"].max()))
            panels.append((panel, select(of_checkpoint, weights=line)))
    for top, bottom, checkpoint in zip(axes[0], axes[-1], columns, strict=True):
        top.set_title(style.label(checkpoint))
        bottom.set_xlabel("layer")
    return panels


def layer_axis(axes: "Axes", depth: int) -> None:
    """Let the x axis run over the layers from 0, the embedding, to `depth`."""
    from matplotlib.ticker import MaxNLocator

    margin = 0.03 * max(depth, 1)
    axes.set_xlim(-margin, depth + margin)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=4, integer=True, steps=[1, 2, 4, 10]))


def log_axis(axes: "Axes", low: float, high: float, *, precision: str) -> None:
    """Let the y axis be logarithmic, and shade what lies below the floor of the precision."""
    from matplotlib.ticker import LogLocator, NullLocator

    axes.set_yscale("log")
    axes.set_ylim(low, high)
    axes.yaxis.set_major_locator(LogLocator(numticks=5))
    axes.yaxis.set_minor_locator(NullLocator())
    floor = precision_floor(precision)
    axes.axhspan(low, floor, color=style.MUTED, alpha=_SHADE, linewidth=0, zorder=0)
    axes.axhline(floor, color=style.MUTED, linewidth=0.7, zorder=0, label="floor")


def rate_lines(axes: "Axes") -> None:
    """Mark the rates of a cubic and of an exponential collapse, in a panel with rates as y."""
    for name, rate, side in (("cubic", CUBIC, "bottom"), ("exponential", EXPONENTIAL, "top")):
        axes.axhline(rate, color=style.MUTED, linewidth=0.7, zorder=0, label=name)
        axes.annotate(
            name,
            (1, rate),
            xytext=(0, 1.5 if side == "bottom" else -1.5),
            xycoords=("axes fraction", "data"),
            textcoords="offset points",
            ha="right",
            va=side,
            fontsize=style.SMALL_TEXT_SIZE,
        )


def floor_handle(precision: str) -> "Patch":
    """Return the legend's entry for what `log_axis` shades."""
    from matplotlib.patches import Patch

    mantissa, exponent = f"{precision_floor(precision):.1e}".split("e")
    label = rf"{precision} round-off, below ${mantissa} \times 10^{{{int(exponent)}}}$"
    return Patch(color=style.MUTED, alpha=_SHADE, label=label)


def fading_line(
    axes: "Axes", layers: pd.Series, values: pd.Series, look: Mapping[str, Any], *, floor: float
) -> None:
    """Draw a curve that is faded where it is below the floor.

    Args:
        axes: where.
        layers: x.
        values: y.
        look: keyword arguments of `Axes.plot`.
        floor: a ratio, 0 to fade nothing.
    """
    if (values < floor).any():
        axes.plot(layers, values, **{**look, "alpha": _FADED, "label": "below floor"})
    axes.plot(layers, values.where(values >= floor), **look)


def band(axes: "Axes", layers: pd.Series, low: pd.Series, high: pd.Series, color: str) -> None:
    """Draw a spread as a band in a curve's colour."""
    axes.fill_between(layers, low, high, color=color, alpha=_BAND, linewidth=0)


def band_handle(label: str) -> "Patch":
    """Return the legend's entry for what `band` draws."""
    from matplotlib.patches import Patch

    return Patch(color=style.MUTED, alpha=_BAND, linewidth=0, label=label)


def note(axes: "Axes", text: str) -> None:
    """Write a remark of at most two lines above a panel, where it hides no curve.

    The titles of its row go above it.
    """
    axes.annotate(
        text,
        (0.5, 1),
        xytext=(0, 3),
        xycoords="axes fraction",
        textcoords="offset points",
        ha="center",
        va="bottom",
        fontsize=style.SMALL_TEXT_SIZE,
        fontstyle="italic",
    )
    top = axes.get_position().y1
    for other in axes.figure.axes:
        if other.get_position().y1 == top:
            other.set_title(other.get_title(), pad=6 + 3 * style.SMALL_TEXT_SIZE)
