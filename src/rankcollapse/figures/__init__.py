"""One module a figure, and the one place that knows what each of them reads."""

from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import pandas as pd

from rankcollapse.published import read_figure2
from rankcollapse.tables import read_csv, read_curves, write_csv
from rankcollapse.task_tables import (
    CIRCLE_COLUMNS,
    LENGTH_COLUMNS,
    TRAJECTORY_COLUMNS,
    read_accuracy,
)

# The tables that a figure reads, in the order that its functions take them.
READS: dict[str, tuple[str, ...]] = {
    "figure1": (),
    "figure2": ("curves", "published"),
    "figure3": ("trajectories", "circle"),
    "figure4": ("accuracy",),
    "figure5": (),
    "readings": ("curves",),
    "texts": ("curves",),
    "width_depth": ("lengths",),
}
_READERS: dict[str, Callable[[Path], pd.DataFrame]] = {
    "accuracy": read_accuracy,
    "circle": lambda path: read_csv(path, CIRCLE_COLUMNS),
    "curves": read_curves,
    "lengths": lambda path: read_csv(path, LENGTH_COLUMNS),
    "published": read_figure2,
    "trajectories": lambda path: read_csv(path, TRAJECTORY_COLUMNS),
}


def draw(
    name: str, stem: Path, *, tables: Mapping[str, Path | None], text: str, seed: int
) -> list[Path]:
    """Draw a figure and write the numbers in it beside it.

    Args:
        name: module of this package.
        stem: path without ending.
        tables: where the tables are that this figure reads (`READS`).
        text: name of the text that stands for the published one.
        seed: of figure 1's network.

    Returns:
        The files written: PDF, one PNG a page, CSV.

    Raises:
        ValueError: a table that this figure reads is not given.
        RankCollapseError: a table is missing or damaged.
    """
    from rankcollapse.figures.output import save

    module: Any = import_module(f"{__name__}.{name}")
    arguments = [_READERS[table](_given(tables, name, table)) for table in READS[name]]
    options: dict[str, Any] = {}
    if "curves" in READS[name]:
        options["text"] = text
    if name == "figure1":
        options["seed"] = seed
    drawn = module.draw(*arguments, **options)
    pages = drawn if isinstance(drawn, dict) else {"": drawn}
    paths = save(pages, stem)
    numbers = stem.with_suffix(".csv")
    write_csv(numbers, module.table(*arguments, **options))
    return [*paths, numbers]


def _given(tables: Mapping[str, Path | None], name: str, table: str) -> Path:
    path = tables.get(table)
    if path is None:
        raise ValueError(f"{name} needs --{table}")
    return path
