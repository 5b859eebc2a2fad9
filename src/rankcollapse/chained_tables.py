"""The tables of chained attention: their columns, readers, and the quartiles that figures show.

Light on purpose: figures, verdicts and report read these tables and do not need torch.
"""

from collections.abc import Iterable
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd

from rankcollapse.path_tables import read_rows
from rankcollapse.precision import precision_floor
from rankcollapse.published import WEIGHTS, PublishedError
from rankcollapse.tables import TableError, read_csv

# Which layers a path of depth k passes: any k of them, each choice as likely; or the first k.
LAYERS = ("any", "first")
MEASURES = ("distance", "dobrushin")
CHAINED_COLUMNS = [
    "checkpoint",
    "weights",
    "seed",  # of the initialisation; empty when pretrained
    "layers",  # of LAYERS
    "reading",
    "depth",  # how many matrices are multiplied
    "pair",  # of path and sequence, from 0; the first 100 are a sample of the published size
    "sequence",
    "distance",  # to rank one, relative, composite norm
    "dobrushin",
]
SUMMARY_COLUMNS = [
    "checkpoint",
    "weights",
    "layers",
    "reading",
    "measure",  # of MEASURES
    "depth",
    "seeds",
    "pairs",  # of all seeds together
    "p05",
    "q1",
    "median",
    "q3",
    "p95",
    "floor",  # below which a value is round-off
    "below_floor",  # pairs
]
QUARTILES = ("q1", "median", "q3")
DEPTHS = 12
PUBLISHED_COLUMNS = ["depth", "weights", *QUARTILES]
PUBLISHED_CHECKPOINT = "bert-base-cased"

SHARES = {"p05": 0.05, "q1": 0.25, "median": 0.5, "q3": 0.75, "p95": 0.95}
_GROUP = ["checkpoint", "weights", "layers", "reading", "depth"]
_LARGEST_DISTANCE = 2.0  # the composite norm is no norm, so 1 is not the limit


def read_chained(path: Path) -> pd.DataFrame:
    """Read a table of `CHAINED_COLUMNS`, written by `path_tables.write_rows`.

    Raises:
        TableError: the file is missing or damaged, or has other columns.
    """
    return read_rows(path, CHAINED_COLUMNS)


def read_summary(path: Path) -> pd.DataFrame:
    """Read a table of `SUMMARY_COLUMNS`.

    Raises:
        TableError: the file is missing, or has other columns.
    """
    return read_csv(path, SUMMARY_COLUMNS)


def summarise(frames: Iterable[pd.DataFrame]) -> pd.DataFrame:
    """Return quartiles over the pairs of all seeds of each model.

    Args:
        frames: tables of `CHAINED_COLUMNS`.

    Returns:
        `SUMMARY_COLUMNS`, sorted: for each measure 5 %, 25 %, 50 %, 75 % and 95 % of the pairs lie
        below `p05`, `q1`, `median`, `q3`, `p95` (linear between two pairs).

    Raises:
        TableError: a pair occurs twice with the same setting.
    """
    pairs = pd.concat(frames, ignore_index=True)
    repeated = pairs[pairs.duplicated([*_GROUP, "seed", "pair"])]
    if not repeated.empty:
        setting = " ".join(str(repeated.iloc[0][name]) for name in (*_GROUP, "seed", "pair"))
        raise TableError(f"chained attention: {setting} occurs twice; give each table once")
    tidy = pairs.melt([*_GROUP, "seed"], list(MEASURES), var_name="measure")
    floor = precision_floor("float64")
    tidy["below_floor"] = tidy["value"] < floor
    groups = tidy.groupby([*_GROUP[:-1], "measure", "depth"])
    result = groups.agg(
        seeds=("seed", lambda seeds: max(1, seeds.nunique())),
        pairs=("value", "size"),
        below_floor=("below_floor", "sum"),
    )
    quantiles = groups["value"].quantile(np.array(list(SHARES.values()))).unstack()
    quantiles.columns = pd.Index(SHARES)
    return result.join(quantiles).reset_index().assign(floor=floor)[SUMMARY_COLUMNS]


def read_published(path: Path) -> pd.DataFrame:
    """Read the published quartiles of BERT's chained attention.

    Args:
        path: `data/published/chained_attention.csv`.

    Returns:
        `depth, weights, q1, median, q3`, 24 rows in the order of the file: quartiles of the
        distance over 100 pairs, read from the picture to a factor of 1.04.

    Raises:
        PublishedError: the file is missing, or is not those 24 boxes.
    """
    try:
        frame = read_csv(path, PUBLISHED_COLUMNS)
        problem = _problem(frame)
    except TableError as error:
        problem = "no such file" if not path.exists() else str(error).removeprefix(f"{path}: ")
    if problem:
        raise PublishedError(f"{path}: {problem}; restore it with `git checkout -- {path}`")
    return frame


def _problem(frame: pd.DataFrame) -> str:
    """Say in a few words what is wrong with the boxes, or nothing."""
    expected = set(product(range(1, DEPTHS + 1), WEIGHTS))
    found = set(frame[["depth", "weights"]].itertuples(index=False, name=None))
    if len(frame) != len(expected) or found != expected:
        return f"{len(frame)} boxes, expected one for each of {DEPTHS} depths, {WEIGHTS}"
    quartiles = frame[list(QUARTILES)].apply(pd.to_numeric, errors="coerce")
    ordered = quartiles["q1"].gt(0) & quartiles["q1"].le(quartiles["median"])
    ordered &= quartiles["median"].le(quartiles["q3"]) & quartiles["q3"].lt(_LARGEST_DISTANCE)
    if ordered.all():
        return ""
    return f"line {int(np.flatnonzero(~ordered)[0]) + 2}: not 0 < q1 <= median <= q3 < 2"
