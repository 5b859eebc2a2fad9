"""Width against depth: which path lengths trained networks of one size really use.

Used: the share of each length in the norm of the frozen terms, whose sum is the network's output.
Expected: the share of each length in the number of paths, as in Figure 5.
"""

from functools import partial
from math import ceil
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from rankcollapse.errors import RankCollapseError
from rankcollapse.figures import panels, style
from rankcollapse.figures.style import Curve
from rankcollapse.intervals import MINIMUM_SEEDS, mean_interval
from rankcollapse.tables import read_csv
from rankcollapse.task_tables import LENGTH_COLUMNS, SHAPE

if TYPE_CHECKING:  # the report takes the conclusion, and draws nothing
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

READS = {"lengths": partial(read_csv, columns=LENGTH_COLUMNS)}
USED = Curve("used by the trained network", style.ACCENT, "-", "o")
BINOMIAL = Curve("share of all paths", "#1D2142", (0, (4.0, 2.0)), "s")
_COLUMNS = 3
_BY_DEPTH = ["depth", "heads", "width"]


def table(lengths: pd.DataFrame) -> pd.DataFrame:
    """Return the numbers of the figure.

    Args:
        lengths: `task_tables.LENGTH_COLUMNS`, networks of equal parameter count.

    Returns:
        A row for each network and length, the shallowest network first: task, heads, depth, width,
        parameters, seeds; accuracy and accuracy_std over the seeds; length; share_used and
        share_used_std over the seeds; share_binomial.
    """
    grouped = lengths.groupby(["task", *SHAPE, "parameters", "length"], sort=False)
    rows = grouped.agg(
        seeds=("seed", "nunique"),
        accuracy_mean=("accuracy", "mean"),
        accuracy_std=("accuracy", "std"),
        share_used_mean=("share_used", "mean"),
        share_used_std=("share_used", "std"),
        share_binomial=("share_binomial", "first"),
    ).reset_index()
    return rows.sort_values([*_BY_DEPTH, "length"]).reset_index(drop=True)


@style.look()
def draw(lengths: pd.DataFrame) -> "Figure":
    """Draw the share of each path length, used and expected, a panel for each network.

    Args:
        lengths: `task_tables.LENGTH_COLUMNS`.

    Raises:
        RankCollapseError: no network was measured.
    """
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    rows = table(lengths)
    if rows.empty:
        raise RankCollapseError("width_depth: no network was measured; run `make reproduce`")
    networks = [group for _, group in rows.groupby(_BY_DEPTH)]
    count = len(networks)
    columns = count if count <= _COLUMNS else min(_COLUMNS, ceil(count / 2))
    size = (style.DOUBLE_COLUMN, 0.5 + 2.1 * ceil(count / columns))
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(ceil(count / columns), columns, sharey=True, squeeze=False).ravel()
    for axes in grid[count:]:
        axes.remove()
    for axes, network in zip(grid, networks, strict=False):
        _panel(axes, network)
    for axes in grid[max(0, count - columns) : count]:
        axes.set_xlabel("path length")
    for axes in grid[:count:columns]:
        axes.set_ylabel("share")
    grid[0].set_ylim(bottom=0)
    handles = [Line2D([], [], **look.line()) for look in (USED, BINOMIAL)]
    several = [panels.band_handle("one s.d., training seeds")] if rows["seeds"].max() > 1 else []
    figure.legend(handles=[*handles, *several], loc="outside lower center", ncols=3)
    return figure


def _panel(axes: "Axes", rows: pd.DataFrame) -> None:
    low, high = (rows["share_used_mean"] + sign * rows["share_used_std"] for sign in (-1, 1))
    panels.band(axes, rows["length"], low, high, USED.color)
    axes.plot(rows["length"], rows["share_binomial"], **BINOMIAL.line())
    axes.plot(rows["length"], rows["share_used_mean"], **USED.line())
    panels.layer_axis(axes, int(rows["depth"].iloc[0]))
    network = rows.iloc[0]
    accuracy = f"{network['accuracy_mean']:.2f}"
    if network["seeds"] > 1:
        accuracy += f" $\\pm$ {network['accuracy_std']:.2f}"
    heads = "1 head" if network["heads"] == 1 else f"{network['heads']} heads"
    shape = f"{heads}, {network['depth']} layers, width {network['width']}"
    seeds = f"{network['seeds']} {'seed' if network['seeds'] == 1 else 'seeds'}"
    size = f"{network['parameters']:,} parameters"
    title = f"{shape}\n{size}\naccuracy {accuracy} ({seeds})"
    axes.set_title(title, fontsize=style.SMALL_TEXT_SIZE)


def mean_lengths(lengths: pd.DataFrame) -> pd.Series:
    """Return, for each network and seed, the mean length used over that of all paths.

    Args:
        lengths: `task_tables.LENGTH_COLUMNS`.

    Returns:
        1 where the network uses the lengths as their number has it, less where it prefers short
        paths; indexed by depth, heads, width and seed.
    """
    weighted = lengths.assign(
        used=lengths["length"] * lengths["share_used"],
        expected=lengths["length"] * lengths["share_binomial"],
    )
    columns = ["used", "expected", "share_used", "share_binomial"]
    sums = weighted.groupby([*_BY_DEPTH, "seed"])[columns].sum()
    used = sums["used"] / sums["share_used"]
    return used / (sums["expected"] / sums["share_binomial"])


def conclusion(lengths: pd.DataFrame) -> str:
    """Say in one sentence whether deeper networks use shorter paths than their number has it.

    Compared are the shallowest and the deepest network (of several of one depth, the one with the
    fewest and the most heads), seed by seed: the mean length used over that of all paths.

    Args:
        lengths: `task_tables.LENGTH_COLUMNS`.
    """
    relative = mean_lengths(lengths)
    networks = sorted({tuple(key[:-1]) for key in relative.index})
    if len(networks) < 2:
        return "One network at most was measured, so width and depth cannot be compared."
    shallow, deep = (relative.loc[network] for network in (networks[0], networks[-1]))
    values = (deep - shallow).dropna().tolist()
    count = f"{len(values)} training seed{'s' * (len(values) != 1)}"
    change = (
        f"from {networks[0][0]} to {networks[-1][0]} layers, the mean path length that the network "
        f"uses goes from {shallow.mean():.2f} to {deep.mean():.2f} of the mean over all paths"
    )
    if len(values) < MINIMUM_SEEDS:
        return f"At equal size, {change} ({count}: no interval)."
    low, high = mean_interval(values)
    meaning = "no change is shown"
    if low > 0 or high < 0:
        preferred = "longer" if low > 0 else "shorter"
        meaning = f"deeper networks use relatively {preferred} paths"
    interval = f"{_signed(np.mean(values))}, 95 % interval {_signed(low)} to {_signed(high)}"
    return f"At equal size, {change} ({interval} over {count}): {meaning}."


def _signed(value: float | np.floating) -> str:
    return f"{value:+.2f}".replace("-", "−")
