"""Which files of this package a module depends on, read from its imports.

The workflow gives these files to Snakemake and DVC, so that an edit re-runs what it concerns.
Left out are the package's own `__init__.py`, which only forwards names, and `cli.py`, whose flags
stand in each rule's command.
"""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parent


def source_files(*modules: str) -> list[str]:
    """Return the files that these modules import, directly or not, and their own.

    Imports inside functions count, those for type checkers alone do not.

    Args:
        modules: below the package, as "figures.figure2".

    Returns:
        Paths relative to the repository, sorted.

    Raises:
        ValueError: there is no such module.
    """
    found: set[Path] = set()
    waiting = [_path(module) for module in modules]
    for module, path in zip(modules, waiting, strict=True):
        if path is None:
            raise ValueError(f"rankcollapse has no module {module!r}")
    while waiting:
        path = waiting.pop()
        if path is not None and path not in found:
            found.add(path)
            waiting += [_path(module) for module in _imports(path)]
    found.discard(PACKAGE / "__init__.py")
    return sorted(f"src/rankcollapse/{path.relative_to(PACKAGE).as_posix()}" for path in found)


def _path(module: str) -> Path | None:
    base = PACKAGE.joinpath(*module.split("."))
    candidates = (base.with_suffix(".py"), base / "__init__.py")
    return next((path for path in candidates if path.is_file()), None)


@cache
def _imports(path: Path) -> tuple[str, ...]:
    """Return the package's modules that a file imports, and the packages that hold them."""
    return tuple(_imported(path))


def _imported(path: Path) -> Iterator[str]:
    for node in _run_time_nodes(ast.parse(path.read_text(encoding="utf-8"))):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        for name in names:
            parts = name.split(".")
            if parts[0] == PACKAGE.name:
                yield from (".".join(parts[1:end]) for end in range(2, len(parts) + 1))


def _run_time_nodes(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            continue
        yield child
        yield from _run_time_nodes(child)
