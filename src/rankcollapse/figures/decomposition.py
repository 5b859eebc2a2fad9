"""Which path lengths exist and which matter: the exact terms of each length in whole models.

Above: the signed share of each length in the residual of the last state, beside its share in the
number of paths (Figure 5). Below: the composite norm of each term's residual.
"""

from functools import partial

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from rankcollapse.errors import RankCollapseError
from rankcollapse.figures import panels, style
from rankcollapse.figures.style import Curve
from rankcollapse.path_tables import DECOMPOSITION_COLUMNS
from rankcollapse.tables import read_csv

READS = {
    "decomposition": partial(read_csv, columns=DECOMPOSITION_COLUMNS),
    "mlp_source": partial(read_csv, columns=DECOMPOSITION_COLUMNS),
}
CURVES = {
    "transformer": Curve("transformer", style.ACCENT, "-", "o"),
    "source": Curve("transformer, MLPs as sources", "#E5B53D", (0, (1.0, 1.2)), "^"),
    "san_skip": Curve("SAN + skip", "#2B9CB3", (0, (4.0, 1.2, 1.0, 1.2)), "s"),
}
EXIST = Curve("share of all paths", "#1D2142", (0, (4.0, 2.0)), "")
_MODEL = ["checkpoint", "weights"]
_LOWEST = 1e-8  # of the residual's axis, relative to its top


def table(decomposition: pd.DataFrame, mlp_source: pd.DataFrame) -> pd.DataFrame:
    """Return the numbers of the figure: the last layer's terms, means and spread over the seeds.

    Args:
        decomposition: `path_tables.DECOMPOSITION_COLUMNS`.
        mlp_source: the same with the MLPs' outputs as sources of their own.

    Returns:
        checkpoint, weights, curve ("transformer", "source" or "san_skip"), length, share, residual
        (means over the seeds), share_std, seeds, share_of_paths.
    """
    both = [
        decomposition.assign(curve=decomposition["variant"]),
        mlp_source.assign(curve="source"),
    ]
    rows = pd.concat(both, ignore_index=True)
    last = rows.groupby(_MODEL)["layer"].transform("max")
    rows = rows[rows["layer"] == last]
    grouped = rows.groupby([*_MODEL, "curve", "length"], sort=False)
    means = grouped.agg(
        share=("share", "mean"),
        share_std=("share", "std"),
        residual=("residual", "mean"),
        seeds=("share", "size"),
        paths=("paths", "first"),
    ).reset_index()
    totals = means.groupby([*_MODEL, "curve"])["paths"].transform("sum")
    means["share_of_paths"] = means["paths"] / totals
    return panels.in_order(means.drop(columns="paths"))


@style.look()
def draw(decomposition: pd.DataFrame, mlp_source: pd.DataFrame) -> Figure:
    """Draw share and residual of each path length, a column for each model.

    Args:
        decomposition: `path_tables.DECOMPOSITION_COLUMNS`.
        mlp_source: the same with the MLPs' outputs as sources of their own.

    Raises:
        RankCollapseError: nothing was decomposed.
    """
    rows = table(decomposition, mlp_source)
    if rows.empty:
        raise RankCollapseError("decomposition: no model was decomposed; run `make reproduce`")
    models = [(name, of_model) for name, of_model in rows.groupby(_MODEL, sort=False)]
    width = style.DOUBLE_COLUMN * max(1.0, len(models) / 5)
    figure = Figure(figsize=(width, 3.6), layout="constrained")
    above, below = figure.subplots(2, len(models), sharex="col", sharey="row", squeeze=False)
    for column, ((checkpoint, weights), of_model) in enumerate(models):
        _shares(above[column], of_model)
        _residuals(below[column], of_model)
        above[column].set_title(f"{style.label(str(checkpoint))}\n{panels.WEIGHTS[str(weights)]}")
        below[column].set_xlabel("path length")
    above[0].set_ylabel("share of the residual")
    below[0].set_ylabel(r"$\|\mathrm{res}(X_k)\|_{1,\infty}$")
    top = float(rows["residual"].max())
    below[0].set_yscale("log")
    below[0].set_ylim(max(_LOWEST * top, float(rows["residual"].min()) / 3), 3 * top)
    handles = [Line2D([], [], **look.line()) for look in (*CURVES.values(), EXIST)]
    figure.legend(handles=handles, loc="outside lower center", ncols=4)
    return figure


def _shares(axes: Axes, rows: pd.DataFrame) -> None:
    axes.axhline(0, color=style.MUTED, linewidth=0.6, zorder=0)
    for name, look in CURVES.items():
        curve = rows[rows["curve"] == name]
        if curve["share_std"].notna().any():
            low, high = (curve["share"] + sign * curve["share_std"] for sign in (-1, 1))
            panels.band(axes, curve["length"], low, high, look.color)
        axes.plot(curve["length"], curve["share"], **look.line())
    exist = rows[rows["curve"] == rows["curve"].iloc[0]]
    axes.plot(exist["length"], exist["share_of_paths"], **EXIST.line())
    panels.layer_axis(axes, int(rows["length"].max()))


def _residuals(axes: Axes, rows: pd.DataFrame) -> None:
    for name, look in CURVES.items():
        curve = rows[rows["curve"] == name]
        axes.plot(curve["length"], curve["residual"], **look.line())
