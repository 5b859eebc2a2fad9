"""Files that exist whole or not at all, and their hashes."""

import glob
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MARK = "unfinished"


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Give a temporary path beside `path` that takes its name if the block succeeds.

    Args:
        path: where the file shall be; missing parent folders are made.

    Yields:
        The path to write to; it does not exist yet.

    Raises:
        OSError: the folder cannot be written, or the disk is full; nothing is left behind.
    """
    with _beside(path) as folder:
        temporary = folder / path.name
        yield temporary
        temporary.replace(path)


@contextmanager
def atomic_directory(path: Path) -> Iterator[Path]:
    """Give a temporary folder beside `path` that takes its name if the block succeeds.

    An older folder of that name is replaced.

    Args:
        path: where the folder shall be; missing parent folders are made.

    Yields:
        An empty folder to fill.

    Raises:
        OSError: the parent cannot be written, or the disk is full; nothing is left behind.
    """
    with _beside(path) as folder:
        fresh = folder / "fresh"
        fresh.mkdir()
        yield fresh
        if path.exists():
            path.rename(folder / "old")
        fresh.rename(path)


@contextmanager
def _beside(path: Path) -> Iterator[Path]:
    """Make a temporary folder beside `path`, and remove those that killed jobs left there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    prefix = f".{path.name}."
    for left in path.parent.glob(f"{glob.escape(prefix)}????????.{MARK}"):
        shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=prefix, suffix=f".{MARK}") as folder:
        yield Path(folder)


def write_text(path: Path, text: str) -> None:
    """Write `text` as UTF-8 to `path`, whole or not at all."""
    with atomic_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")


def copy_file(source: Path, target: Path) -> None:
    """Copy `source` to `target`, whole or not at all."""
    with atomic_file(target) as temporary:
        shutil.copyfile(source, temporary)


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file as 64 hex digits."""
    return _digest(path, "sha256")


def md5(path: Path) -> str:
    """Return the MD5 of a file as 32 hex digits: the name that DVC gives its content."""
    return _digest(path, "md5")


def _digest(path: Path, algorithm: str) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, algorithm).hexdigest()


def free_bytes(path: Path) -> int:
    """Return the bytes free on the disk that holds `path` or its nearest existing parent."""
    while not path.exists():
        path = path.parent
    status = os.statvfs(path)
    return status.f_bavail * status.f_frsize
