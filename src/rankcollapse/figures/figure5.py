"""Figure 5: how long the paths are in common architectures."""

from typing import Any, NamedTuple

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator, ScalarFormatter

from rankcollapse.figures import style
from rankcollapse.paths import path_length_proportions

READS: dict[str, Any] = {}  # no table: it computes its own


class Architecture(NamedTuple):
    """An architecture's name, its heads in each layer, its layers."""

    name: str
    heads: int
    layers: int


ARCHITECTURES = (
    Architecture("DistilBERT", 12, 6),
    Architecture("DeiT-T", 3, 12),
    Architecture("MobileBERT", 4, 12),
    Architecture("BERT-base, ViT-B", 12, 12),
    Architecture("BERT-large, ViT-L", 16, 24),
    Architecture("T5-3B", 32, 24),
    Architecture("T5-11B", 128, 24),
    Architecture("ViT-H", 16, 32),
    Architecture("GPT-3", 96, 96),
)

# The colour says how deep a network is; marker and line tell apart those of one depth.
_DEPTH_COLORS = {6: "#E0873A", 12: "#2F7FB8", 24: "#1D2142", 32: "#8E2C6B", 96: "#6E9E2A"}
_LINES = {
    "DistilBERT": ("-", "v"),
    "DeiT-T": (":", "^"),
    "MobileBERT": ("--", "s"),
    "BERT-base, ViT-B": ("-", "o"),
    "BERT-large, ViT-L": ("-", "o"),
    "T5-3B": ("--", "s"),
    "T5-11B": (":", "^"),
    "ViT-H": ("-", "D"),
    "GPT-3": ("-", "."),
}

_VISIBLE = 0.003  # a marker below this share would only thicken the axis


def table() -> pd.DataFrame:
    """Return the share of paths of each length: architecture, heads, layers, length, proportion.

    Source: Dong et al. 2021, figure 5.
    """
    rows = [
        (*architecture, length, proportion)
        for architecture in ARCHITECTURES
        for length, proportion in enumerate(
            path_length_proportions(architecture.heads, architecture.layers)
        )
    ]
    columns = ["architecture", "heads", "layers", "length", "proportion"]
    return pd.DataFrame(rows, columns=columns)


@style.look()
def draw() -> Figure:
    """Draw the share of paths of each length, from length 1, for the nine architectures.

    Source: Dong et al. 2021, figure 5.
    """
    figure = Figure(figsize=(style.SINGLE_COLUMN, 3.3), layout="constrained")
    axes = figure.subplots()
    rows = table()
    rows = rows[rows["length"] >= 1]  # the logarithm of length 0 is not on the axis
    for architecture in ARCHITECTURES:
        curve = rows[rows["architecture"] == architecture.name]
        linestyle, marker = _LINES[architecture.name]
        axes.plot(
            curve["length"],
            curve["proportion"],
            color=_DEPTH_COLORS[architecture.layers],
            linestyle=linestyle,
            marker=marker,
            markevery=(curve["proportion"] > _VISIBLE).tolist(),
            label=f"{architecture.name} ({architecture.heads}, {architecture.layers})",
        )
    axes.set_xscale("log")
    axes.set_xlim(1, 110)
    axes.set_ylim(0, None)
    axes.xaxis.set_major_locator(FixedLocator([1, 2, 3, 6, 12, 24, 48, 96]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(ScalarFormatter())
    axes.set_xlabel("path length")
    axes.set_ylabel("proportion of paths")
    figure.legend(loc="outside lower center", ncols=2, title="architecture (heads, layers)")
    return figure
