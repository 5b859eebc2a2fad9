"""How far the text moves each curve: the same weights measured on two texts."""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from rankcollapse.errors import RankCollapseError
from rankcollapse.figures import panels, style
from rankcollapse.precision import precision_floor
from rankcollapse.tables import read_curves

READS = {"curves": read_curves}
_KEY = ["checkpoint", "weights", "variant", "layer"]
_PRECISION = "float32"
_FIRST_MARKER = {"san": 0, "san_mlp": 2, "san_skip": 1, "transformer": 3}


def table(curves: pd.DataFrame, *, text: str = "wikibio", other: str = "plain") -> pd.DataFrame:
    """Return how the composite ratio changes from one text to another.

    Args:
        curves: the columns of `tables.CURVE_COLUMNS`.
        text: the text that is the reference.
        other: the text that is compared with it.

    Returns:
        checkpoint, weights, variant, layer; seeds, those that have both texts; {text}_mean and
        {other}_mean over these seeds; difference, {other} minus {text}, the mean over the seeds;
        difference_low and difference_high, the least and the largest of one seed. No difference
        is given where both means are below the precision floor. As published, in float32.

    Raises:
        RankCollapseError: no checkpoint was measured on both texts.
    """
    chosen = panels.select(
        curves, measure="composite_ratio", reading="as-published", precision=_PRECISION
    )
    columns = [*_KEY, "seed", "mean"]
    reference = panels.select(chosen, text=text)[columns]
    pairs = reference.merge(panels.select(chosen, text=other)[columns], on=[*_KEY, "seed"])
    if pairs.empty:
        raise RankCollapseError(
            f"texts: no checkpoint was measured on both {text!r} and {other!r}; add the second text"
        )
    pairs["difference"] = pairs["mean_y"] - pairs["mean_x"]
    names = {"mean_x": f"{text}_mean", "mean_y": f"{other}_mean"}
    summary = pairs.groupby(_KEY, sort=False).agg(
        seeds=("difference", "size"),
        mean_x=("mean_x", "mean"),
        mean_y=("mean_y", "mean"),
        difference=("difference", "mean"),
        difference_low=("difference", "min"),
        difference_high=("difference", "max"),
    )
    round_off = summary[["mean_x", "mean_y"]].max(axis=1) < precision_floor(_PRECISION)
    summary.loc[round_off, ["difference", "difference_low", "difference_high"]] = float("nan")
    return panels.in_order(summary.rename(columns=names).reset_index())


@style.look()
def draw(curves: pd.DataFrame, *, text: str = "wikibio", other: str = "plain") -> dict[str, Figure]:
    """Draw how far another text moves each curve, paired seed by seed.

    Args:
        curves: the columns of `tables.CURVE_COLUMNS`.
        text: the text that is the reference.
        other: the text that is compared with it.

    Returns:
        One page: a panel for each checkpoint and weights; the mean difference over the seeds and,
        as a band, their range.

    Raises:
        RankCollapseError: no checkpoint was measured on both texts.
    """
    rows = table(curves, text=text, other=other)
    weights = [name for name in panels.WEIGHTS if name in set(rows["weights"])]
    size = (panels.width(rows), 1.1 + 1.4 * len(weights))
    figure = Figure(figsize=size, layout="constrained")
    for axes, of_panel in panels.grid(figure, rows, weights):
        axes.axhline(0, color=style.MUTED, linewidth=0.7, zorder=0, label="no difference")
        _panel(axes, of_panel)
        if of_panel.empty:
            panels.note(axes, panels.NOT_MEASURED)
    figure.supylabel(
        f"ratio on {other} minus ratio on {text}\n({panels.CENTRE})", fontsize=style.TEXT_SIZE
    )
    handles: list[Line2D | Patch] = [
        Line2D([], [], **curve.line()) for curve in style.VARIANTS.values()
    ]
    handles.append(panels.band_handle("range over seeds"))
    figure.legend(handles=handles, loc="outside lower center", ncols=5)
    return {"": figure}


def _panel(axes: Axes, rows: pd.DataFrame) -> None:
    for variant, look in style.VARIANTS.items():
        curve = panels.select(rows, variant=variant)
        low, high = curve["difference_low"], curve["difference_high"]
        panels.band(axes, curve["layer"], low, high, look.color)
        every = (_FIRST_MARKER[variant], 4)
        axes.plot(curve["layer"], curve["difference"], markevery=every, **look.line())
