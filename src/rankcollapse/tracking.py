"""Events: one JSON file per executed job, which says what ran, when, on what, with what result.

A job writes its event and imports nothing for it; `rankcollapse.mlflow_store` hands the events to
MLflow later, from one process.
"""

import json
import logging
import math
import os
import platform
import resource
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Literal, SupportsFloat

from rankcollapse.errors import RankCollapseError
from rankcollapse.files import md5, write_text

WORKFLOW_VARIABLE = "RANKCOLLAPSE_WORKFLOW"
PACKAGES = ("rankcollapse", "torch", "transformers", "numpy")
GIT_STATUS = ("git", "status", "--porcelain=v2", "--branch", "--untracked-files=no")

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A finite number; the step is a layer, an epoch or a path length."""

    name: str
    value: float
    step: int


@dataclass(frozen=True, kw_only=True)
class Event:
    """One execution of a job, as its file has it. RUNNING may also mean that it was killed."""

    id: str
    profile: str
    rule: str
    key: str
    workflow: str | None
    pid: int
    status: Literal["RUNNING", "FINISHED", "FAILED"]
    error: str | None
    start: datetime
    end: datetime | None
    params: dict[str, str]
    metrics: list[Metric]
    tags: dict[str, str]
    artifacts: list[str]

    @property
    def seconds(self) -> float | None:
        """Return how long the job took, or None if it has not ended."""
        return None if self.end is None else (self.end - self.start).total_seconds()


@dataclass(frozen=True)
class Run:
    """What a job says about itself while it runs."""

    metrics: list[Metric] = field(default_factory=list)
    tags: dict[str, str] = field(default_factory=dict)
    artifacts: list[str] = field(default_factory=list)

    def metric(self, name: str, value: SupportsFloat, step: int = 0) -> None:
        """Record a number; one that is not finite becomes the tag `metric/{name}/{step}`.

        Args:
            name: as MLflow shall show it.
            value: anything that `float` takes.
            step: the layer, epoch or path length.
        """
        number = float(value)
        if math.isfinite(number):
            self.metrics.append(Metric(name=name, value=number, step=step))
        else:
            self.tag(f"metric/{name}/{step}", str(number))

    def tag(self, key: str, value: object) -> None:
        """Record a word about the run, such as its device."""
        self.tags[key] = str(value)

    def artifact(self, path: Path) -> None:
        """Name a file, written before the run ends, that MLflow shall keep a copy of."""
        self.artifacts.append(path.as_posix())


@contextmanager
def run(
    event: Path | None,
    *,
    params: Mapping[str, object],
    inputs: Iterable[Path],
    outputs: Iterable[Path],
) -> Iterator[Run]:
    """Record the block as one execution of a job.

    The file is `{event}.{start, UTC}.{process id}.json`: RUNNING from the start, replaced by
    FINISHED or FAILED at the end. A process that was killed leaves RUNNING.

    Args:
        event: `logs/{profile}/{rule}/{key}`, or None to record nothing.
        params: the flags of the job.
        inputs: files and folders that it reads; their MD5 is taken before the block.
        outputs: files and folders that it writes; their MD5 is taken after the block.

    Yields:
        What takes the metrics, tags and artifacts of this run.

    Raises:
        RankCollapseError: the event cannot be written; the block has not started.
        ValueError: `event` has fewer than three parts.
    """
    record = Run()
    if event is None:
        yield record
        return
    started = _started(event, params, record)
    path = event.with_name(f"{event.name}.{started.start:%Y%m%dT%H%M%S.%fZ}.{started.pid}.json")
    try:
        _write(path, started)
    except OSError as error:
        why = f"{path.parent}: cannot write the event of this run ({error.strerror})"
        raise RankCollapseError(f"{why}; make the folder writable") from None
    try:
        record.tags.update(_hashes(inputs))
        _write(path, started)
        yield record
        record.tags.update(_hashes([*outputs, *map(Path, record.artifacts)]))
    except BaseException as error:
        _finish(path, replace(started, status="FAILED", error=_one_line(error)))
        raise
    _finish(path, replace(started, status="FINISHED"))


def _started(event: Path, params: Mapping[str, object], record: Run) -> Event:
    if len(event.parts) < 3:
        raise ValueError(f"event {str(event)!r} must end in PROFILE/RULE/KEY")
    profile, rule, key = event.parts[-3:]
    start = datetime.now(UTC)
    record.tags.update({"rule": rule, "hostname": socket.gethostname(), **_versions(), **_git()})
    return Event(
        id=uuid.uuid4().hex,
        profile=profile,
        rule=rule,
        key=key,
        workflow=os.environ.get(WORKFLOW_VARIABLE),
        pid=os.getpid(),
        status="RUNNING",
        error=None,
        start=start,
        end=None,
        params={name: _text(value) for name, value in params.items()},
        metrics=record.metrics,
        tags=record.tags,
        artifacts=record.artifacts,
    )


def _finish(path: Path, event: Event) -> None:
    event.tags["peak_memory_mb"] = f"{_peak_memory():.0f}"
    try:
        _write(path, replace(event, end=datetime.now(UTC)))
    except OSError as error:
        # The work is done and its files are there: worth more than the record of it.
        logger.warning("%s: the end of this run is not recorded (%s)", path, error.strerror)


def _write(path: Path, event: Event) -> None:
    text = json.dumps(asdict(event), indent=1, default=datetime.isoformat, ensure_ascii=False)
    # A file name that is not UTF-8 reaches Python as lone surrogates, which no reader takes.
    write_text(path, text.encode("utf-8", "replace").decode() + "\n")


def _text(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _one_line(error: BaseException) -> str:
    words = " ".join(str(error).split())
    return words if isinstance(error, RankCollapseError) else f"{type(error).__name__}: {words}"


def _hashes(paths: Iterable[Path]) -> dict[str, str]:
    return {f"md5/{file.as_posix()}": md5(file) for path in paths for file in _files(path)}


def _files(path: Path) -> list[Path]:
    found = sorted(path.rglob("*")) if path.is_dir() else [path]
    return [file for file in found if file.is_file() and _kept(file.relative_to(path), file)]


def _kept(inside: Path, file: Path) -> bool:
    """Leave out hidden files, and the states, which no version of the data keeps."""
    hidden = any(part.startswith(".") for part in inside.parts)
    return not hidden and not (file.suffix == ".safetensors" and "hidden_states" in file.parts)


def _versions() -> dict[str, str]:
    found = {"version/python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[f"version/{package}"] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def _git() -> dict[str, str]:
    # Jobs run in parallel, and none of them may take the lock of the index.
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
    try:
        answer = subprocess.run(
            GIT_STATUS, capture_output=True, text=True, env=environment, timeout=20, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return {}
    lines = answer.stdout.splitlines()
    changed = any(not line.startswith("#") for line in lines)
    commits = [line.split()[-1] for line in lines if line.startswith("# branch.oid")]
    return {"git_commit": commits[0], "git_dirty": str(changed).lower()}


def _peak_memory() -> float:
    """Return the largest resident size of this process so far, in MiB."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 2**10


def event_files(logs: Path) -> list[Path]:
    """Return the files of all events under `logs/{profile}/{rule}/`, sorted."""
    return sorted(logs.glob("*/*/*.json"))


def read_events(logs: Path) -> list[Event]:
    """Read all events, oldest first; a damaged file is named in a warning and left out.

    Args:
        logs: the folder that holds `{profile}/{rule}/{key}.*.json`; it may be missing.
    """
    # 0.1 s that no job needs to spend.
    from pydantic import TypeAdapter, ValidationError

    reader = TypeAdapter(Event)
    events = []
    for path in event_files(logs):
        try:
            events.append(reader.validate_json(path.read_bytes()))
        except (ValidationError, OSError):
            logger.warning("%s: not an event, left out; delete the file", path)
    return sorted(events, key=lambda event: event.start)
