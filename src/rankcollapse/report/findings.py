"""What the tables say, in words: each sentence is computed from the numbers that it is about."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pandas as pd

from rankcollapse.figures.panels import WEIGHTS
from rankcollapse.figures.style import VARIANTS, label
from rankcollapse.intervals import ERROR_RATE
from rankcollapse.verdicts import VERDICTS


@dataclass(frozen=True)
class Panel:
    """A panel of Figure 2 that was compared, and what came out, curve by curve."""

    name: str
    sentences: list[str]


def panel_name(checkpoint: str, weights: str) -> str:
    """Return "BERT at initialisation" for bert-base-cased and init."""
    return f"{label(checkpoint)} {WEIGHTS[weights]}"


def curve_name(checkpoint: str, weights: str, variant: str) -> str:
    """Return "XLNet at initialisation, SAN + skip"."""
    return f"{panel_name(checkpoint, weights)}, {VARIANTS[variant].label}"


def listed(words: Iterable[object]) -> str:
    """Return "a, b and c"."""
    *first, last = [str(word) for word in words] or [""]
    return f"{', '.join(first)} and {last}" if first else last


def ranges(layers: Iterable[int | str]) -> str:
    """Return "0 to 3, 5 and 12" for layers in ascending order."""
    runs: list[list[int]] = []
    for layer in map(int, layers):
        if runs and layer == runs[-1][-1] + 1:
            runs[-1].append(layer)
        else:
            runs.append([layer])
    words = [[f"{run[0]} to {run[-1]}"] if len(run) > 2 else run for run in runs]
    return listed(word for run in words for word in run)


def percent(fraction: float) -> str:
    """Return "5 %" for 0.05, two digits and a space that does not break."""
    return f"{100 * fraction:.2g}\N{NO-BREAK SPACE}%"


def number(value: float, digits: int = 3) -> str:
    """Return a number for a reader: significant digits, powers of ten written out."""
    if pd.isna(value):
        return "–"
    mantissa, _, exponent = f"{value:.{digits}g}".partition("e")
    if not exponent:
        return mantissa.replace("-", "−")
    power = str(int(exponent)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return f"{mantissa.replace('-', '−')} × 10{power}"


def counted(count: int, noun: str) -> str:
    """Return "1 point" or "2 points"."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def answer(verdicts: pd.DataFrame) -> list[str]:
    """Return the result in a few sentences, from the 312 verdicts."""
    reproduced, not_reproduced, below, absent = (
        int((verdicts["verdict"] == verdict).sum()) for verdict in VERDICTS
    )
    compared = reproduced + not_reproduced
    sentences = [
        f"Of the {len(verdicts)} published points of Figure 2, {compared} could be compared here: "
        f"{reproduced} reproduce, {not_reproduced} do not."
        if compared
        else f"None of the {len(verdicts)} published points of Figure 2 could be compared here."
    ]
    if compared:
        sentences.append(
            f"The intervals leave {percent(ERROR_RATE)} of right points outside, so about "
            f"{number(ERROR_RATE * compared, 2)} misses are to be expected if all is right."
        )
    if below:
        sentences.append(
            f"{counted(below, 'point')} below the precision floor of float32 "
            f"{'is' if below == 1 else 'are'} round-off, which is not compared."
        )
    if absent:
        commands = commands_that_measure(verdicts)
        how = f"; {commands} measures what is missing" if commands else ""
        verb = "was" if absent == 1 else "were"
        sentences.append(f"{counted(absent, 'point')} {verb} not measured in this profile{how}.")
    return sentences


def commands_that_measure(verdicts: pd.DataFrame) -> str:
    """Return the commands that the reasons of unmeasured points name."""
    reasons = verdicts.loc[verdicts["verdict"] == "not measured", "reason"].astype(str)
    found = reasons.str.extract(r"(`[^`]+`)", expand=False).dropna().unique()
    return listed(found) if len(found) else ""


def panels(summary: pd.DataFrame) -> list[Panel]:
    """Return what came out in each panel with at least one point that could be compared."""
    return [
        Panel(panel_name(str(model), str(weights)), [_curve_sentence(row) for row in _rows(curves)])
        for (model, weights), curves in summary.groupby(["model", "weights"], sort=False)
        if curves["comparable"].sum()
    ]


def panels_without_points(summary: pd.DataFrame) -> list[str]:
    """Return the panels of which nothing could be compared."""
    comparable = summary.groupby(["model", "weights"], sort=False)["comparable"].sum()
    return [panel_name(*names) for names in comparable.index[comparable == 0]]


def _rows(frame: pd.DataFrame) -> list[Any]:
    return list(frame.itertuples(index=False))


def _curve_sentence(curve: Any) -> str:  # noqa: ANN401
    name = VARIANTS[curve.variant].label
    aside = [
        f"{count} {words}"
        for count, words in (
            (curve.below_floor, "below the floor"),
            (curve.not_measured, "not measured"),
        )
        if count
    ]
    rest = f" ({listed(aside)})" if aside else ""
    if not curve.comparable:
        return f"{name}: nothing to compare{rest}."
    inside = f"{name}: {curve.reproduced} of {counted(curve.comparable, 'comparable point')} inside"
    if not curve.not_reproduced:
        return f"{inside}{rest}."
    layers = curve.outside_layers.split()
    where = f"{'layer' if len(layers) == 1 else 'layers'} {ranges(layers)}"
    return f"{inside}{rest}; outside at {where}. {_chance(curve)}"


def _chance(curve: Any) -> str:  # noqa: ANN401
    found = f"{curve.not_reproduced} or more outside"
    if curve.p_basis == "upper bound":
        return (
            f"If all were right, {found} would have a probability of at most "
            f"{number(curve.p_value, 2)}, whatever the correlation of the layers."
        )
    meaning = "compatible with chance" if curve.p_value >= ERROR_RATE else "hardly chance alone"
    return (
        f"If all were right, {found} would have a probability of "
        f"{number(curve.p_value, 2)}: {meaning}."
    )


def unlikely_curves(summary: pd.DataFrame) -> str:
    """Say how many curves miss more often than chance does, and how many would by chance."""
    simulated = summary[summary["p_basis"] == "simulated"]
    if simulated.empty:
        return "No curve has enough seeds to say how likely its misses are by chance."
    unlikely = simulated[simulated["p_value"] < ERROR_RATE]
    names = [curve_name(row.model, row.weights, row.variant) for row in _rows(unlikely)]
    which = f" ({'; '.join(names)})" if names else ""
    return (
        f"Of {counted(len(simulated), 'curve')} with a simulated p-value, {len(unlikely)} "
        f"{'has' if len(unlikely) == 1 else 'have'} p < {ERROR_RATE}{which}; by chance alone about "
        f"{number(ERROR_RATE * len(simulated), 2)} would."
    )
