"""Measure speed and memory against the limits that the project sets itself: `make bench`.

    python benchmarks/run.py [--quick] [--output benchmarks/results.json]

Prints a table and writes the same figures as JSON. Meant for a quiet machine: the load before the
start is written beside the figures. `--quick` only shows that everything runs.
"""

import argparse
import json
import os
import platform
import sys
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil
from conditions import FULL, QUICK, Size, borrowed_tokenizer, run_conditions, threads_each
from figure import Figure, as_json, print_table
from idle import run_idle

from rankcollapse.files import write_text

QUIET_LOAD = 0.5
PACKAGES = ("rankcollapse", "torch", "transformers", "numpy")


def main() -> None:
    """Run all parts, print the table and write the JSON file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="tiny models; figures mean nothing")
    parser.add_argument("--output", type=Path, default=Path(__file__).with_name("results.json"))
    parser.add_argument("--workers", type=int, default=3, help="models under way at once")
    arguments = parser.parse_args()
    machine = {**describe_machine(), "threads": threads_each(arguments.workers)}
    if machine["load_before"] > QUIET_LOAD:
        print(f"this machine is not quiet: load {machine['load_before']:.2f}", file=sys.stderr)
    size = QUICK if arguments.quick else FULL
    idle, imports = run_idle()
    figures = [*_working(size, workers=arguments.workers, quick=arguments.quick), *idle]
    print_table(figures, title="tiny models: the figures mean nothing" if arguments.quick else "")
    result = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "quick": arguments.quick,
        "machine": machine,
        "figures": as_json(figures),
        "imports": imports,
    }
    write_text(arguments.output, json.dumps(result, indent=1, ensure_ascii=False) + "\n")
    print(f"written to {arguments.output}")


def _working(size: Size, *, workers: int, quick: bool) -> list[Figure]:
    cores = os.cpu_count() or 1
    with TemporaryDirectory(prefix="rankcollapse-") as name:
        tokenizer = borrowed_tokenizer(Path(name), quick=quick)
        figures = run_conditions(size, tokenizer, workers=workers)
        # Only now, because a process starts with the memory of the one that starts it counted.
        from decomposition import run_decomposition
        from ratios import run_ratios
        from training import run_training

        for threads in sorted({1, cores}):
            figures += run_ratios(size, tokenizer, threads=threads)
        figures += run_training(quick=quick)
        figures += run_decomposition(quick=quick)
    return figures


def describe_machine() -> dict[str, Any]:
    """Return what the figures depend on."""
    return {
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
        "system": platform.platform(),
        "python": platform.python_version(),
        "packages": {name: metadata.version(name) for name in PACKAGES},
        "load_before": os.getloadavg()[0],
    }


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


if __name__ == "__main__":
    main()
