"""The tidy table of measures: written, read and checked in one place.

One row is one measure of one sequence after one layer. `curves` is the same table with the
sequences averaged: what figures, verdicts and people read.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from rankcollapse.errors import RankCollapseError
from rankcollapse.files import atomic_file

SCHEMA = pa.schema(
    [
        pa.field("checkpoint", pa.string(), nullable=False),  # the model, "bert-base-cased"
        pa.field("weights", pa.string(), nullable=False),  # "init" or "pretrained"
        pa.field("seed", pa.int64()),  # of the initialisation; null when pretrained
        pa.field("variant", pa.string(), nullable=False),
        pa.field("reading", pa.string(), nullable=False),
        pa.field("text", pa.string(), nullable=False),
        pa.field("precision", pa.string(), nullable=False),
        pa.field("layer", pa.int64(), nullable=False),  # 0 is the embedding
        pa.field("sequence", pa.int64(), nullable=False),
        pa.field("measure", pa.string(), nullable=False),
        pa.field("value", pa.float64()),  # null where status says why
        pa.field("status", pa.string(), nullable=False),
    ]
)
KEY = ["checkpoint", "weights", "seed", "variant", "reading", "text", "precision"]
STATUSES = ("ok", "below floor", "one token", "zero matrix", "undefined", "not finite")
CURVE_COLUMNS = [*KEY, "layer", "measure", "mean", "std", "sequences", "below_floor", "missing"]


class TableError(RankCollapseError):
    """A table is missing, damaged, or does not have the columns it should have."""


def write_table(path: Path, frame: pd.DataFrame) -> None:
    """Write a tidy table as Parquet, whole or not at all.

    Args:
        path: the `.parquet` file.
        frame: the columns of `SCHEMA`, in any order.

    Raises:
        TableError: a column is missing, unknown or of another type, a status is unknown, or a
            value is missing without a status that says why.
    """
    checked = _checked(frame, path)
    with atomic_file(path) as temporary:
        pq.write_table(checked, temporary, compression="zstd")


def read_table(path: Path) -> pd.DataFrame:
    """Read and check a tidy table.

    Raises:
        TableError: the file is missing or damaged, or is not such a table.
    """
    try:
        table = pq.read_table(path)
    except FileNotFoundError:
        raise TableError(f"{path}: no such table; run the rule that makes it") from None
    except (pa.ArrowInvalid, OSError) as error:
        raise TableError(f"{path}: not a Parquet table ({error}); delete it and rerun") from None
    frame: pd.DataFrame = _checked(table.to_pandas(), path).to_pandas()
    return frame


def _checked(frame: pd.DataFrame, path: Path) -> pa.Table:
    wrong = set(frame.columns) ^ set(SCHEMA.names)
    if wrong:
        raise TableError(f"{path}: columns missing or unknown: {', '.join(sorted(wrong))}")
    unknown = set(frame["status"]) - set(STATUSES)
    if unknown:
        raise TableError(f"{path}: unknown status {sorted(unknown)}; known are {STATUSES}")
    bare = frame["value"].isna() & frame["status"].isin(["ok", "below floor"])
    if bare.any():
        raise TableError(f"{path}: {int(bare.sum())} values are missing without a reason")
    try:
        return pa.Table.from_pandas(frame[SCHEMA.names], schema=SCHEMA, preserve_index=False)
    except (ValueError, TypeError) as error:
        raise TableError(f"{path}: {'; '.join(map(str, error.args))}") from None


def curves(frames: Iterable[pd.DataFrame]) -> pd.DataFrame:
    """Average tidy tables over their sequences.

    Args:
        frames: tidy tables.

    Returns:
        The columns of `CURVE_COLUMNS`, sorted: mean and standard deviation (n - 1) over the
        sequences that have a value, how many those are, how many of them lie below the precision
        floor, and how many have none.
    """
    rows = pd.concat(frames, ignore_index=True)
    rows["below_floor"] = rows["status"] == "below floor"
    rows["missing"] = rows["value"].isna()
    keys = [*KEY, "layer", "measure"]
    grouped = rows.groupby(keys, dropna=False, sort=True)
    result = grouped.agg(
        mean=("value", "mean"),
        std=("value", "std"),
        sequences=("value", "count"),
        below_floor=("below_floor", "sum"),
        missing=("missing", "sum"),
    )
    return result.reset_index()[CURVE_COLUMNS]


def means(frame: pd.DataFrame) -> Iterator[tuple[str, float, int]]:
    """Yield name, mean over the sequences and layer of each curve of one checkpoint's table."""
    averaged = curves([frame]).dropna(subset="mean")
    names = averaged["reading"] + "/" + averaged["variant"] + "/" + averaged["measure"]
    yield from zip(names, averaged["mean"], averaged["layer"], strict=True)


def write_csv(path: Path, frame: pd.DataFrame) -> None:
    """Write a table for people: CSV, 9 significant digits, whole or not at all."""
    with atomic_file(path) as temporary:
        frame.to_csv(temporary, index=False, float_format="%.9g", lineterminator="\n")


def read_curves(path: Path) -> pd.DataFrame:
    """Read and check the table that `curves` made.

    Raises:
        TableError: the file is missing, or is not such a table.
    """
    return read_csv(path, CURVE_COLUMNS)


def read_csv(path: Path, columns: list[str]) -> pd.DataFrame:
    """Read a CSV that must have exactly these columns.

    Raises:
        TableError: the file is missing, or has other columns.
    """
    try:
        frame = pd.read_csv(path, keep_default_na=False, na_values=[""], dtype={"seed": "Int64"})
    except FileNotFoundError:
        raise TableError(f"{path}: no such table; run the rule that makes it") from None
    except ValueError as error:
        raise TableError(
            f"{path}: not a CSV table ({str(error).strip()}); rerun its rule"
        ) from None
    if list(frame.columns) != columns:
        raise TableError(f"{path}: columns are {list(frame.columns)}, expected {columns}")
    return frame
