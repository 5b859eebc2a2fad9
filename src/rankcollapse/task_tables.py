"""The tables of the trained experiments: their columns, and the average over training seeds."""

from collections.abc import Iterable, Iterator
from numbers import Real
from pathlib import Path

import pandas as pd

from rankcollapse.tables import TableError, read_csv, write_csv
from rankcollapse.vocabulary import READINGS, TRAININGS

SETTING = ["task", "reading", "epochs"]
SHAPE = ["heads", "depth", "width"]
SCORE_COLUMNS = [
    *SETTING,
    *SHAPE,
    "training",  # "residual", or "layer_drop" or "pure", which are then the control too
    "control",
    "paths",  # size of a random set, "all" single paths, or what is done with a frozen term
    "length",  # empty for the entire network and the trivial predictor
    "seed",  # of the training
    "accuracy",  # share of tokens
    "std_draws",  # over sets of paths
    "std_examples",
    "residual_ratio",  # composite, column mean, of the states that were classified
]
ACCURACY_COLUMNS = [
    *SETTING,
    "control",
    "paths",
    "length",
    "accuracy_mean",
    "std_seeds",
    "std_draws",
    "seeds",
    "residual_ratio",
]
CIRCLE_COLUMNS = [
    "reading",
    "variant",
    "width",
    "seed",
    "final_distance",
    "collapsed",
    "one_step_error",
]
TRAJECTORY_COLUMNS = ["reading", "variant", "width", "seed", "step", "point", "x", "y"]
LENGTH_COLUMNS = [
    "task",
    *SHAPE,
    "parameters",
    "seed",
    "accuracy",  # of the entire network
    "length",
    "share_used",  # of the norms of the residuals of the frozen terms
    "share_binomial",  # of the number of paths
]
CLAIM_COLUMNS = ["claim", "task", "control", "effect", "low", "high", "seeds", "verdict", "rule"]

PUBLISHED_SHAPES = {  # as `SHAPE`
    "memorization": (2, 6, 250),
    "sorting": (2, 6, 48),
    "convex_hull": (3, 6, 84),
}
CONTROLS = (
    "entire",
    "trivial",
    "published",
    "residual_kept",
    "frozen",
    "frozen_cumulative",
    "reread",
    "layer_drop",
    "pure",
)

_GROUP = [*SETTING, "control", "paths", "length"]
_LARGE = 10**9  # after every size of a set of paths


def training(control: str) -> str:
    """Return how the networks of a control were trained."""
    return control if control in TRAININGS else "residual"


def read_scores(path: Path) -> pd.DataFrame:
    """Read a table of `SCORE_COLUMNS`, typed.

    Raises:
        TableError: the file is missing, or has other columns.
    """
    return typed(read_csv(path, SCORE_COLUMNS))


def read_accuracy(path: Path) -> pd.DataFrame:
    """Read a table of `ACCURACY_COLUMNS`, typed.

    Raises:
        TableError: the file is missing, or has other columns.
    """
    return typed(read_csv(path, ACCURACY_COLUMNS))


def typed(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a table with `paths` as text, "" where empty, and whole numbers that may be missing.

    A CSV does not tell the text "5" from the number 5.
    """
    result = frame.assign(paths=frame["paths"].map(_text).astype(str))
    whole = [name for name in ("length", "seed") if name in frame]
    return result.astype(dict.fromkeys(whole, "Int64"))


def _text(value: object) -> str:
    if pd.isna(value):  # type: ignore[call-overload]
        return ""
    return f"{float(value):g}" if isinstance(value, Real) else str(value)


def comparable_scores(frames: Iterable[pd.DataFrame]) -> pd.DataFrame:
    """Put tables of scores together, of networks of their task's published shape only.

    Args:
        frames: tables of `SCORE_COLUMNS`.

    Returns:
        The same columns, typed.

    Raises:
        TableError: a training seed occurs twice with the same setting.
    """
    scores = pd.concat([typed(frame) for frame in frames], ignore_index=True)
    networks = zip(*(scores[name] for name in ("task", *SHAPE)), strict=True)
    published = [PUBLISHED_SHAPES.get(task) == tuple(shape) for task, *shape in networks]
    scores = scores[pd.Series(published, index=scores.index, dtype=bool)]
    repeated = scores[scores.duplicated([*_GROUP, "seed"])]
    if not repeated.empty:
        first = repeated.iloc[0]
        where = " ".join(f"{name} {first[name]}" for name in ("task", "reading", "epochs"))
        raise TableError(
            f"scores: seed {first['seed']} occurs twice ({where}, control {first['control']}); "
            "give each run's table once"
        )
    return scores.reset_index(drop=True)


def accuracy(frames: Iterable[pd.DataFrame]) -> pd.DataFrame:
    """Average scores over the training seeds.

    Args:
        frames: tables of `SCORE_COLUMNS`, a row for each training seed. Networks of another shape
            than the published one of their task are left out.

    Returns:
        `ACCURACY_COLUMNS`, sorted: `std_seeds` (n - 1) is missing where there is one seed,
        `std_draws` and `residual_ratio` are means over the seeds.

    Raises:
        TableError: a training seed occurs twice with the same setting.
    """
    grouped = comparable_scores(frames).groupby(_GROUP, dropna=False, sort=False)
    result = grouped.agg(
        accuracy_mean=("accuracy", "mean"),
        std_seeds=("accuracy", "std"),
        std_draws=("std_draws", "mean"),
        seeds=("accuracy", "size"),
        residual_ratio=("residual_ratio", "mean"),
    )
    return in_order(result.reset_index())[ACCURACY_COLUMNS]


def in_order(frame: pd.DataFrame) -> pd.DataFrame:
    """Sort by task, reading, epochs, control, paths and length, as this module lists them."""
    ranks = {"task": list(PUBLISHED_SHAPES), "reading": list(READINGS), "control": list(CONTROLS)}

    def rank(column: pd.Series) -> pd.Series:
        if column.name == "paths":
            return column.map(_size)
        names = ranks.get(str(column.name))
        return column.map(names.index) if names else column

    by = [*_GROUP, "seed"] if "seed" in frame else _GROUP
    return frame.sort_values(by, key=rank, na_position="first").reset_index(drop=True)


def _size(paths: str) -> int:
    words = ["all", "only", "without", "up_to", "shuffled"]
    if paths in words:
        return _LARGE + words.index(paths)
    return int(paths) if paths else -1


def join_tables(paths: Iterable[Path], output: Path) -> None:
    """Write tables one below the other.

    Raises:
        TableError: a table is missing, or has other columns than the first.
    """
    frames: list[pd.DataFrame] = []
    for path in paths:
        try:
            frame = pd.read_csv(path, dtype=str, keep_default_na=False)
        except FileNotFoundError:
            raise TableError(f"{path}: no such table; run the rule that makes it") from None
        if frames and list(frame.columns) != list(frames[0].columns):
            raise TableError(f"{path}: has other columns than the first table; rerun its rule")
        frames.append(frame)
    write_csv(output, pd.concat(frames, ignore_index=True))


def curves(scores: pd.DataFrame) -> Iterator[tuple[str, float, int]]:
    """Yield name, mean over the seeds and path length of each curve of a table of scores."""
    rows = scores.dropna(subset="length")
    means = rows.groupby(["control", "paths", "length"], as_index=False)["accuracy"].mean()
    names = means["control"] + "/" + means["paths"]
    yield from zip(names, means["accuracy"], means["length"].astype(int), strict=True)
