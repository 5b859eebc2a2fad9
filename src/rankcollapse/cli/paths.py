"""Commands of what is studied of a checkpoint's paths and bounds."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from typer import Argument, Context, Option

from rankcollapse.cli.options import Event, Folder, Output

if TYPE_CHECKING:
    from rankcollapse.subjects import Subject
    from rankcollapse.tracking import Run

app = typer.Typer()

Checkpoint = Annotated[Path, Argument(help="Folder that `rankcollapse checkpoint` made.")]
TextFlag = Annotated[Path, Option(help="Text, one document a line.")]
Form = Annotated[Literal["wikibio", "plain"], Option(help="Surface form to bring the text into.")]
TokenizerFlag = Annotated[
    Path | None, Option(help="Checkpoint whose tokenizer to take (default: this one).")
]
Sequences = Annotated[int, Option(min=1, help="Documents to take.")]
Tokens = Annotated[int, Option(min=3, help="Length, with the model's special tokens.")]
Precision = Annotated[Literal["float32", "float64"], Option(help="Of the forward pass.")]


@app.command()
def decompose(
    context: Context,
    checkpoint: Checkpoint,
    text: TextFlag,
    output: Folder,
    form: Form = "plain",
    tokenizer: TokenizerFlag = None,
    sequences: Sequences = 8,
    tokens: Tokens = 128,
    precision: Precision = "float32",
    sentences: Annotated[
        Path | None,
        Option(
            help="Pairs of sentences: biographies, or two with a tab a line. Not read for a "
            "checkpoint without a tokenizer."
        ),
    ] = None,
    sentence_pairs: Annotated[int, Option(min=1, help="Pairs to take.")] = 32,
    event: Event = None,
) -> None:
    """Split a checkpoint's states into their terms by path length."""
    from rankcollapse.path_studies import decomposition
    from rankcollapse.path_tables import write_tables
    from rankcollapse.sentences import read_sentences
    from rankcollapse.tracking import run

    inputs = [checkpoint, text, *([sentences] if sentences else [])]
    with run(event, params=context.params, inputs=inputs, outputs=[output]) as record:
        of = _subject(checkpoint, tokenizer, text, form, sequences, tokens, precision)
        if sentences:
            pairs = read_sentences(checkpoint, sentences, pairs=sentence_pairs, longest=tokens)
        tables = decomposition(of, sentences=pairs if sentences else None)
        write_tables(output, tables)
        last = tables["decomposition"].query("layer == layer.max()")
        for column in ("share", "residual"):
            _record(record, last["variant"] + f"/{column}", last[column], last["length"])


@app.command()
def heads(
    context: Context,
    checkpoint: Checkpoint,
    text: TextFlag,
    output: Folder,
    form: Form = "plain",
    tokenizer: TokenizerFlag = None,
    sequences: Sequences = 4,
    tokens: Tokens = 128,
    precision: Precision = "float32",
    event: Event = None,
) -> None:
    """Say which attention heads carry a checkpoint's paths of each length."""
    from rankcollapse.path_studies import heads as study
    from rankcollapse.path_tables import write_tables
    from rankcollapse.tracking import run

    with run(event, params=context.params, inputs=[checkpoint, text], outputs=[output]) as record:
        of = _subject(checkpoint, tokenizer, text, form, sequences, tokens, precision)
        table = study(of)
        write_tables(output, {"heads": table})
        names = (
            table["variant"] + "/" + table["layer"].astype(str) + "." + table["head"].astype(str)
        )
        _record(record, names, table["share"], table["length"])


@app.command()
def chain(
    context: Context,
    checkpoint: Checkpoint,
    text: TextFlag,
    output: Output,
    form: Form = "plain",
    tokenizer: TokenizerFlag = None,
    sequences: Sequences = 32,
    tokens: Tokens = 128,
    precision: Precision = "float64",
    pairs: Annotated[int, Option(min=1, help="Of path and sequence.")] = 2000,
    event: Event = None,
) -> None:
    """Multiply a checkpoint's attention along random paths."""
    from rankcollapse.chained_study import chained_study
    from rankcollapse.chained_tables import summarise
    from rankcollapse.path_tables import write_rows
    from rankcollapse.tracking import run

    with run(event, params=context.params, inputs=[checkpoint, text], outputs=[output]) as record:
        of = _subject(checkpoint, tokenizer, text, form, sequences, tokens, precision)
        table = chained_study(of, pairs=pairs)
        write_rows(output, table)
        found = summarise([table])
        names = found["layers"] + "/" + found["reading"] + "/" + found["measure"]
        _record(record, names, found["median"], found["depth"])


@app.command()
def bounds(
    context: Context,
    checkpoint: Checkpoint,
    text: TextFlag,
    output: Folder,
    form: Form = "plain",
    tokenizer: TokenizerFlag = None,
    sequences: Sequences = 2,
    tokens: Tokens = 128,
    event: Event = None,
) -> None:
    """Evaluate every bound on a checkpoint's attention alone, and of its other pieces."""
    from rankcollapse.bound_studies import bounds as study
    from rankcollapse.path_tables import write_tables
    from rankcollapse.tracking import run

    with run(event, params=context.params, inputs=[checkpoint, text], outputs=[output]) as record:
        of = _subject(checkpoint, tokenizer, text, form, sequences, tokens, "float64")
        tables = study(of)
        write_tables(output, tables)
        found = tables["bounds"]
        for name in ("measured_log10", "bound_log10", "dobrushin_log10"):
            _record(record, [name] * len(found), found[name], found["layer"])


@app.command()
def relative(
    context: Context,
    checkpoint: Checkpoint,
    text: TextFlag,
    output: Folder,
    form: Form = "plain",
    tokenizer: TokenizerFlag = None,
    sequences: Sequences = 4,
    tokens: Tokens = 128,
    event: Event = None,
) -> None:
    """Scale a checkpoint's relative position term down to nothing, in float64."""
    from rankcollapse.path_tables import write_tables
    from rankcollapse.relative import relative_study
    from rankcollapse.tracking import run

    with run(event, params=context.params, inputs=[checkpoint, text], outputs=[output]) as record:
        of = _subject(checkpoint, tokenizer, text, form, sequences, tokens, "float64")
        study = relative_study(of.model, of.ids, **of.named)
        write_tables(output, {"relative": study.measured, "contraction": study.contraction})
        means = study.measured.groupby(["scale", "layer"], as_index=False)["ratio"].mean()
        names = [f"ratio/scale {scale:g}" for scale in means["scale"]]
        _record(record, names, means["ratio"], means["layer"])


def _record(
    record: "Run", names: Iterable[str], values: Iterable[float], steps: Iterable[int]
) -> None:
    for name, value, step in zip(names, values, steps, strict=True):
        record.metric(name, value, step)


def _subject(
    checkpoint: Path,
    tokenizer: Path | None,
    text: Path,
    form: str,
    sequences: int,
    tokens: int,
    precision: str,
) -> "Subject":
    from rankcollapse.evaluate import Text
    from rankcollapse.subjects import subject

    return subject(
        checkpoint,
        tokenizer or checkpoint,
        Text("text", text, form),
        precision=precision,
        sequences=sequences,
        tokens=tokens,
    )
