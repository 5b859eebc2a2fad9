"""Figure 1: a network of attention layers is the sum of its paths.

Drawn from a real small network: its weights, its attention, the term of each of its paths.
"""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import CenteredNorm
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch, Rectangle
from matplotlib.path import Path as Outline

from rankcollapse.figures import style
from rankcollapse.paths import Array, Path, SmallSan, forward, path_terms, random_san

READS: dict[str, Any] = {}  # no table: it computes its own
LAYERS = 3
HEADS = 2
TOKENS = 6
FEATURES = 8
HIGHLIGHTED: tuple[int | None, ...] = (1, None, 0)

_LAYER_WIDTH = 3.0
_HEAD_LANES = (1.0, 0.0)
_SKIP_LANE = -1.0


def table(seed: int = 0) -> pd.DataFrame:
    """Measure the term of each path of the network that is drawn.

    Args:
        seed: of the network and its input.

    Returns:
        One row a path, by length, the largest term first: path ("2/skip/1" is head 2 of layer 1,
        layer 2 passed by, head 1 of layer 3), length, norm (composite norm of the term) and
        residual_ratio (composite norm of the term less its column mean, over norm).
    """
    return _measured(_network(seed)[2])


@style.look()
def draw(seed: int = 0) -> Figure:
    """Draw the network with one path, that path's term, and the terms of all paths.

    Args:
        seed: of the network and its input.

    Source: Dong et al. 2021, figure 1. Differs from the paper: the terms are computed and shown.
    """
    san, x, paths = _network(seed)
    figure = Figure(figsize=(style.SINGLE_COLUMN, 4.4))
    _draw_network(figure.add_axes((0.02, 0.745, 0.96, 0.235)))
    _draw_term(figure.add_axes((0.02, 0.515, 0.96, 0.2)), san, x, paths)
    norms = figure.add_axes((0.145, 0.3, 0.845, 0.155))
    ratios = figure.add_axes((0.145, 0.09, 0.845, 0.165), sharex=norms)
    _draw_measures(norms, ratios, paths)
    figure.align_ylabels([norms, ratios])
    norms.set_title(_sum_of_terms(san, x, paths), loc="left", pad=4)
    for letter, height in zip("abc", (0.965, 0.712, 0.477), strict=True):
        figure.text(0.012, height, f"({letter})", weight="bold", va="center")
    return figure


def _network(seed: int) -> tuple[SmallSan, Array, list[Path]]:
    san, x = random_san(layers=LAYERS, heads=HEADS, tokens=TOKENS, features=FEATURES, seed=seed)
    return san, x, path_terms(san, x, skip=True)


def _measured(paths: list[Path]) -> pd.DataFrame:
    rows = [(_name(p.heads), p.length, _composite_norm(p.term), _ratio(p.term)) for p in paths]
    frame = pd.DataFrame(rows, columns=["path", "length", "norm", "residual_ratio"])
    return frame.sort_values(["length", "norm"], ascending=[True, False], ignore_index=True)


def _name(heads: tuple[int | None, ...]) -> str:
    return "/".join("skip" if head is None else str(head + 1) for head in heads)


def _composite_norm(x: Array) -> float:
    magnitude = np.abs(x)
    return float(np.sqrt(magnitude.sum(0).max() * magnitude.sum(1).max()))


def _ratio(x: Array) -> float:
    return _composite_norm(x - x.mean(0)) / _composite_norm(x)


def _sum_of_terms(san: SmallSan, x: Array, paths: list[Path]) -> str:
    _, output = forward(san, x, skip=True)
    difference = sum(path.term for path in paths) - output
    error = float(np.abs(difference).max() / np.abs(output).max())
    return f"sum of {len(paths)} terms = output, error {error:.0e}"


def _draw_network(axes: Axes) -> None:
    axes.set_axis_off()
    axes.set_xlim(-0.75, LAYERS * _LAYER_WIDTH + 0.75)
    axes.set_ylim(-1.4, 1.9)
    for layer, chosen in enumerate(HIGHLIGHTED):
        start = layer * _LAYER_WIDTH
        axes.text(start + _LAYER_WIDTH / 2, 1.72, f"layer {layer + 1}", ha="center", va="center")
        lanes: list[int | None] = [None, *range(HEADS)]
        for head in sorted(lanes, key=lambda lane: lane == chosen):  # the chosen one on top
            _draw_lane(axes, start, head, chosen=head == chosen)
    for layer in range(LAYERS + 1):
        text = {0: "$X$"}.get(layer, "+")
        _draw_node(axes, layer * _LAYER_WIDTH, 0.0, text, boxstyle="circle,pad=0.15")
    for name, place in {"input": 0.0, "output": LAYERS * _LAYER_WIDTH}.items():
        axes.text(place, _SKIP_LANE, name, ha="center", va="center", size=style.SMALL_TEXT_SIZE)


def _draw_lane(axes: Axes, start: float, head: int | None, *, chosen: bool) -> None:
    height = _SKIP_LANE if head is None else _HEAD_LANES[head]
    end = start + _LAYER_WIDTH
    bend = 0.55
    points = [(start, 0.0), (start + bend, 0.0), (start + bend, height), (start + 2 * bend, height)]
    points += [(end - 2 * bend, height), (end - bend, height), (end - bend, 0.0), (end, 0.0)]
    codes = [Outline.MOVETO, *[Outline.CURVE4] * 3, Outline.LINETO, *[Outline.CURVE4] * 3]
    color, width = (style.ACCENT, 2.4) if chosen else (style.MUTED, 0.8)
    axes.add_patch(PathPatch(Outline(points, codes), fill=False, edgecolor=color, linewidth=width))
    text = "skip" if head is None else f"head {head + 1}"
    boxstyle = "square,pad=0.15" if head is None else "round,pad=0.3"
    _draw_node(axes, (start + end) / 2, height, text, boxstyle=boxstyle, chosen=chosen)


def _draw_node(
    axes: Axes, x: float, y: float, text: str, *, boxstyle: str, chosen: bool = False
) -> None:
    edge = style.ACCENT if chosen else "black"
    bare = text == "skip"
    axes.text(
        x,
        y,
        text,
        ha="center",
        va="center",
        size=style.SMALL_TEXT_SIZE,
        color=edge,
        weight="bold" if chosen else "normal",
        bbox={
            "boxstyle": boxstyle,
            "facecolor": "white",
            "edgecolor": "none" if bare else edge,
            "linewidth": 1.4 if chosen else 0.7,
        },
    )


def _draw_term(axes: Axes, san: SmallSan, x: Array, paths: list[Path]) -> None:
    probabilities, _ = forward(san, x, skip=True)
    term = next(path.term for path in paths if path.heads == HIGHLIGHTED)
    taken = [(layer, head) for layer, head in enumerate(HIGHLIGHTED) if head is not None]
    left = [(rf"$P_{{{h + 1}}}^{{\,{k + 1}}}$", probabilities[k, h]) for k, h in reversed(taken)]
    right = [(rf"$W_{{{h + 1}}}^{{\,{k + 1}}}$", san.value[k, h]) for k, h in taken]
    axes.set_axis_off()
    axes.set_aspect("equal")
    edge = 0.0
    for name, matrix in [*left, ("$X$", x), *right]:
        edge = _draw_matrix(axes, edge, name, matrix) + 1.2
    axes.text(edge + 0.3, 0, "=", ha="center", va="center")
    edge = _draw_matrix(axes, edge + 1.9, "term", term)
    axes.set_xlim(-0.6, edge + 0.6)
    axes.set_ylim(-FEATURES / 2 - 2.6, FEATURES / 2 + 3.2)
    key = "signed: dark below 0, light above; each on its own scale"
    axes.text(edge / 2, -FEATURES / 2 - 0.9, key, ha="center", va="top", size=style.SMALL_TEXT_SIZE)


def _draw_matrix(axes: Axes, edge: float, name: str, matrix: Array) -> float:
    rows, columns = matrix.shape
    # White is 0 for probabilities; signed matrices run from dark to light around 0.
    signed = bool((matrix < 0).any())
    axes.imshow(
        matrix,
        extent=(edge, edge + columns, -rows / 2, rows / 2),
        cmap="YlGnBu_r" if signed else "Greys",
        norm=CenteredNorm() if signed else None,
        interpolation="nearest",
    )
    frame = Rectangle((edge, -rows / 2), columns, rows, fill=False, linewidth=0.5, clip_on=False)
    axes.add_patch(frame)
    center = edge + columns / 2
    axes.text(center, FEATURES / 2 + 0.6, name, ha="center", va="bottom")
    return float(edge + columns)


def _draw_measures(norms: Axes, ratios: Axes, paths: list[Path]) -> None:
    rows = _measured(paths)
    place = rows.index + rows["length"]  # a gap between lengths
    chosen = rows["path"] == _name(HIGHLIGHTED)
    colors = np.where(chosen, style.ACCENT, "#B5B5B5")
    norms.bar(place, rows["norm"], width=0.8, color=colors, edgecolor="black", linewidth=0.4)
    norms.set_ylabel("norm of term")
    norms.tick_params(labelbottom=False, bottom=False)
    ratios.vlines(place, 0, rows["residual_ratio"], color=colors, linewidth=0.9)
    ratios.scatter(place, rows["residual_ratio"], s=11, c=colors, edgecolor="black", linewidth=0.4)
    ratios.set_ylim(0, None)
    ratios.set_ylabel("residual ratio")
    ratios.set_xlabel("paths, by length")
    centers = place.groupby(rows["length"]).mean()
    ratios.set_xticks(centers, [str(length) for length in centers.index])
    ratios.tick_params(axis="x", length=0)
