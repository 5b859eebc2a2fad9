"""One module a figure, and the one place that knows what each of them reads."""

from importlib import import_module
from pathlib import Path
from typing import Any

import pandas as pd

from rankcollapse.published import read_figure2
from rankcollapse.tables import read_curves, write_csv

READS_CURVES = ("figure2", "readings", "texts")


def draw(
    name: str,
    stem: Path,
    *,
    curves: Path | None,
    published: Path | None,
    text: str,
    seed: int,
) -> list[Path]:
    """Draw a figure and write the numbers in it beside it.

    Args:
        name: module of this package.
        stem: path without ending.
        curves: what `rankcollapse curves` made, for the figures that read it.
        published: data/published/figure2.csv, for figure 2.
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
    arguments: list[pd.DataFrame] = []
    options: dict[str, Any] = {}
    if name in READS_CURVES:
        arguments.append(read_curves(_given(curves, name, "--curves")))
        options["text"] = text
    if name == "figure2":
        arguments.append(read_figure2(_given(published, name, "--published")))
    if name == "figure1":
        options["seed"] = seed
    drawn = module.draw(*arguments, **options)
    pages = drawn if isinstance(drawn, dict) else {"": drawn}
    paths = save(pages, stem)
    numbers = stem.with_suffix(".csv")
    write_csv(numbers, module.table(*arguments, **options))
    return [*paths, numbers]


def _given(path: Path | None, name: str, flag: str) -> Path:
    if path is None:
        raise ValueError(f"{name} needs {flag}")
    return path
