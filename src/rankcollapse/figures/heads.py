"""Which attention heads carry the paths of each length, in whole transformers.

A row for each model, a column for each length: the signed share of what passes a head in the
residual of the last state's term of that length. A path of length k passes k heads, so the shares
of a panel sum to k, biases aside.
"""

from functools import partial
from typing import TYPE_CHECKING

import pandas as pd

from rankcollapse.errors import RankCollapseError
from rankcollapse.figures import panels, style
from rankcollapse.path_tables import HEAD_COLUMNS
from rankcollapse.tables import read_csv

if TYPE_CHECKING:  # the report reads the numbers too, and draws nothing
    from matplotlib.figure import Figure

READS = {"heads": partial(read_csv, columns=HEAD_COLUMNS)}
LENGTHS = (1, 2, 3, 4)
_MODEL = ["checkpoint", "weights"]


def table(heads: pd.DataFrame) -> pd.DataFrame:
    """Return the numbers of the figure.

    Args:
        heads: `path_tables.HEAD_COLUMNS`.

    Returns:
        checkpoint, weights, layer, head, length, share (of the transformer, mean over the seeds),
        seeds.
    """
    rows = heads[(heads["variant"] == "transformer") & heads["length"].isin(LENGTHS)]
    keys = [*_MODEL, "layer", "head", "length"]
    means = rows.groupby(keys, sort=False).agg(share=("share", "mean"), seeds=("share", "size"))
    return panels.in_order(means.reset_index())


@style.look()
def draw(heads: pd.DataFrame) -> "Figure":
    """Draw a map of layers and heads for each model and length.

    Args:
        heads: `path_tables.HEAD_COLUMNS`.

    Raises:
        RankCollapseError: no model's heads were measured.
    """
    from matplotlib.colors import TwoSlopeNorm
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    rows = table(heads)
    if rows.empty:
        raise RankCollapseError("heads: none were measured; run `make reproduce`")
    models = [(names, of_model) for names, of_model in rows.groupby(_MODEL, sort=False)]
    figure = Figure(figsize=(style.DOUBLE_COLUMN, 0.5 + 1.75 * len(models)), layout="constrained")
    lines = figure.subplots(len(models), len(LENGTHS), squeeze=False, sharey="row")
    for line, ((checkpoint, weights), of_model) in zip(lines, models, strict=True):
        drawn = []
        largest = float(of_model["share"].abs().max()) or 1.0
        scale = TwoSlopeNorm(0, -largest, largest)
        for axes, length in zip(line, LENGTHS, strict=True):
            found = of_model[of_model["length"] == length]
            if found.empty:  # a network of fewer layers
                axes.remove()
                continue
            shares = found.pivot(index="layer", columns="head", values="share")
            depth, count = shares.shape
            extent = (-0.5, count - 0.5, 0.5, depth + 0.5)
            picture = axes.imshow(
                shares, origin="lower", aspect="auto", cmap="RdBu_r", norm=scale, extent=extent
            )
            drawn.append(axes)
            axes.set_title(f"length {length}")
            axes.set_xlabel("head")
            axes.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
            axes.yaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
        name = f"{style.label(str(checkpoint))}, {panels.WEIGHTS[str(weights)]}"
        line[0].set_ylabel(f"{name}\nlayer")
        figure.colorbar(picture, ax=drawn, label="share of the residual", pad=0.01)
    return figure
