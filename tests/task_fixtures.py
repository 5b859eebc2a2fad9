"""Tables of the trained experiments that nobody measured, in the columns of the real ones."""

import numpy as np
import pandas as pd
from scipy.stats import binom

from rankcollapse.paths import path_length_proportions
from rankcollapse.task_tables import (
    CIRCLE_COLUMNS,
    LENGTH_COLUMNS,
    PUBLISHED_SHAPES,
    SCORE_COLUMNS,
    TRAJECTORY_COLUMNS,
    training,
)

DEPTH = 6
EPOCHS = {"sorting": 65, "convex_hull": 70, "memorization": 50}
PATHS = {
    "published": ("5", "20", "all"),
    "residual_kept": ("5", "20"),
    "frozen": ("only",),
    "reread": ("20",),
    "layer_drop": ("5", "20"),
    "pure": ("5", "20"),
}
FALLING = (0.35, 0.50, 0.26, 0.18, 0.14, 0.12, 0.10)
RISING = (0.35, 0.36, 0.38, 0.39, 0.40, 0.42, 0.44)
SHAPES = {
    "published": FALLING,
    "residual_kept": RISING,
    "frozen": (0.30, 0.42, 0.33, 0.24, 0.16, 0.12, 0.11),
    "reread": (0.36, 0.52, 0.47, 0.40, 0.33, 0.28, 0.24),
    "layer_drop": (0.35, 0.44, 0.41, 0.36, 0.31, 0.27, 0.22),
    "pure": (0.12, 0.15, 0.17, 0.18, 0.20, 0.19, 0.21),
}
RATIOS = {
    "residual_kept": (0.8, 0.8, 0.8, 0.79, 0.79, 0.78, 0.78),
    "frozen": (0.8, 0.6, 0.45, 0.35, 0.28, 0.22, 0.18),
    "pure": (0.8, 0.2, 1e-2, 1e-4, 3e-6, 4e-7, 3e-7),
}
_RATIO = (0.8, 0.5, 0.2, 0.09, 0.04, 0.02, 0.012)


def curve(
    accuracies,
    *,
    task="sorting",
    reading="as-published",
    epochs=None,
    control="published",
    paths="20",
    seed=0,
    shape=None,
    lengths=None,
    ratios=_RATIO,
    std_draws=0.02,
):
    """Return the scores of one curve of one seed, a row for each length."""
    heads, depth, width = shape or PUBLISHED_SHAPES[task]
    count = len(accuracies)
    frame = pd.DataFrame(
        {
            "task": task,
            "reading": reading,
            "epochs": epochs or EPOCHS[task],
            "heads": heads,
            "depth": depth,
            "width": width,
            "training": training(control),
            "control": control,
            "paths": paths,
            "length": pd.array(range(count) if lengths is None else lengths, dtype="Int64"),
            "seed": pd.array([seed] * count, dtype="Int64"),
            "accuracy": np.asarray(accuracies, dtype=float),
            "std_draws": std_draws,
            "std_examples": 0.01,
            "residual_ratio": list(ratios)[:count],
        }
    )
    return frame[SCORE_COLUMNS]


def line(accuracy, *, control, ratio=0.7, **names):
    """Return the score of an entire network or of a trivial predictor."""
    names = {"paths": "", "lengths": [None], "ratios": [ratio], "std_draws": np.nan} | names
    return curve([accuracy], control=control, **names)


def scores(*, task="sorting", seeds=(0, 1, 2), controls=tuple(PATHS), shapes=None, **names):
    """Return all scores of a task: seed s lies 0.01 s higher, 5 paths 0.02 lower than 20."""
    rng = np.random.default_rng(0)
    frames = []
    for seed in seeds:
        level = 0.01 * seed
        names["seed"] = seed
        frames.append(line(0.57 + level, control="entire", task=task, **names))
        frames.append(line(0.346, control="trivial", task=task, ratio=np.nan, **names))
        for control in controls:
            means = np.asarray((SHAPES | (shapes or {}))[control]) + level
            for paths in PATHS[control]:
                noise = rng.normal(0, 0.01, len(means))
                frames.append(
                    curve(
                        means - 0.02 * (paths != "20") + noise,
                        task=task,
                        control=control,
                        paths=paths,
                        ratios=RATIOS.get(control, _RATIO),
                        **names,
                    )
                )
            if control in ("layer_drop", "pure"):
                frames.append(line(0.5 + level, control=control, task=task, **names))
    return pd.concat(frames, ignore_index=True)


def circle(*, shares=None, seeds=12, readings=("as-published", "as-described"), widths=(32, 64)):
    """Return runs of the circle: the first `share` of the seeds of a variant collapse."""
    shares = {"san": 0.75, "san_skip": 0.0, "san_mlp": 0.25} | (shares or {})
    rows = [
        (reading, variant, width, seed, distance, distance < 0.05, 0.002 * (seed + 1))
        for reading in readings
        for variant, share in shares.items()
        for width in widths
        for seed in range(seeds)
        for distance in [0.002 * (seed + 1) if seed < share * seeds else 0.1 + 0.04 * seed]
    ]
    return pd.DataFrame(rows, columns=CIRCLE_COLUMNS)


def trajectories(*, readings=("as-published", "as-described"), widths=(32, 64), steps=300):
    """Return spirals: pure attention winds into one point, the others go round the circle."""
    shrinking = {"san": 0.02, "san_skip": 0.0, "san_mlp": 0.004}
    rows = [
        (reading, variant, width, 3, step, point, radius * np.cos(angle), radius * np.sin(angle))
        for reading in readings
        for variant, rate in shrinking.items()
        for width in widths
        for point in (0, 1)
        for step in range(steps)
        for angle in [point * np.pi + 2 * np.pi * step / 1000]
        for radius in [0.3 * np.exp(-rate * step)]
    ]
    return pd.DataFrame(rows, columns=TRAJECTORY_COLUMNS)


NETWORKS = {(2, 2, 84): 0.9, (2, 6, 48): 0.75, (2, 12, 34): 0.6, (4, 6, 48): 0.75}


def lengths(*, networks=None, seeds=(0, 1, 2), accuracy=0.57):
    """Return shares of path lengths: the mean one is `factor` times the binomial's."""
    rows = []
    for (heads, depth, width), factor in (networks or NETWORKS).items():
        binomial = path_length_proportions(heads, depth)
        for seed in seeds:
            probability = heads / (heads + 1) * (factor + 0.01 * seed * (1 + depth / 12))
            used = binom.pmf(range(depth + 1), depth, probability)
            for length in range(depth + 1):
                shares = (length, used[length], binomial[length])
                rows.append(
                    ("sorting", heads, depth, width, 87_000, seed, accuracy + 0.01 * seed, *shares)
                )
    return pd.DataFrame(rows, columns=LENGTH_COLUMNS)
