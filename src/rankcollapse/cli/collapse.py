"""Commands of small networks, and of what tables of paths and bounds say: no checkpoint is read."""

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Context, Option

from rankcollapse.cli.options import Event, Folder, Output
from rankcollapse.cli.tasks import parse_seeds

app = typer.Typer()


@app.command()
def pure_san(context: Context, output: Folder, event: Event = None) -> None:
    """Evaluate every bound on small networks of attention alone, where the theorem bites."""
    from rankcollapse.bound_studies import pure_san as study
    from rankcollapse.path_tables import write_tables
    from rankcollapse.tracking import run

    with run(event, params=context.params, inputs=[], outputs=[output]):
        write_tables(output, study())


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
