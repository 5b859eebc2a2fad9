"""Curves that nobody measured, in the columns of the real table."""

import pandas as pd

from rankcollapse.precision import precision_floor
from rankcollapse.tables import CURVE_COLUMNS

SEQUENCES = 32
COLLAPSING = (0.6, 0.02, 1e-5, 2e-7, 2e-7)
STEADY = (0.6, 0.58, 0.56, 0.54, 0.52)
SHAPES = {"san": COLLAPSING, "san_mlp": COLLAPSING, "san_skip": STEADY, "transformer": STEADY}


def curve(
    means,
    *,
    checkpoint="bert-base-cased",
    weights="init",
    seed=0,
    variant="san",
    reading="as-published",
    text="wikibio",
    precision="float32",
    measure="composite_ratio",
    std=0.01,
    below_floor=None,
    missing=None,
):
    """Return one curve, a mean for each layer, as `tables.curves` gives it."""
    floor = precision_floor(precision)
    below = [SEQUENCES * (mean < floor) for mean in means] if below_floor is None else below_floor
    lacking = [SEQUENCES * (mean != mean) for mean in means] if missing is None else missing
    frame = pd.DataFrame(
        {
            "checkpoint": checkpoint,
            "weights": weights,
            "seed": pd.array([seed] * len(means), dtype="Int64"),
            "variant": variant,
            "reading": reading,
            "text": text,
            "precision": precision,
            "layer": range(len(means)),
            "measure": measure,
            "mean": pd.array(means, dtype="float64").to_numpy(dtype="float64"),
            "std": std,
            "sequences": [SEQUENCES - count for count in lacking],
            "below_floor": below,
            "missing": lacking,
        }
    )
    return frame[CURVE_COLUMNS]


def model(*, seeds=(0,), shift=0.0, **names):
    """Return the four variants of a checkpoint for each seed; seed s lies 0.01 s higher."""
    return pd.concat(
        [
            curve(
                [mean + (0.01 * (seed or 0) + shift) * (mean > 0.1) for mean in means],
                variant=variant,
                seed=seed,
                **names,
            )
            for variant, means in SHAPES.items()
            for seed in seeds
        ],
        ignore_index=True,
    )


def published(*checkpoints, weights=("init", "pretrained"), shapes=None):
    """Return a table like data/published/figure2.csv."""
    rows = [
        {
            "model": checkpoint,
            "weights": weight,
            "variant": variant,
            "layer": layer,
            "mean": mean,
            "std": 0.02,
        }
        for checkpoint in checkpoints
        for weight in weights
        for variant, means in (shapes or SHAPES).items()
        for layer, mean in enumerate(means)
    ]
    columns = ["model", "weights", "variant", "layer", "mean", "std"]
    return pd.DataFrame(rows, columns=columns)


def lines(axes, label):
    """Return the lines of a panel with this label."""
    return [line for line in axes.get_lines() if line.get_label() == label]


def line(axes, label):
    """Return the one line of a panel with this label."""
    (found,) = lines(axes, label)
    return found


def notes(axes):
    """Return the remarks on a panel."""
    return [text.get_text() for text in axes.texts]


def legend_labels(parent):
    """Return what the legends of a figure or a part of it name."""
    return [text.get_text() for legend in parent.legends for text in legend.get_texts()]
