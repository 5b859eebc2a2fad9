"""One measured figure, and the limit that it has to keep."""

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A measured number.

    Attributes:
        part: the part of the benchmark that it belongs to.
        name: what was measured.
        value: the number, in `unit`.
        unit: of `value`, `limit` and `aim`.
        limit: what the value may at most be, or must at least be; None if it has no limit.
        aim: as the limit, but a wish.
        at_least: whether the limit is a lower one.
        note: what a reader needs to know beside it.
    """

    part: str
    name: str
    value: float
    unit: str
    limit: float | None = None
    aim: float | None = None
    at_least: bool = False
    note: str = ""

    @property
    def met(self) -> bool | None:
        """Return whether the value keeps the limit, or None if there is none."""
        if self.limit is None:
            return None
        return self.value >= self.limit if self.at_least else self.value <= self.limit


def as_json(figures: Sequence[Figure]) -> list[dict[str, Any]]:
    """Return what a JSON file says about the figures."""
    return [{**asdict(figure), "met": figure.met} for figure in figures]


def print_table(figures: Sequence[Figure], *, title: str) -> None:
    """Print the figures beside their limits, part by part."""
    table = Table(title=title)
    for column in ("figure", "value", "limit", "met", "note"):
        table.add_column(column)
    for part, members in groupby(figures, key=lambda figure: figure.part):
        table.add_section()
        table.add_row(f"[bold]{part}")
        for figure in members:
            met = {True: "yes", False: "[red]no", None: ""}[figure.met]
            value = _number(figure, figure.value)
            table.add_row(figure.name, value, _limit(figure), met, figure.note)
    Console(width=None if sys.stdout.isatty() else 110).print(table)


def _limit(figure: Figure) -> str:
    if figure.limit is None:
        return ""
    limit = f"{'at least' if figure.at_least else 'at most'} {_number(figure, figure.limit)}"
    return limit if figure.aim is None else f"{limit}, aim {_number(figure, figure.aim)}"


def _number(figure: Figure, value: float) -> str:
    return f"{value:.3g} {figure.unit}".rstrip()
