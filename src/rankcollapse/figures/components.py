"""What stops the collapse: ratio against layer, a panel for each piece, and what is concluded."""

from functools import partial
from typing import TYPE_CHECKING, Any

import pandas as pd

from rankcollapse import component_claims, components
from rankcollapse.component_claims import CUBIC, EFFECTS, SAME, STEADY
from rankcollapse.components import CHANGED, CONDITIONS, FACTORIAL, FACTORS, name
from rankcollapse.errors import RankCollapseError
from rankcollapse.figures import panels, style
from rankcollapse.figures.style import Curve
from rankcollapse.path_tables import read_rows
from rankcollapse.tables import read_csv

if TYPE_CHECKING:  # the report takes the table, and draws nothing
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

READS = {
    "components": partial(read_rows, columns=components.COLUMNS),
    "component_claims": partial(read_csv, columns=component_claims.COLUMNS),
}
COLUMNS = ["condition", "factor", "level", "layer", "low", "median", "high", "seeds"]
LOWEST = 1e-30  # of the y axis
TITLES = {
    "skip": "skip, scale",
    "mlp": "MLP",
    "norm": "normalisation",
    "positions": "positions",
    "mask": "mask",
    "query_key": "query and key weights, scale",
    "value": "value weights, scale",
    "mlp_scale": "weights of an MLP, scale",
    "heads": "heads",
    "width": "features",
    "tokens": "tokens",
    "depth": "layers",
}
_PIECES = {  # in the page of effects
    "skip": "skip {}",
    "mlp": "MLP, {}",
    "norm": "{}",
    "positions": "{} positions",
    "mask": "{} mask",
    "query_key": "query-key × {}",
    "value": "value × {}",
    "mlp_scale": "MLP × {}",
    "heads": "heads: {}",
    "width": "features: {}",
    "tokens": "tokens: {}",
    "depth": "layers: {}",
}
_LEVELS = {
    "gelu": "GELU",
    "gelu_skip": "GELU, own skip",
    "layer_after": "LayerNorm after",
    "layer_before": "LayerNorm before",
    "rms_after": "RMSNorm after",
    "rms_before": "RMSNorm before",
    "window": "sliding window",
}
# The pages of curves and the network that each starts from.
PAGES = {
    "": "baseline",
    "post_norm": "post-norm",
    "skip": "skip",
    "pre_norm": "pre-norm with skip",
}
_BASE = Curve("", "#1D2142", "-", "o")  # the level of the network that is changed
_OTHERS = (
    Curve("", style.ACCENT, (0, (1.0, 1.2)), "s"),
    Curve("", "#E5A53D", (0, (4.0, 1.2, 1.0, 1.2)), "^"),
    Curve("", "#2B9CB3", (0, (7.0, 1.5)), "D"),
    Curve("", "#8E2C6B", (0, (4.0, 1.2, 1.0, 1.2, 1.0, 1.2)), "v"),
    Curve("", "#8DBB3A", (0, (2.5, 1.0)), "P"),
)
_COLUMNS = 3
_QUANTILES = (0.1, 0.5, 0.9)
_INVISIBLE = 1e-99  # stands for what is far below the axis, 0 too

_VERDICTS: dict[str, dict[str, Any]] = {
    "supported": {"color": "#1D2142", "marker": "o", "markerfacecolor": "#1D2142"},
    "not supported": {"color": style.MUTED, "marker": "D", "markerfacecolor": "white"},
    "opposite": {"color": style.ACCENT, "marker": "s", "markerfacecolor": "white"},
    "one seed": {"color": style.MUTED, "marker": "x"},
}
# The axes of the page of effects, from above, left and right: its rules and its limits.
_LEFT: dict[str, tuple[float, ...]] = {EFFECTS["stops"]: (STEADY,)}
_RIGHT: dict[str, tuple[float, ...]] = {
    EFFECTS["fast"]: (CUBIC,),
    EFFECTS["same rate"]: (-SAME, SAME),
    EFFECTS["later"]: (0.0,),
    EFFECTS["later on average"]: (0.0,),
}
_ROW = 0.135  # inches


def table(frame: pd.DataFrame, claims: pd.DataFrame) -> pd.DataFrame:
    """Return the numbers of the curves.

    Args:
        frame: `components.COLUMNS`.
        claims: `component_claims.COLUMNS`; a table of its own, not repeated.

    Returns:
        `COLUMNS`: median, 10 % and 90 % quantile of the ratio over the seeds, of each network in
        which one piece is changed.
    """
    rows = frame[frame["condition"] != FACTORIAL]
    grouped = rows.groupby(COLUMNS[:4], sort=False)["ratio"]
    low, median, high = (grouped.quantile(share) for share in _QUANTILES)
    found = pd.DataFrame({"low": low, "median": median, "high": high, "seeds": grouped.size()})
    return found.reset_index()[COLUMNS]


def draw(frame: pd.DataFrame, claims: pd.DataFrame) -> dict[str, "Figure"]:
    """Draw a page of curves for each network that is changed, and one of all effects.

    Args:
        frame: `components.COLUMNS`.
        claims: `component_claims.COLUMNS`.

    Raises:
        RankCollapseError: nothing was measured.
    """
    rows = table(frame, claims)
    if rows.empty or claims.empty:
        raise RankCollapseError("components: no network was measured; run `make reproduce`")
    pages = {
        page: _curves(rows[rows["condition"] == condition], condition)
        for page, condition in PAGES.items()
        if (rows["condition"] == condition).any()
    }
    return {**pages, "effects": _effects(claims)}


@style.look()
def _curves(rows: pd.DataFrame, condition: str) -> "Figure":
    from matplotlib.figure import Figure

    factors = CHANGED[condition]
    lines = -(-len(factors) // _COLUMNS)
    size = (style.DOUBLE_COLUMN, 0.6 + 2.0 * lines)
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(lines, _COLUMNS, sharey=True, squeeze=False)
    low = max(LOWEST, float(rows["low"].min()) / 3)
    for axes, factor in zip(grid.ravel(), factors, strict=False):
        _panel(axes, rows[rows["factor"] == factor], factor, condition)
        panels.log_axis(axes, low, 3, precision="float64")
    for axes in grid.ravel()[len(factors) :]:
        axes.remove()
    for axes in grid[:, 0]:
        axes.set_ylabel(panels.RATIO)
    for axes in grid.ravel()[max(0, len(factors) - _COLUMNS) : len(factors)]:
        axes.set_xlabel("layer")
    handles = [panels.band_handle("10 % to 90 % of the seeds, line: median")]
    handles[0].set_color(_BASE.color)
    if low < 1e-15:
        handles.append(panels.floor_handle("float64"))
        handles[-1].set_label("below the round-off of a plain float64 pass")
    figure.legend(handles=handles, loc="outside lower center", ncols=2)
    return figure


def _panel(axes: "Axes", rows: pd.DataFrame, factor: str, condition: str) -> None:
    from matplotlib.lines import Line2D

    base = getattr(CONDITIONS[condition], factor)
    others = iter(_OTHERS)
    handles = []
    for level in FACTORS[factor]:
        curve = rows[rows["level"] == name({factor: level})]
        look = (_BASE if level == base else next(others)).line() | {"label": _words(level)}
        shown = curve[["low", "median", "high"]].clip(lower=_INVISIBLE)
        panels.band(axes, curve["layer"], shown["low"], shown["high"], look["color"])
        marks = max(1, int(curve["layer"].max()) // 12)
        axes.plot(curve["layer"], shown["median"], **look, markevery=marks)
        handles.append(Line2D([], [], **look))
    panels.layer_axis(axes, int(rows["layer"].max()))
    columns = len(handles)
    if columns > 4 or (isinstance(base, str) and columns == 4):
        columns = 2 if isinstance(base, str) else 3
    axes.legend(
        handles=handles,
        title=TITLES[factor],
        title_fontsize=style.TEXT_SIZE,
        loc="lower center",
        bbox_to_anchor=(0.5, 0.98),
        ncols=columns,
        labelspacing=0.15,
        columnspacing=1.0,
        handletextpad=0.4,
        handlelength=2.0,
        borderpad=0.2,
    )


def _words(level: Any) -> str:  # noqa: ANN401 (a number or a name)
    return _LEVELS.get(level, level) if isinstance(level, str) else f"{level:g}"


@style.look()
def _effects(claims: pd.DataFrame) -> "Figure":
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    # The table holds claims on whole models too, whose conditions name no piece.
    claims = claims[claims["condition"].str.contains("=", regex=False)]
    where = claims["condition"].str.split(": ", n=1, expand=True)
    rows = claims.assign(where=where[0].map(_label), what=where[1])
    sides = [_groups(rows, side) for side in (_LEFT, _RIGHT)]
    most = max(sum(len(group) + 3.5 for _, group, _ in side) for side in sides)
    size = (style.DOUBLE_COLUMN, 0.5 + _ROW * most)
    figure = Figure(figsize=size, layout="constrained")
    halves: Any = figure.subfigures(1, 2)
    for half, side in zip(halves, sides, strict=True):
        heights = [len(group) + 1 for _, group, _ in side]
        grid = half.subplots(len(side), 1, squeeze=False, height_ratios=heights)
        for axes, (what, group, limits) in zip(grid[:, 0], side, strict=True):
            _forest(axes, group, limits)
            axes.set_xlabel(what.replace(", mean", ",\nmean"))
    shown = [verdict for verdict in _VERDICTS if (claims["verdict"] == verdict).any()]
    handles = [Line2D([], [], linestyle="none", label=v, **_VERDICTS[v]) for v in shown]
    figure.legend(handles=handles, loc="outside lower center", ncols=4)
    return figure


def _groups(
    rows: pd.DataFrame, side: dict[str, tuple[float, ...]]
) -> list[tuple[str, pd.DataFrame, tuple[float, ...]]]:
    groups = (
        (what, rows[rows["what"] == what].dropna(subset="effect"), side[what]) for what in side
    )
    return [group for group in groups if len(group[1])]


def _label(where: str) -> str:
    """Return "skip 0.1 (post-norm)" for "skip=0.1, post-norm"; the commonest network unsaid."""
    piece, condition = where.split(", ", 1)
    factor, level = piece.split("=")
    spoken = _PIECES[factor].format(_words(level))
    return spoken if condition in ("baseline", FACTORIAL) else f"{spoken} ({condition})"


def _forest(axes: "Axes", rows: pd.DataFrame, limits: tuple[float, ...]) -> None:
    for limit in limits:
        axes.axvline(limit, color=style.MUTED, linewidth=0.7, zorder=0, label="limit")
    for place, (_, row) in enumerate(rows.iterrows()):
        look = _VERDICTS[row["verdict"]]
        axes.plot([row["low"], row["high"]], [place, place], color=look["color"], linewidth=1)
        axes.plot(row["effect"], place, **look)
    axes.set_yticks(range(len(rows)), rows["where"])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    if STEADY in limits:
        axes.set_xscale("symlog", linthresh=0.1, linscale=0.8)
        axes.set_xticks([-10, -1, -0.1, 0], ["−10", "−1", "−0.1", "0"])
        axes.set_xticks([], minor=True)
        axes.set_xlim(-80, 0.05)
