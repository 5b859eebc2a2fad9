"""Hand the events of `rankcollapse.tracking` to an MLflow store.

The work is done in a child process: importing MLflow costs seconds, its first use of a SQLite store
fills the screen, and a store that never answers can only be left by killing who waits for it.
"""

import hashlib
import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import urllib.error
import urllib.request
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import psutil

from rankcollapse.errors import RankCollapseError
from rankcollapse.tracking import Event, event_files, read_events

DEFAULT_URI = "sqlite:///mlflow.db"
PATIENCE = 60  # seconds without progress
REBUILD = "`rankcollapse flush --all` makes it anew"
QUIET = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
}


class StoreError(RankCollapseError):
    """The MLflow store cannot be used; the events stay and the next flush takes them."""


@dataclass(frozen=True)
class Flushed:
    """How many events went where."""

    count: int = 0  # became runs now
    already: int = 0  # are runs since an earlier flush
    running: int = 0  # have not ended; a later flush takes them
    failed: int = 0  # could not be read


def default_uri() -> str:
    """Return `MLFLOW_TRACKING_URI`, or the store `mlflow.db` of this folder."""
    return os.environ.get("MLFLOW_TRACKING_URI") or DEFAULT_URI


def flush(logs: Path, *, uri: str, rebuild: bool = False) -> Flushed:
    """Make every event that has ended a run of the store, once.

    Args:
        logs: the folder of the events.
        uri: an MLflow tracking URI; a SQLite store is made where it is missing, and keeps its
            artifacts in `mlartifacts` beside it.
        rebuild: forget what the store holds and make it anew from all events, which mends a broken
            SQLite store and one whose folder was moved.

    Returns:
        What happened to how many events.

    Raises:
        StoreError: the store is missing its folder, locked, broken, unreachable or silent.
    """
    ready, result = pending(logs, uri)
    if not (ready or rebuild):
        return result
    command = [sys.executable, "-P", "-m", "rankcollapse.mlflow_runs", str(logs), uri]
    child = subprocess.run(
        [*command, *(["--all"] if rebuild else [])],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        encoding="utf-8",
        env={**os.environ, **QUIET, "PYTHONIOENCODING": "utf-8"},
    )
    if child.returncode == -signal.SIGALRM:
        raise StoreError(why(uri, f"no answer for {PATIENCE} s"))
    try:
        answer = json.loads(child.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        last = child.stderr.strip().splitlines()[-1:]
        raise StoreError(why(uri, f"MLflow failed ({' '.join(last)})")) from None
    if "error" in answer:
        raise StoreError(answer["error"])
    return Flushed(**answer)


def why(uri: str, reason: object, remedy: str = "mend it, then `rankcollapse flush`") -> str:
    """Return the one line that says what is wrong with a store."""
    words = " ".join(str(reason).split())
    return f"MLflow store {uri}: {words[:300]}; the events stay: {remedy}"


def check(uri: str, *, contents: bool = True) -> None:
    """Look whether the store can be used, without importing MLflow.

    Args:
        uri: the store.
        contents: look into a SQLite file too, not only for its folder.

    Raises:
        StoreError: it cannot; a SQLite file that does not exist yet is no error.
    """
    path = database(uri)
    if path is not None:
        if not path.parent.is_dir():
            raise StoreError(why(uri, f"there is no folder {path.parent}"))
        if contents and path.exists():
            _check_database(uri, path)
    elif uri.startswith(("http://", "https://")):
        _check_server(uri)


def database(uri: str) -> Path | None:
    """Return the absolute path of a SQLite store, or None for any other."""
    name = uri.removeprefix("sqlite:///")
    return None if name == uri else Path(name).absolute()


def _check_database(uri: str, path: Path) -> None:
    try:
        with closing(sqlite3.connect(path, timeout=5, isolation_level=None)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            verdict = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
            connection.execute("ROLLBACK")
    except sqlite3.OperationalError as error:
        raise StoreError(why(uri, str(error))) from None
    except sqlite3.DatabaseError as error:
        verdict = str(error)
    if verdict != "ok":
        raise StoreError(why(uri, f"broken ({verdict})", REBUILD))


def _check_server(uri: str) -> None:
    try:
        urllib.request.urlopen(f"{uri.rstrip('/')}/health", timeout=10).close()
    except urllib.error.HTTPError:
        return  # It answers; whether it is MLflow, MLflow will say.
    except (OSError, ValueError) as error:
        raise StoreError(why(uri, f"cannot be reached ({error})")) from None


def pending(logs: Path, uri: str, *, everything: bool = False) -> tuple[list[Event], Flushed]:
    """Return the events that are not yet runs of the store as far as this folder remembers.

    Args:
        logs: the folder of the events.
        uri: the store.
        everything: count no event as known to the store.

    Returns:
        Those that have ended, and the count of all others.
    """
    files, events = event_files(logs), read_events(logs)
    memory = None if everything else marker(logs, uri)
    marked = set(memory.read_text().split()) if memory and memory.exists() else set()
    fresh = [event for event in events if event.id not in marked]
    ready = [event for event in fresh if event.status != "RUNNING" or killed(event)]
    return ready, Flushed(
        already=len(events) - len(fresh),
        running=len(fresh) - len(ready),
        failed=len(files) - len(events),
    )


def killed(event: Event) -> bool:
    """Say whether an event that says RUNNING belongs to a process of this host that is gone."""
    if event.status != "RUNNING" or event.tags.get("hostname") != socket.gethostname():
        return False
    try:
        # A process that is younger than the event only has the same number.
        return bool(psutil.Process(event.pid).create_time() > event.start.timestamp())
    except psutil.NoSuchProcess:
        return True


def marker(logs: Path, uri: str) -> Path | None:
    """Return the file that lists the events flushed to this store; None if there is no store.

    A SQLite file that was deleted and made anew is another store: its first experiment is younger.
    """
    path = database(uri)
    identity = uri
    if path is not None:
        born = _born(path)
        if born is None:
            return None
        identity = f"{path} {born}"
    return logs / f".flushed-{hashlib.sha256(identity.encode()).hexdigest()[:16]}"


def _born(path: Path) -> int | None:
    query = "SELECT min(creation_time) FROM experiments"
    try:
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as connection:
            born: int | None = connection.execute(query).fetchone()[0]
            return born
    except sqlite3.Error:
        return None
