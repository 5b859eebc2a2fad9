"""Run a download in a child process that is ended when it makes no progress."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from rankcollapse.checkpoints.manifest import CheckpointError

POLL_S = 0.05
LINE_EVERY_S = 10.0
MEGA = 1e6


@dataclass(frozen=True)
class Finished:
    """What a child process left."""

    code: int
    output: str
    errors: str


def run_watched(
    command: Sequence[str],
    *,
    folder: Path,
    deadline: float,
    label: str,
    environment: Mapping[str, str],
    request: str = "",
    total: int | None = None,
) -> Finished:
    """Run a command that downloads into a folder.

    Args:
        command: program and arguments.
        folder: where its bytes land; their number is its progress.
        deadline: seconds without a new byte after which it is killed.
        label: what is downloaded, for people.
        environment: the child's.
        request: text for its standard input, which stays open while this process lives.
        total: bytes to come, if known.

    Raises:
        CheckpointError: no progress within the deadline.
    """
    with (
        tempfile.TemporaryFile("w+", dir=folder, encoding="utf-8") as output,
        tempfile.TemporaryFile("w+", dir=folder, encoding="utf-8") as errors,
        shown(label, total) as show,
    ):
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=errors,
            env=dict(environment),
            text=True,
        )
        try:
            _send(process, request)
            _wait(process, folder, deadline, label, show)
        finally:
            process.kill()
            process.wait()
            _hang_up(process)
        return Finished(process.returncode, _text(output), _text(errors))


def _send(process: "subprocess.Popen[str]", request: str) -> None:
    if process.stdin is None:
        return
    try:
        process.stdin.write(request)
        process.stdin.flush()
    except BrokenPipeError:
        # The child died at once; its exit status and its errors say why.
        return


def _hang_up(process: "subprocess.Popen[str]") -> None:
    if process.stdin is not None:
        try:
            process.stdin.close()
        except BrokenPipeError:
            return


def _wait(
    process: "subprocess.Popen[str]",
    folder: Path,
    deadline: float,
    label: str,
    show: Callable[[int], None],
) -> None:
    size, moved = 0, time.monotonic()
    while process.poll() is None:
        time.sleep(POLL_S)
        now = _bytes_below(folder)
        if now != size:
            size, moved = now, time.monotonic()
            show(size)
        elif time.monotonic() - moved > deadline:
            raise CheckpointError(
                f"{label}: no answer for {deadline:g} s; check the network and try again"
            )


def _bytes_below(folder: Path) -> int:
    total = 0
    # os.walk, and not rglob, passes over a folder that the child has removed since it was listed.
    for root, _, names in os.walk(folder):
        for name in names:
            try:
                total += Path(root, name).stat().st_size
            except OSError:
                # Renamed or removed likewise.
                continue
    return total


def _text(stream: IO[str]) -> str:
    stream.seek(0)
    return stream.read()


@contextmanager
def shown(label: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """Show a download on standard error: a bar on a terminal, lines in a log.

    Args:
        label: what is downloaded.
        total: bytes to come, if known.

    Yields:
        A function that takes the number of bytes that have come.
    """
    if not sys.stderr.isatty():
        yield _lines(label, total)
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(label, total=total)
        yield lambda done: bar.update(task, completed=done)


def _lines(label: str, total: int | None) -> Callable[[int], None]:
    of = "" if total is None else f" of {total / MEGA:.1f}"
    printed = time.monotonic()

    def update(done: int) -> None:
        nonlocal printed
        if time.monotonic() - printed > LINE_EVERY_S:
            printed = time.monotonic()
            print(f"{label}: {done / MEGA:.1f}{of} MB", file=sys.stderr, flush=True)

    size = "" if total is None else f", {total / MEGA:.1f} MB"
    print(f"{label}{size}", file=sys.stderr, flush=True)
    return update
