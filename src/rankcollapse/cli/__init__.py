"""The command line: flags in, one function call out."""

import os
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer
from typer import Argument, Context, Option

from rankcollapse.cli import checkpoint, collapse, paths, tasks
from rankcollapse.cli.options import Event, Output, each_known
from rankcollapse.errors import RankCollapseError
from rankcollapse.vocabulary import MEASURES, READINGS, VARIANTS

app = typer.Typer(
    help="Measure and explain rank collapse in transformers.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.add_typer(checkpoint.app, name="checkpoint")
app.add_typer(tasks.app)
app.add_typer(paths.app)
app.add_typer(collapse.app)


@app.command()
def evaluate(
    context: Context,
    checkpoint: Annotated[Path, Argument(help="Folder that `rankcollapse checkpoint` made.")],
    text: Annotated[Path, Option(help="Text, one document a line.")],
    output: Output,
    text_name: Annotated[str, Option(help="Name of the text in tables.")] = "text",
    form: Annotated[
        Literal["wikibio", "plain"], Option(help="Surface form to bring the text into.")
    ] = "plain",
    tokenizer: Annotated[
        Path | None, Option(help="Checkpoint whose tokenizer to take (default: this one).")
    ] = None,
    variant: Annotated[
        list[str],
        Option(help="Ablation.", metavar="|".join(VARIANTS), callback=each_known(VARIANTS)),
    ] = list(VARIANTS),  # noqa: B006 (typer reads it)
    reading: Annotated[
        list[str],
        Option(help="Of the paper.", metavar="|".join(READINGS), callback=each_known(READINGS)),
    ] = ["as-published"],  # noqa: B006 (typer reads it)
    precision: Annotated[
        Literal["float32", "float64", "bfloat16"], Option(help="Of the forward pass.")
    ] = "float32",
    sequences: Annotated[int, Option(min=1, help="Documents to take.")] = 32,
    tokens: Annotated[int, Option(min=3, help="Length, with the model's special tokens.")] = 128,
    device: Annotated[Literal["auto", "cpu", "cuda"], Option(help="Where to compute.")] = "auto",
    tf32: Annotated[bool, Option("--tf32", help="Let CUDA round products to TF32.")] = False,
    event: Event = None,
) -> None:
    """Run every ablation of a checkpoint and store its hidden states."""
    from rankcollapse.evaluate import Text
    from rankcollapse.evaluate import evaluate as run_evaluation
    from rankcollapse.tracking import run

    lender = tokenizer or checkpoint
    with run(event, params=context.params, inputs=[checkpoint, text], outputs=[output]) as record:
        index = run_evaluation(
            checkpoint,
            output,
            text=Text(text_name, text, form),
            tokenizer=lender,
            variants=variant,
            readings=reading,
            precision=precision,
            sequences=sequences,
            tokens=tokens,
            device=device,
            tf32=tf32,
        )
        record.tag("device", index["device"])


@app.command()
def residuals(
    context: Context,
    states: Annotated[Path, Argument(help="Folder that `rankcollapse evaluate` made.")],
    output: Output,
    spectral_sequences: Annotated[
        int | None, Option(min=1, help="Sequences that get the ranks (default: all).")
    ] = None,
    measure: Annotated[
        list[str],
        Option(help="To compute.", callback=each_known(MEASURES)),
    ] = list(MEASURES),  # noqa: B006 (typer reads it)
    event: Event = None,
) -> None:
    """Measure hidden states: a tidy Parquet table."""
    from rankcollapse.residuals import residuals as run_residuals
    from rankcollapse.tables import means
    from rankcollapse.tracking import run

    with run(event, params=context.params, inputs=[states], outputs=[output]) as record:
        table = run_residuals(states, output, spectral_sequences=spectral_sequences, only=measure)
        for name, mean, layer in means(table):
            record.metric(name, mean, layer)


@app.command()
def curves(
    context: Context,
    tables: Annotated[list[Path], Argument(help="Tables that `rankcollapse residuals` made.")],
    output: Output,
    event: Event = None,
) -> None:
    """Average tables over their sequences: the CSV that figures and verdicts read."""
    from rankcollapse.tables import curves as average
    from rankcollapse.tables import read_table, write_csv
    from rankcollapse.tracking import run

    with run(event, params=context.params, inputs=tables, outputs=[output]):
        write_csv(output, average(read_table(path) for path in tables))


@app.command()
def figure(
    context: Context,
    name: Annotated[str, Argument(help="Which, as figure2.")],
    output: Annotated[Path, Option(help="Path without ending: .pdf, .png and .csv are added.")],
    table: Annotated[
        list[str] | None,
        Option(help="A table that it reads, as curves=data/mine/residuals/curves.csv."),
    ] = None,
    text: Annotated[str, Option(help="Text that stands for the published one.")] = "wikibio",
    seed: Annotated[int, Option(min=0, help="Of figure 1's network.")] = 0,
    event: Event = None,
) -> None:
    """Draw one figure."""
    from rankcollapse.figures import draw
    from rankcollapse.tracking import run

    tables = {name: Path(path) for name, _, path in (one.partition("=") for one in table or [])}
    read = list(tables.values())
    with run(event, params=context.params, inputs=read, outputs=[]) as record:
        for path in draw(name, output, tables=tables, text=text, seed=seed):
            record.artifact(path)


@app.command()
def verdict(
    context: Context,
    curves: Annotated[Path, Argument(help="What `rankcollapse curves` made.")],
    published: Annotated[Path, Option(help="data/published/figure2.csv.")],
    output: Annotated[Path, Option(help="Folder of figure2.csv, curves.csv, summary.json.")],
    text: Annotated[str, Option(help="Text that stands for the published one.")] = "wikibio",
    event: Event = None,
) -> None:
    """Judge the published points one by one."""
    from rankcollapse.tracking import run
    from rankcollapse.verdicts import write_verdicts

    inputs = [curves, published]
    with run(event, params=context.params, inputs=inputs, outputs=[output]) as record:
        verdicts = write_verdicts(curves, published, output, text=text)
        for name, count in verdicts["verdict"].value_counts().items():
            record.metric(str(name), count)


@app.command()
def report(
    context: Context,
    config: Annotated[Path, Argument(help="The profile, as config/embedded.yaml.")],
    output: Output,
    event: Event = None,
) -> None:
    """Write the self-contained report of a profile that was run."""
    from rankcollapse.report import write_report
    from rankcollapse.tracking import run

    with run(event, params=context.params, inputs=[config], outputs=[output]) as record:
        write_report(config, output)
        record.artifact(output)


@app.command()
def flush(
    logs: Annotated[Path, Argument(help="Folder of the events.")] = Path("logs"),
    all_: Annotated[bool, Option("--all", help="Rebuild the store from all events.")] = False,
) -> None:
    """Hand the events of executed jobs to MLflow (MLFLOW_TRACKING_URI, or sqlite:///mlflow.db)."""
    from rankcollapse.mlflow_store import default_uri
    from rankcollapse.mlflow_store import flush as run_flush

    flushed = run_flush(logs, uri=default_uri(), rebuild=all_)
    typer.echo(f"{flushed.count} runs added, {flushed.already} there already")


@app.command()
def doctor() -> None:
    """Say whether this machine can run which profile."""
    from rankcollapse.doctor import print_report

    raise typer.Exit(0 if print_report() else 1)


def main() -> None:
    """Run the command line; an error that a user can mend is one line and exit code 1."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    try:
        app()
    except (RankCollapseError, ValueError, OSError) as error:
        message = " ".join(str(error).split())
        print(f"rankcollapse: error: {message}", file=sys.stderr)
        sys.exit(1)
