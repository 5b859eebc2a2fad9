"""The published numbers of Dong et al. 2021, read and checked."""

from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd

from rankcollapse.errors import RankCollapseError
from rankcollapse.tables import TableError, read_csv
from rankcollapse.vocabulary import VARIANTS

MODELS = ("bert-base-cased", "albert-base-v2", "xlnet-base-cased")
WEIGHTS = ("init", "pretrained")
LAYERS = 13  # the embedding and 12 blocks
TEXTS = 32  # sequences behind every mean of Figure 2
FIGURE2_COLUMNS = ["model", "weights", "variant", "layer", "mean", "std"]
# Within the largest column sum and the largest row sum alike, |x - column mean| adds up to at most
# twice |x|, so the ratio of composite norms cannot exceed 2.
_LARGEST_RATIO = 2.0


class PublishedError(RankCollapseError):
    """The file of published numbers is missing or has been changed."""


def read_figure2(path: Path) -> pd.DataFrame:
    """Read the 312 points of the published Figure 2.

    Args:
        path: `data/published/figure2.csv`.

    Returns:
        The columns `model, weights, variant, layer, mean, std` in the order of the file: ratio of
        composite norms with the column mean as centre, mean and standard deviation (n - 1) over
        32 sequences of 128 tokens.

    Raises:
        PublishedError: the file is missing, or is not those 312 points.
    """
    try:
        frame = read_csv(path, FIGURE2_COLUMNS)
        problem = _problem(frame)
    except TableError as error:
        problem = "no such file" if not path.exists() else str(error).removeprefix(f"{path}: ")
    if problem:
        raise PublishedError(f"{path}: {problem}; restore it with `git checkout -- {path}`")
    return frame


def _problem(frame: pd.DataFrame) -> str:
    """Say in a few words what is wrong with the points, or nothing."""
    expected = set(product(MODELS, WEIGHTS, VARIANTS, range(LAYERS)))
    if len(frame) != len(expected):
        return f"{len(frame)} points, expected {len(expected)}"
    found = set(frame[FIGURE2_COLUMNS[:4]].itertuples(index=False, name=None))
    if found != expected:
        return f"no point for {' '.join(map(str, min(expected - found)))}"
    for column in ("mean", "std"):
        values = pd.to_numeric(frame[column], errors="coerce")
        wrong = ~values.between(0, _LARGEST_RATIO) | (values == 0)
        if wrong.any():
            line = int(np.flatnonzero(wrong)[0]) + 2
            return f"line {line}: {column} {frame[column].iloc[line - 2]} is not in (0, 2]"
    return ""
