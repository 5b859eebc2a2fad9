"""Texts from the Hugging Face hub, as one document a line."""

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from rankcollapse.checkpoints.hub import fetch_hub_files
from rankcollapse.checkpoints.manifest import CheckpointError, unwritable
from rankcollapse.files import atomic_directory

DOCUMENTS = "documents.txt"


def fetch_text(
    repository: str,
    revision: str,
    output: Path,
    *,
    pattern: str,
    columns: Sequence[str],
) -> None:
    """Fetch columns of a data set and write them as a text file.

    Args:
        repository: "owner/name" of the data set.
        revision: a commit, 40 hex digits, or a ref, which is resolved to the commit it names now.
        output: a folder for `documents.txt` and `source.json`, which has the commit and the
            hashes of the files that the text is from.
        pattern: which Parquet files, as "*/test/*.parquet"; they are read in the order of names.
        columns: what makes a document; several are joined by a tab, white space becomes a blank.

    Raises:
        CheckpointError: the hub cannot be reached or has no such files, bytes are wrong, a column
            is missing, or the disk is full.
    """
    try:
        with atomic_directory(output) as folder, tempfile.TemporaryDirectory(dir=folder) as scratch:
            parquet = Path(scratch) / "parquet"
            fetch_hub_files(repository, revision, parquet, pattern=pattern)
            with (folder / DOCUMENTS).open("w", encoding="utf-8", newline="\n") as lines:
                for path in sorted(parquet.glob("*.parquet")):
                    _write_documents(path, columns, lines.write)
            (parquet / "source.json").rename(folder / "source.json")
    except OSError as error:
        raise unwritable(output, error) from None


def _write_documents(path: Path, columns: Sequence[str], write: Callable[[str], int]) -> None:
    try:
        known = pq.read_schema(path).names
        missing = sorted(set(columns) - set(known))
        if missing:
            raise CheckpointError(
                f"{path.name}: has no column {', '.join(missing)}; it has {', '.join(known)}"
            )
        table = pq.read_table(path, columns=list(columns))
    except pa.ArrowInvalid as error:
        problem = " ".join(str(error).split())
        raise CheckpointError(f"{path.name}: cannot be read as Parquet ({problem})") from None
    for row in table.to_pylist():
        write("\t".join(" ".join(str(row[column]).split()) for column in columns) + "\n")
