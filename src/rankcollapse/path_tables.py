"""The tables of what is studied of paths: their columns, and how long ones are kept.

`seed` is that of the initialisation, empty where the weights are pretrained.
"""

from pathlib import Path

import pandas as pd
import pyarrow as pa

from rankcollapse.files import atomic_directory, atomic_file
from rankcollapse.tables import TableError, write_csv

_MODEL = ["checkpoint", "weights", "seed"]

# Of the profile's published text, the model in float32; means over the sequences. `norm` and
# `residual` are composite norms of the term of one length after one block and of its residual
# (centre: column mean); `share`, `rank_one_distance`, `paths` as in `rankcollapse.path_measures`.
DECOMPOSITION_COLUMNS = [
    *_MODEL,
    *("variant", "layer", "length", "norm", "residual", "share", "rank_one_distance", "paths"),
]
# What the last state loses without the terms of a length: its cosine to itself, and the change of
# the cosine of two sentences (mean tokens, special ones too; root mean square over pairs, see
# `rankcollapse.sentences`; of the transformer, empty for a checkpoint without a tokenizer).
LEFT_OUT_COLUMNS = [*_MODEL, "variant", "length", "cosine", "similarity_error"]
# Where the paths of a length start: share of the residual of the last state's term. Of the first
# few sequences only (`decomposition.BATCH`).
SOURCE_COLUMNS = [*_MODEL, "variant", "length", "source", "share"]
# How much of the residual of the last state's term of each length passes a head.
HEAD_COLUMNS = [*_MODEL, "variant", "layer", "head", "length", "share"]


def write_rows(path: Path, frame: pd.DataFrame) -> None:
    """Write a table of many rows as Parquet, whole or not at all."""
    with atomic_file(path) as temporary:
        frame.to_parquet(temporary, index=False, compression="zstd")


def read_rows(path: Path, columns: list[str]) -> pd.DataFrame:
    """Read a Parquet table that must have exactly these columns.

    Raises:
        TableError: the file is missing or damaged, or has other columns.
    """
    try:
        frame = pd.read_parquet(path)
    except FileNotFoundError:
        raise TableError(f"{path}: no such table; run the rule that makes it") from None
    except (pa.ArrowInvalid, OSError) as error:
        raise TableError(f"{path}: not a Parquet table ({error}); rerun its rule") from None
    if list(frame.columns) != columns:
        raise TableError(f"{path}: columns are {list(frame.columns)}, expected {columns}")
    return frame


def write_tables(output: Path, tables: dict[str, pd.DataFrame]) -> None:
    """Write a folder with a CSV for each table, whole or not at all."""
    with atomic_directory(output) as folder:
        for name, table in tables.items():
            write_csv(folder / f"{name}.csv", table)
