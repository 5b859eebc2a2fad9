"""Commands of the trained experiments."""

import shutil
from pathlib import Path
from typing import Annotated, Literal

import typer
from typer import Argument, Context, Option

from rankcollapse.cli.options import Event, Output

app = typer.Typer()

Task = Literal["sorting", "convex_hull", "memorization"]
Reading = Literal["as-published", "as-described"]
Texts = Annotated[
    Path | None, Option(help="Text to memorise, one document or one tab-separated pair a line.")
]
TokenizerFlag = Annotated[
    Path | None, Option(help="Checkpoint whose tokenizer splits the text to memorise.")
]


@app.command()
def train(
    context: Context,
    task: Annotated[Task, Argument(help="What is learned.")],
    output: Output,
    seeds: Annotated[str, Option(help="As 0-7 or 0,3,5: one network each.")] = "0",
    reading: Annotated[Reading, Option(help="Of the paper.")] = "as-published",
    training: Annotated[
        Literal["residual", "layer_drop", "pure"],
        Option(help="With residuals, with random paths between, or without residuals."),
    ] = "residual",
    epochs: Annotated[int | None, Option(min=1, help="Default: the reading's.")] = None,
    heads: Annotated[int | None, Option(help="Default: published.")] = None,
    depth: Annotated[int | None, Option(help="Blocks. Default: published.")] = None,
    width: Annotated[int | None, Option(help="Features. Default: published.")] = None,
    learning_rate: Annotated[float | None, Option(min=0.0, help="Default: published.")] = None,
    text: Texts = None,
    tokenizer: TokenizerFlag = None,
    event: Event = None,
) -> None:
    """Train networks of one shape with several seeds in one pass."""
    from rankcollapse import experiments
    from rankcollapse.tracking import run
    from rankcollapse.trained import save

    inputs = [path for path in (text, tokenizer) if path]
    unfinished = output.with_name(f".{output.name}.training")
    with run(event, params=context.params, inputs=inputs, outputs=[output]) as record:
        texts = _texts(text, tokenizer) if task == "memorization" else None
        chosen = experiments.experiment(
            task,
            seeds=parse_seeds(seeds),
            reading=reading,
            training=training,
            vocabulary=texts[1] if texts else None,
            epochs=epochs,
            heads=heads,
            depth=depth,
            width=width,
            learning_rate=learning_rate,
        )
        parameters, history = experiments.run(
            chosen, texts[0] if texts else None, checkpoints=unfinished
        )
        save(output, chosen, parameters, history)
        shutil.rmtree(unfinished, ignore_errors=True)
        for epoch, values in enumerate(zip(history.loss, history.accuracy, strict=True), start=1):
            for name, of_seeds in zip(("loss", "accuracy"), values, strict=True):
                record.metric(name, sum(of_seeds) / len(of_seeds), epoch)


@app.command()
def paths(
    context: Context,
    trained: Annotated[Path, Argument(help="Folder that `rankcollapse train` made.")],
    output: Annotated[Path, Option(help="Table of accuracies by path length (.csv).")],
    lengths: Annotated[
        Path | None, Option(help="Table of the path lengths that are used (.csv).")
    ] = None,
    text: Texts = None,
    tokenizer: TokenizerFlag = None,
    event: Event = None,
) -> None:
    """Judge trained networks by the paths through them, under every control."""
    from rankcollapse import controls, task_tables
    from rankcollapse.tables import write_csv
    from rankcollapse.tracking import run
    from rankcollapse.trained import load

    outputs = [output, *([lengths] if lengths else [])]
    with run(event, params=context.params, inputs=[trained], outputs=outputs) as record:
        chosen, parameters = load(trained)
        texts = _texts(text, tokenizer)[0] if chosen.task == "memorization" else None
        table = controls.scores(chosen, parameters, texts)
        if lengths is not None:
            write_csv(lengths, controls.lengths_used(chosen, parameters, texts))
        write_csv(output, table)
        for name, accuracy, length in task_tables.curves(table):
            record.metric(name, accuracy, length)


@app.command()
def circle(
    context: Context,
    output: Annotated[Path, Option(help="Table of how the runs end (.csv).")],
    trajectories: Annotated[Path, Option(help="Table of one seed's trajectories (.csv).")],
    reading: Annotated[Reading, Option(help="Of the paper.")] = "as-published",
    seeds: Annotated[str, Option(help="As 0-11: one network each.")] = "0-11",
    shown: Annotated[int, Option(min=0, help="Seed whose trajectories are kept.")] = 0,
    epochs: Annotated[int | None, Option(min=1, help="Default: the reading's.")] = None,
    event: Event = None,
) -> None:
    """Train one block to step along a circle, and apply it again and again (figure 3)."""
    from dataclasses import replace

    from rankcollapse.circle_runs import RECIPES, run_circle
    from rankcollapse.tables import write_csv
    from rankcollapse.tracking import run

    recipe = replace(RECIPES[reading], epochs=epochs) if epochs else None
    outputs = [output, trajectories]
    with run(event, params=context.params, inputs=[], outputs=outputs) as record:
        ends, steps = run_circle(reading, parse_seeds(seeds), shown=shown, recipe=recipe)
        write_csv(trajectories, steps)
        write_csv(output, ends)
        for variant, share in ends.groupby("variant")["collapsed"].mean().items():
            record.metric(f"collapsed/{variant}", share)


@app.command()
def accuracy(
    context: Context,
    scores: Annotated[list[Path], Argument(help="Tables that `rankcollapse paths` made.")],
    output: Output,
    event: Event = None,
) -> None:
    """Average the accuracies over the training seeds."""
    from rankcollapse import task_tables
    from rankcollapse.tables import write_csv
    from rankcollapse.tracking import run

    with run(event, params=context.params, inputs=scores, outputs=[output]):
        write_csv(output, task_tables.accuracy(map(task_tables.read_scores, scores)))


@app.command()
def join(
    context: Context,
    tables: Annotated[list[Path], Argument(help="CSV tables with the same columns.")],
    output: Output,
    event: Event = None,
) -> None:
    """Put tables of several runs one below the other."""
    from rankcollapse.task_tables import join_tables
    from rankcollapse.tracking import run

    with run(event, params=context.params, inputs=tables, outputs=[output]):
        join_tables(tables, output)


@app.command()
def claims(
    context: Context,
    scores: Annotated[list[Path], Argument(help="Tables that `rankcollapse paths` made.")],
    circle: Annotated[Path, Option(help="Table that `rankcollapse circle` made.")],
    output: Output,
    event: Event = None,
) -> None:
    """Judge the paper's claims on trained networks, by a rule fixed beforehand."""
    from rankcollapse.claims import write_claims
    from rankcollapse.tracking import run

    inputs = [*scores, circle]
    with run(event, params=context.params, inputs=inputs, outputs=[output]) as record:
        verdicts = write_claims(scores, circle, output)
        for name, count in verdicts["verdict"].value_counts().items():
            record.metric(str(name), count)


def parse_seeds(text: str) -> list[int]:
    """Return the seeds of a list as "0-7" or "0,3,5"."""
    seeds: list[int] = []
    for part in text.split(","):
        low, dash, high = part.partition("-")
        try:
            first = int(low)
            seeds += range(first, int(high) + 1) if dash else [first]
        except ValueError:
            raise typer.BadParameter(f"seeds are {text!r}; write them as 0-7 or 0,3,5") from None
    if not seeds:
        raise typer.BadParameter(f"{text!r} names no seeds; write them as 0-7 or 0,3,5")
    return seeds


def _texts(text: Path | None, tokenizer: Path | None) -> tuple[list[list[int]], int]:
    """Return the texts to memorise as token ids without gaps, and how many ids there are."""
    from rankcollapse.tasks import memorization

    if text is None or tokenizer is None:
        raise typer.BadParameter("memorization needs --text and --tokenizer")
    return memorization.read_texts(text, tokenizer)
