"""One module a figure.

Each has `READS`, the tables that it reads with the function that reads each, `draw` and `table`,
which take these tables in that order; where it draws the curves of one text, `text` too.
"""

from collections.abc import Mapping
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any

from rankcollapse.tables import write_csv
from rankcollapse.vocabulary import require_known

FIGURES = (
    *("figure1", "figure2", "figure3", "figure4", "figure5", "figure6"),
    *("readings", "texts", "width_depth", "decomposition", "heads", "bounds", "pieces", "rates"),
    "components",
)


def draw(name: str, stem: Path, *, tables: Mapping[str, Path], text: str, seed: int) -> list[Path]:
    """Draw a figure and write the numbers in it beside it.

    Args:
        name: of `FIGURES`.
        stem: path without ending.
        tables: where the tables are that this figure reads.
        text: name of the text that stands for the published one.
        seed: of figure 1's network.

    Returns:
        The files written: PDF, one PNG a page, CSV.

    Raises:
        ValueError: the name is not known, or the tables are not those that this figure reads.
        RankCollapseError: a table is missing or damaged.
    """
    from rankcollapse.figures.output import save

    require_known("figure", name, FIGURES)
    module: Any = import_module(f"{__name__}.{name}")
    if tables.keys() != module.READS.keys():
        raise ValueError(
            f"{name} reads {', '.join(module.READS) or 'no table'}, got "
            f"{', '.join(tables) or 'none'}; give each as --table NAME=PATH"
        )
    arguments = [read(tables[table]) for table, read in module.READS.items()]
    known = {"text": text, "seed": seed}
    taken = signature(module.draw).parameters
    options = {option: value for option, value in known.items() if option in taken}
    drawn = module.draw(*arguments, **options)
    pages = drawn if isinstance(drawn, dict) else {"": drawn}
    paths = save(pages, stem)
    numbers = stem.with_suffix(".csv")
    write_csv(numbers, module.table(*arguments, **options))
    return [*paths, numbers]
