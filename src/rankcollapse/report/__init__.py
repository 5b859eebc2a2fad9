"""The report: one HTML file that needs nothing else and opens without a network.

Every number in it, and every sentence about a number, is computed from the tables of the profile.
"""

import re
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from rankcollapse import component_claims
from rankcollapse.components import CONDITIONS
from rankcollapse.config import Config, load_config
from rankcollapse.config_sections import RandomCheckpoint
from rankcollapse.figures import figure3, width_depth
from rankcollapse.figures.panels import WEIGHTS, select
from rankcollapse.figures.style import VARIANTS, label
from rankcollapse.files import write_text
from rankcollapse.intervals import ERROR_RATE
from rankcollapse.jobs import pages
from rankcollapse.published import TEXTS
from rankcollapse.report import (
    bounds,
    causes,
    chained,
    circle,
    collapse,
    components,
    definitions,
    findings,
    heads,
    orders,
    paths,
    pieces,
    provenance,
    texts,
    trained,
)
from rankcollapse.report.inputs import Inputs, read_inputs
from rankcollapse.tracking import read_events
from rankcollapse.verdicts import MINIMUM_SEEDS

_TEMPLATE = "report.html.j2"
_RELATIVE_POSITIONS = ("mpnet", "xlnet")


def write_report(config: Path, output: Path) -> None:
    """Write the report of a profile whose figures and verdicts are there.

    Reads `data/`, `figures/` and `logs/` of the current folder. The bytes depend on what is read,
    times and versions included, and on nothing else.

    Args:
        config: the profile, as `config/embedded.yaml`.
        output: the HTML file; links to drawings and tables are relative to it.

    Raises:
        RankCollapseError: the config is wrong, or a file of the profile is missing or damaged;
            the message names the file and the rule that makes it.
        OSError: the output cannot be written.
    """
    settings = load_config(config)
    inputs = read_inputs(settings, output)
    record = provenance.record(read_events(Path("logs")), settings.profile)
    page = _environment().get_template(_TEMPLATE).render(_content(inputs, record))
    write_text(output, page.rstrip() + "\n")


def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "number": findings.number,
        "listed": findings.listed,
        "ranges": findings.ranges,
        "prose": _prose,
        "model": label,
        "rows": lambda frame: list(frame.itertuples(index=False)),
    }
    environment.globals |= {
        "VARIANTS": {name: look.label for name, look in VARIANTS.items()},
        "WEIGHTS": WEIGHTS,
        "definitions": definitions,
        "curve_name": findings.curve_name,
        "signed": trained.signed,
        "TASKS": trained.TASKS,
    }
    return environment


def _prose(text: str) -> Markup:
    """Escape a sentence and set what it has in backticks as code."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))


def _content(inputs: Inputs, record: provenance.Record) -> dict[str, Any]:
    config, figure2 = inputs.config, inputs.figures["figure2"]
    collapsed = collapse.collapse(figure2)
    return {
        "config": config,
        "pictures": inputs.pictures,
        "answer": findings.answer(inputs.verdicts),
        "panels": findings.panels(inputs.summary),
        "bare_panels": findings.panels_without_points(inputs.summary),
        "unpublished": _unpublished(figure2),
        "measuring": findings.commands_that_measure(inputs.verdicts),
        "unlikely": findings.unlikely_curves(inputs.summary),
        "collapsed": collapsed,
        "collapse": collapse.collapse_sentences(collapsed),
        "threshold": collapse.COLLAPSED,
        "rates": collapse.rates(inputs.curves, config.published_text),
        "cubic": collapse.CUBIC,
        "exponential": collapse.EXPONENTIAL,
        "relative": _with_relative_positions(config),
        "seeds": _seeds(figure2),
        "verdicts": inputs.verdicts,
        "summary": inputs.summary,
        "error_rate": ERROR_RATE,
        "minimum_seeds": MINIMUM_SEEDS,
        "published_texts": TEXTS,
        "floor_counts": _floor_counts(inputs.curves),
        "centre": _centre(inputs.curves),
        "path_terms": _path_terms(inputs.figures["figure1"]),
        "long_paths": _long_paths(inputs.figures["figure5"]),
        "weights": provenance.weights(config, inputs.manifests),
        "texts": provenance.texts(config, inputs.commits),
        "record": record,
        **_about_texts(inputs),
        **_about_paths(inputs),
        **_about_trained(inputs),
    }


def _about_texts(inputs: Inputs) -> dict[str, Any]:
    moved = inputs.figures["texts"]
    return {
        "compared_texts": texts.compared_texts(moved),
        "sensitivity": texts.sensitivity(moved, inputs.verdicts),
        "shares": texts.repeated_shares(inputs.curves),
        "xlnet": texts.xlnet_sentences(
            inputs.verdicts, moved, inputs.curves, borrowed=_borrowed(inputs.config, texts.XLNET)
        ),
    }


def _about_paths(inputs: Inputs) -> dict[str, Any]:
    tables = inputs.paths
    lengths = paths.section(tables)
    return {
        "figure_pages": pages(inputs.config),
        "lengths": lengths,
        "lengths_summary": paths.summary(lengths),
        "lengths_carried": paths.CARRIED,
        "chained": chained.section(tables),
        "heads": heads.sentences(tables["heads"]),
        "bounds": bounds.section(tables),
        "pieces": pieces.section(tables["bound_pieces"]),
        "orders": orders.section(tables, text=inputs.config.published_text),
        "components": components.section(tables),
        "component_limits": component_claims,
        "component_base": CONDITIONS["baseline"],
        "component_effects": components.EFFECTS,
    }


def _about_trained(inputs: Inputs) -> dict[str, Any]:
    tables = inputs.trained
    claims = trained.read_claims(tables["claims"])
    found = trained.settings(tables["accuracy"], claims)
    rows, rules = trained.claims_table(tables["claims"])
    return {
        "trained_summary": causes.summary(found),
        "trained_answer": causes.answer(found),
        "trained_ratios": causes.ratios(found),
        "tasks": [
            {
                "name": name,
                "settings": [(one, trained.sentences(one)) for one in found if one.task == task],
                "absent": trained.absent(found, task),
            }
            for task, name in trained.TASKS.items()
        ],
        "halves": trained.halves_table(found),
        "claims": rows,
        "claim_rules": rules,
        "circle": circle.readings(tables["circle"], claims),
        "circle_threshold": figure3.THRESHOLD,
        "circle_learned": figure3.LEARNED,
        "width_depth": _width_depth(tables["lengths"]),
    }


def _width_depth(lengths: pd.DataFrame) -> str:
    if lengths.empty:
        return "No network was measured for this in this profile."
    return width_depth.conclusion(lengths)


def _borrowed(config: Config, model: str) -> str | None:
    """Return whose tokenizer a model at initialisation takes, if that is another model's."""
    lenders = {
        checkpoint.tokenizer
        for checkpoint in config.checkpoints.values()
        if isinstance(checkpoint, RandomCheckpoint) and checkpoint.name == model
    }
    return findings.listed(sorted(lenders - {model})) or None


def _with_relative_positions(config: Config) -> set[str]:
    """Return the models whose attention scores have a relative position term."""
    return {
        checkpoint.name if isinstance(checkpoint, RandomCheckpoint) else name
        for name, checkpoint in config.checkpoints.items()
        if checkpoint.model_type in _RELATIVE_POSITIONS
    }


def _unpublished(figure2: pd.DataFrame) -> list[str]:
    """Return the models of figure 2 that the paper does not have."""
    published = figure2.dropna(subset="published_mean")["checkpoint"].unique()
    return [name for name in figure2["checkpoint"].unique() if name not in published]


def _seeds(figure2: pd.DataFrame) -> str:
    """Return how many seeds each model has: "BERT 6, MPNet 2"."""
    counts = select(figure2, weights="init").groupby("checkpoint", sort=False)["seeds"].max()
    return ", ".join(f"{label(str(name))} {count}" for name, count in counts.items() if count)


def _floor_counts(curves: pd.DataFrame) -> dict[str, int]:
    sums = curves[["sequences", "below_floor", "missing"]].sum()
    return {str(name): int(count) for name, count in sums.items()}


def _centre(curves: pd.DataFrame) -> dict[str, Any] | None:
    """Return how much lower the ratio is with the minimising centre, at least and at most."""
    effect = collapse.centre_effect(curves)
    if effect.empty:
        return None
    furthest = effect.iloc[int(effect["at_most"].argmax())]
    name = findings.curve_name(*furthest[["checkpoint", "weights", "variant"]])
    return {
        "count": len(effect),
        "at_most": float(furthest["at_most"]),
        "where": f"{name}, layer {furthest['layer']}, {furthest['reading'].replace('-', ' ')}, "
        f"{furthest['text']}, {furthest['precision']}",
        "median": float(effect["at_most"].median()),
        "at_least": float(effect["at_least"].max()),
    }


def _path_terms(figure1: pd.DataFrame) -> list[tuple[int, int, float]]:
    """Return length, number and mean residual ratio of the path terms in figure 1."""
    grouped = figure1.groupby("length")["residual_ratio"].agg(["size", "mean"])
    return list(grouped.itertuples(name=None))


def _long_paths(figure5: pd.DataFrame) -> list[tuple[str, float]]:
    """Return of each architecture the share of paths through more than half of it, least first."""
    long = figure5[figure5["length"] * 2 > figure5["layers"]]
    shares = long.groupby("architecture", sort=False)["proportion"].sum().sort_values(kind="stable")
    return [(str(name), float(share)) for name, share in shares.items()]
