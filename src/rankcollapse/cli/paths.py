"""Commands of what is studied of paths and bounds."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from typer import Argument, Context, Option

from rankcollapse.cli.options import Event, Output
from rankcollapse.cli.tasks import parse_seeds

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
Folder = Annotated[Path, Option(help="Folder of tables to make.")]


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
def pure_san(context: Context, output: Folder, event: Event = None) -> None:
    """Evaluate every bound on small networks of attention alone, where the theorem bites."""
    from rankcollapse.bound_studies import pure_san as study
    from rankcollapse.path_tables import write_tables
    from rankcollapse.tracking import run

    with run(event, params=context.params, inputs=[], outputs=[output]):
        write_tables(output, study())


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


@app.command()
def components(
    context: Context,
    output: Output,
    seeds: Annotated[str, Option(help="As 0-15: one random network each.")] = "0-15",
    event: Event = None,
) -> None:
    """Follow small random networks whose pieces are put in and taken out."""
    from rankcollapse.components import study
    from rankcollapse.path_tables import write_rows
    from rankcollapse.tracking import run

    with run(event, params=context.params, inputs=[], outputs=[output]):
        write_rows(output, study(parse_seeds(seeds)))


@app.command()
def rates(
    context: Context,
    tables: Annotated[list[Path], Argument(help="Tables that `rankcollapse residuals` made.")],
    output: Folder,
    event: Event = None,
) -> None:
    """Say how fast each curve collapses: its rate by layer, and its order."""
    from rankcollapse.path_tables import write_tables
    from rankcollapse.rates import orders
    from rankcollapse.rates import rates as by_layer
    from rankcollapse.tables import read_table
    from rankcollapse.tracking import run

    with run(event, params=context.params, inputs=tables, outputs=[output]):
        frames = [read_table(path) for path in tables]
        write_tables(output, {"rates": by_layer(frames), "orders": orders(frames)})


@app.command()
def asymptote(context: Context, output: Output, event: Event = None) -> None:
    """Follow one small network with hundreds of digits, with and without relative positions."""
    import pandas as pd

    from rankcollapse.asymptote import asymptote as follow
    from rankcollapse.tables import write_csv
    from rankcollapse.tracking import run

    with run(event, params=context.params, inputs=[], outputs=[output]):
        tables = [follow(heads=heads, scale=scale) for heads in (1, 2) for scale in (0.0, 1.0)]
        write_csv(output, pd.concat(tables, ignore_index=True))


@app.command()
def quartiles(
    context: Context,
    chained: Annotated[list[Path], Argument(help="Tables that `rankcollapse chain` made.")],
    output: Output,
    event: Event = None,
) -> None:
    """Summarise chained attention: quartiles over the pairs of all seeds of each model."""
    from rankcollapse.chained_tables import read_chained, summarise
    from rankcollapse.tables import write_csv
    from rankcollapse.tracking import run

    with run(event, params=context.params, inputs=chained, outputs=[output]):
        write_csv(output, summarise(map(read_chained, chained)))


@app.command()
def judge(
    context: Context,
    chained: Annotated[list[Path], Argument(help="Tables that `rankcollapse chain` made.")],
    published: Annotated[Path, Option(help="data/published/chained_attention.csv.")],
    output: Output,
    event: Event = None,
) -> None:
    """Judge the published quartiles of chained attention."""
    from rankcollapse.chained_verdicts import write_chained_verdicts
    from rankcollapse.tracking import run

    inputs = [*chained, published]
    with run(event, params=context.params, inputs=inputs, outputs=[output]) as record:
        verdicts = write_chained_verdicts(chained, published, output)
        for name, count in verdicts["verdict"].value_counts().items():
            record.metric(str(name), count)


@app.command()
def causes(
    context: Context,
    components: Annotated[Path, Argument(help="Table that `rankcollapse components` made.")],
    relative: Annotated[Path, Option(help="Table that `rankcollapse relative` made.")],
    output: Output,
    event: Event = None,
) -> None:
    """Judge what stops or slows the collapse, by rules fixed beforehand."""
    from rankcollapse.path_claims import write_component_claims
    from rankcollapse.tracking import run

    inputs = [components, relative]
    with run(event, params=context.params, inputs=inputs, outputs=[output]) as record:
        claims = write_component_claims(components, relative, output)
        for name, count in claims["verdict"].value_counts().items():
            record.metric(str(name), count)


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
