"""Options that several commands have."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from typer import CallbackParam, Option

from rankcollapse.vocabulary import require_known

Event = Annotated[
    Path | None,
    Option(help="Record this run for MLflow as logs/PROFILE/RULE/KEY.", metavar="PATH"),
]
Output = Annotated[Path, Option(help="What to make.")]
Folder = Annotated[Path, Option(help="Folder of tables to make.")]


def each_known(names: tuple[str, ...]) -> Callable[[CallbackParam, list[str]], list[str]]:
    """Return a check of an option that may be given several times."""

    def check(parameter: CallbackParam, values: list[str]) -> list[str]:
        try:
            for value in values:
                require_known(str(parameter.name), value, names)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None
        return values

    return check
