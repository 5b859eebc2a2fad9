"""Write events as runs of an MLflow store: the child process of `rankcollapse.mlflow_store`.

`python -m rankcollapse.mlflow_runs LOGS URI [--all]` prints one line of JSON: the counts of
`Flushed`, or `error`. It is ended by SIGALRM where the store does not answer.
"""

import fcntl
import hashlib
import json
import posixpath
import re
import shutil
import signal
import sqlite3
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from datetime import datetime
from itertools import chain
from pathlib import Path

from mlflow.entities import Metric, Param, Run
from mlflow.tracking import MlflowClient
from sqlalchemy import Engine
from sqlalchemy import event as sqlalchemy_event

from rankcollapse.files import md5, write_text
from rankcollapse.mlflow_store import (
    PATIENCE,
    REBUILD,
    Flushed,
    StoreError,
    check,
    database,
    marker,
    pending,
    why,
)
from rankcollapse.tracking import Event

NAME_LENGTH, PARAM_LENGTH, TAG_LENGTH = 250, 6000, 8000
BATCH = {"metrics": 900, "params": 100}


@sqlalchemy_event.listens_for(Engine, "connect")
def _wait_for_no_disk(connection: object, _: object) -> None:
    """Halve the time of a flush; what a loss of power breaks, the events can rebuild."""
    if isinstance(connection, sqlite3.Connection):
        connection.execute("PRAGMA synchronous = OFF")


@contextmanager
def _lock(logs: Path, uri: str) -> Iterator[None]:
    deadline = time.monotonic() + PATIENCE
    with (logs / ".flush.lock").open("a") as stream:
        while True:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise StoreError(why(uri, "another flush is running")) from None
                time.sleep(0.1)
        yield


def flush_events(logs: Path, uri: str, *, rebuild: bool) -> Flushed:
    """Do what `mlflow_store.flush` promises, in this process, which a silent store may kill.

    Args:
        logs: the folder of the events.
        uri: an MLflow tracking URI.
        rebuild: make the store anew from all events.

    Returns:
        What happened to how many events.

    Raises:
        StoreError: the store cannot be used, or another flush does not end.
    """
    with _lock(logs, uri):
        signal.alarm(PATIENCE)
        try:
            return _flush(logs, uri, rebuild=rebuild)
        finally:
            signal.alarm(0)


def _flush(logs: Path, uri: str, *, rebuild: bool) -> Flushed:
    ready, result = pending(logs, uri, everything=rebuild)
    path = database(uri)
    if path is None:
        check(uri)
        client, artifacts = MlflowClient(tracking_uri=uri), None
        new = _write_runs(client, ready, artifacts, again=rebuild)
    elif rebuild:
        new = _rebuild(path, ready)
    else:
        check(uri)
        client, artifacts = MlflowClient(tracking_uri=f"sqlite:///{path}"), _artifacts(path)
        new = _write_runs(client, ready, artifacts, again=False)
    memory = marker(logs, uri)
    if memory is not None:
        old = memory.read_text().split() if memory.exists() else []
        write_text(memory, "\n".join([*old, *(event.id for event in ready)]) + "\n")
    return replace(result, count=len(new), already=result.already + len(ready) - len(new))


def _artifacts(path: Path) -> Path:
    return path.parent / "mlartifacts"


def _rebuild(path: Path, events: list[Event]) -> list[str]:
    """Make a SQLite store from all events beside the old one, then put it in its place."""
    check(f"sqlite:///{path}", contents=False)
    fresh = path.with_name(f"{path.name}.rebuilding")
    _remove(fresh)
    client = MlflowClient(tracking_uri=f"sqlite:///{fresh}")
    new = _write_runs(client, events, _artifacts(path), again=False)
    # A journal that the old file left would be applied to the new one.
    _remove(path)
    fresh.replace(path)
    for profile in {event.profile for event in events}:
        for folder in (_artifacts(path) / profile).glob("*"):
            if re.fullmatch("[0-9a-f]{32}", folder.name) and folder.name not in new:
                shutil.rmtree(folder)
    return new


def _remove(path: Path) -> None:
    for suffix in ("", "-journal", "-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def _write_runs(
    client: MlflowClient, events: list[Event], artifacts: Path | None, *, again: bool
) -> list[str]:
    """Return the ids of the runs made; a run that a killed flush left half is made anew."""
    profiles = sorted({event.profile for event in events})
    experiments = {profile: _experiment(client, profile, artifacts) for profile in profiles}
    known = _known(client, list(experiments.values()), events)
    new = []
    for event in events:
        signal.alarm(PATIENCE)
        old = known.get(event.id)
        if old is not None and old.info.status != "RUNNING" and not again:
            continue
        if old is not None:
            client.delete_run(old.info.run_id)
        new.append(_write_run(client, experiments[event.profile], event, artifacts))
    return new


def _experiment(client: MlflowClient, profile: str, artifacts: Path | None) -> str:
    location = None if artifacts is None else str(artifacts / profile)
    found = client.get_experiment_by_name(profile)
    if found is None:
        return str(client.create_experiment(profile, artifact_location=location))
    if location not in (None, found.artifact_location):
        moved = f"its artifacts lie in {found.artifact_location}: the folder was moved"
        raise StoreError(why(client.tracking_uri, moved, REBUILD))
    if found.lifecycle_stage == "deleted":
        client.restore_experiment(found.experiment_id)
    return str(found.experiment_id)


def _known(client: MlflowClient, experiments: list[str], events: list[Event]) -> dict[str, Run]:
    """Return the runs in the store that may be of these events, by event."""
    if not events:
        return {}
    since = f"attributes.start_time >= {min(_milliseconds(event.start) for event in events)}"
    runs: dict[str, Run] = {}
    token = None
    while True:
        page = client.search_runs(experiments, since, max_results=1000, page_token=token)
        runs.update({run.data.tags["event_id"]: run for run in page if "event_id" in run.data.tags})
        token = page.token
        if not token:
            return runs


def _write_run(client: MlflowClient, experiment: str, event: Event, artifacts: Path | None) -> str:
    start, end = _milliseconds(event.start), _milliseconds(event.end or event.start)
    copies = {name: _copy(event, name, artifacts) for name in event.artifacts}
    lost = {f"artifact/{name}": "changed or gone" for name, copy in copies.items() if not copy}
    tags = {_name(key): value[:TAG_LENGTH] for key, value in _tags(event, lost).items()}
    name = f"{event.rule} {event.key}"[:NAME_LENGTH]
    run = client.create_run(experiment, start, tags, name).info.run_id
    entities = {
        "metrics": [Metric(_name(m.name), m.value, end, m.step) for m in event.metrics],
        "params": [Param(_name(key), text[:PARAM_LENGTH]) for key, text in event.params.items()],
    }
    while any(entities.values()):
        client.log_batch(run, **{kind: some[: BATCH[kind]] for kind, some in entities.items()})
        entities = {kind: some[BATCH[kind] :] for kind, some in entities.items()}
    for copy in filter(None, copies.values()):
        client.log_artifact(run, str(copy))
    client.set_terminated(run, "KILLED" if event.status == "RUNNING" else event.status, end)
    return str(run)


def _tags(event: Event, more: dict[str, str]) -> dict[str, str]:
    facts = {
        "event_id": event.id,
        "workflow": event.workflow,
        "error": event.error,
        "process": str(event.pid),
    }
    return {**event.tags, **{key: value for key, value in facts.items() if value}, **more}


def _copy(event: Event, name: str, artifacts: Path | None) -> Path | None:
    """Return a file with the bytes that the run wrote: the file itself, or the store's copy."""
    wanted = event.tags.get(f"md5/{name}")
    kept = artifacts.rglob(Path(name).name) if artifacts else iter(())
    for path in chain([Path(name)], kept):
        if path.is_file() and md5(path) == wanted:
            return path
    return None


def _name(text: str) -> str:
    """Return a name that MLflow accepts, the same for the same text and another for another."""
    clean = posixpath.normpath(re.sub(r"[^/\w.\- :]", "_", text)).lstrip("./") or "_"
    if clean == text and len(text) <= NAME_LENGTH:
        return text
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    return f"{clean[: NAME_LENGTH - 9]}-{digest}"


def _milliseconds(time: datetime) -> int:
    return int(time.timestamp() * 1000)


def main(arguments: list[str]) -> None:
    """Flush as the arguments say, and print the counts or the error as one line of JSON."""
    logs, uri, *rest = arguments
    try:
        answer = asdict(flush_events(Path(logs), uri, rebuild=rest == ["--all"]))
    except StoreError as error:
        answer = {"error": str(error)}
    except Exception as error:  # MLflow lets through what SQLAlchemy, requests and the disk raise.
        answer = {"error": why(uri, f"{type(error).__name__}: {error}")}
    print(json.dumps(answer))


if __name__ == "__main__":
    main(sys.argv[1:])
