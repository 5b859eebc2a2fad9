"""What a command costs before it does anything: the start, and the imports."""

import ast
import inspect
import json
import os
import statistics
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from typing import Any

import typer
from conditions import COMMAND
from figure import Figure

from rankcollapse.cli import app

REPETITIONS = 5
HEAVY = ("torch", "transformers", "mlflow", "seaborn", "matplotlib", "pandas", "scipy.stats")
# What the module of a command may import; what only a part of it needs is imported there.
USES = {
    "evaluate": {"torch", "transformers"},
    "residuals": {"torch", "pandas"},
    "curves": {"pandas"},
    "train": {"torch", "pandas"},
    "paths": {"torch", "pandas"},
    "circle": {"torch", "pandas"},
    "accuracy": {"pandas"},
    "join": {"pandas"},
    "claims": {"pandas"},
    "decompose": {"torch", "transformers", "pandas"},
    "heads": {"torch", "transformers", "pandas"},
    "chain": {"torch", "transformers", "pandas"},
    "bounds": {"torch", "transformers", "pandas"},
    "pure_san": {"torch", "transformers", "pandas"},
    "relative": {"torch", "transformers", "pandas"},
    "components": {"pandas"},
    "rates": {"pandas"},
    "asymptote": {"torch", "pandas"},
    "quartiles": {"pandas"},
    "judge": {"pandas"},
    "causes": {"pandas"},
    "figure": {"pandas"},
    "verdict": {"pandas"},
    "report": {"pandas"},
}


def run_idle() -> tuple[list[Figure], dict[str, list[str]]]:
    """Return what is measured, and the heavy modules that each command imports at once."""
    imports = {name: _heavy_imports(callback) for name, callback in _commands(app)}
    unused = {
        name: extra
        for name, modules in imports.items()
        if (extra := sorted(set(modules) - USES.get(name, set())))
    }
    note = "; ".join(f"{name}: {', '.join(modules)}" for name, modules in unused.items())
    figures = [
        Figure(
            part="idle",
            name="rankcollapse --help",
            value=_help_seconds(),
            unit="s",
            limit=0.5,
            note=f"median of {REPETITIONS}",
        ),
        Figure(
            part="idle",
            name="commands that import what they do not use",
            value=len(unused),
            unit="",
            limit=0,
            note=note,
        ),
    ]
    return figures, imports


def _commands(group: typer.Typer, prefix: str = "") -> Iterator[tuple[str, Callable[..., Any]]]:
    for command in group.registered_commands:
        if command.callback is not None:
            yield prefix + (command.name or command.callback.__name__), command.callback
    for inner in group.registered_groups:
        if inner.typer_instance is not None:
            # A group without a name adds its commands to those of the group above.
            name = f"{inner.name} " if isinstance(inner.name, str) else ""
            yield from _commands(inner.typer_instance, prefix + name)


def _heavy_imports(callback: Callable[..., Any]) -> list[str]:
    """Return which heavy modules are there once the imports in a command's function have run."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(callback)))
    statements = [ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    code = [
        "import json, sys, rankcollapse.cli",
        *statements,
        f"print(json.dumps([name for name in {HEAVY!r} if name in sys.modules]))",
    ]
    answer = subprocess.run(
        [sys.executable, "-c", "\n".join(code)], check=True, capture_output=True, text=True
    )
    modules: list[str] = json.loads(answer.stdout)
    return modules


def _help_seconds() -> float:
    times = []
    for _ in range(REPETITIONS):
        start = time.perf_counter()
        subprocess.run([COMMAND, "--help"], check=True, stdout=subprocess.DEVNULL, env=os.environ)
        times.append(time.perf_counter() - start)
    return statistics.median(times)
