"""What is proven of skips, LayerNorms and MLPs, beside what they do.

A column for each model. Above: what a skip leaves of the largest distance of two tokens, and the
limits that Dobrushin's coefficients prove; below: how far the transformer's norms stretch that
distance and its MLPs the residual, and the limits.
"""

from functools import partial

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from rankcollapse.bound_tables import LEAST, MOST, PIECE_COLUMNS
from rankcollapse.errors import RankCollapseError
from rankcollapse.figures import panels, style
from rankcollapse.figures.style import Curve
from rankcollapse.tables import read_csv

READS = {"bound_pieces": partial(read_csv, columns=PIECE_COLUMNS)}
SKIPS = {
    "transformer": Curve("skip, transformer", "#1D2142", "-", "D"),
    "san_skip": Curve("skip, SAN + skip", "#2B9CB3", (0, (4.0, 1.2, 1.0, 1.2, 1.0, 1.2)), "s"),
}
OTHERS = {
    "attention norm": Curve("norm after attention", "#E0873A", "-", "^"),
    "mlp": Curve("MLP", style.ACCENT, "-", "o"),
    "mlp norm": Curve("norm after MLP", "#8E2C6B", "-", "v"),
}
PROVEN = "proven limits of the skip (transformer)"
LIMIT = "proven limit from above"
_MODEL = ["checkpoint", "weights"]
_LEAST_SHARE = -2.0  # log10, the bottom of the axis of the skips
_SHADE = 0.16


def table(bound_pieces: pd.DataFrame) -> pd.DataFrame:
    """Return the numbers of the figure.

    Args:
        bound_pieces: `bound_tables.PIECE_COLUMNS`.

    Returns:
        checkpoint, weights, variant, layer, piece, side, measured_log10, bound_log10 (means over
        the seeds that have one), margin (the least), seeds.
    """
    keys = [*_MODEL, "variant", "layer", "piece", "side"]
    found = bound_pieces.groupby(keys, sort=False).agg(
        measured_log10=("measured_log10", "mean"),
        bound_log10=("bound_log10", "mean"),
        margin=("margin", "min"),
        seeds=("bound_log10", "size"),
    )
    return panels.in_order(found.reset_index())


@style.look()
def draw(bound_pieces: pd.DataFrame) -> Figure:
    """Draw what each piece does and what is proven of it, a column for each model.

    Args:
        bound_pieces: `bound_tables.PIECE_COLUMNS`.

    Raises:
        RankCollapseError: no model's pieces were measured.
    """
    rows = table(bound_pieces)
    if rows.empty:
        raise RankCollapseError("pieces: none were measured; run `make reproduce`")
    models = [(names, of_model) for names, of_model in rows.groupby(_MODEL, sort=False)]
    width = style.DOUBLE_COLUMN * max(1.0, len(models) / 5)
    figure = Figure(figsize=(width, 3.9), layout="constrained")
    above, below = figure.subplots(2, len(models), sharex="col", sharey="row", squeeze=False)
    for column, ((checkpoint, weights), of_model) in enumerate(models):
        _skips(above[column], of_model)
        _others(below[column], panels.select(of_model, variant="transformer", side=MOST))
        above[column].set_title(f"{style.label(str(checkpoint))}\n{panels.WEIGHTS[str(weights)]}")
        below[column].set_xlabel("layer")
        below[column].xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    above[0].set_ylabel(r"$\log_{10}$ of after / before")
    above[0].set_ylim(_LEAST_SHARE, 0.1 + rows.loc[rows["piece"] == "skip", "bound_log10"].max())
    below[0].set_ylabel(r"$\log_{10}$ of after / before")
    figure.legend(handles=_handles(), loc="outside lower center", ncols=4)
    return figure


def _skips(axes: Axes, rows: pd.DataFrame) -> None:
    axes.axhline(0, color=style.MUTED, linewidth=0.6, zorder=0)
    skips = panels.select(rows, piece="skip", variant="transformer")
    least, most = (panels.select(skips, side=side) for side in (LEAST, MOST))
    low = least["bound_log10"].clip(lower=_LEAST_SHARE)
    axes.fill_between(
        *(least["layer"], low, most["bound_log10"]), color=style.MUTED, alpha=_SHADE, linewidth=0
    )
    for name, look in SKIPS.items():
        curve = panels.select(rows, piece="skip", variant=name, side=MOST)
        axes.plot(curve["layer"], curve["measured_log10"], **look.line())


def _others(axes: Axes, rows: pd.DataFrame) -> None:
    axes.axhline(0, color=style.MUTED, linewidth=0.6, zorder=0)
    for name, look in OTHERS.items():
        curve = panels.select(rows, piece=name)
        axes.plot(curve["layer"], curve["measured_log10"], **look.line())
        limit = look.line() | {"linestyle": (0, (1.0, 1.2)), "marker": "", "label": LIMIT}
        axes.plot(curve["layer"], curve["bound_log10"], **limit)


def _handles() -> list[Line2D | Patch]:
    curves = [Line2D([], [], **look.line()) for look in (*SKIPS.values(), *OTHERS.values())]
    band = Patch(color=style.MUTED, alpha=_SHADE, linewidth=0, label=PROVEN)
    dots = Line2D([], [], color="black", linestyle=(0, (1.0, 1.2)), label=LIMIT)
    return [*curves[:2], band, *curves[2:], dots]
