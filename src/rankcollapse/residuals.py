"""From hidden states to the tidy table of measures, each value with its status.

Shapes: L layers, B sequences, T tokens, D features.
"""

import math
from collections.abc import Callable, Iterable
from pathlib import Path

import pandas as pd
import torch
from torch import Tensor

from rankcollapse import measures
from rankcollapse.precision import EPS, precision_floor
from rankcollapse.progress import steps
from rankcollapse.states import read_index, read_states
from rankcollapse.tables import write_table
from rankcollapse.vocabulary import MEASURES, SPECTRAL_MEASURES, require_known

Marked = dict[str, tuple[Tensor, Tensor]]


def measure_states(
    states: Tensor,
    *,
    precision: str,
    spectral_sequences: int | None = None,
    only: Iterable[str] = MEASURES,
) -> pd.DataFrame:
    """Measure every state of every sequence.

    A value below the precision floor is kept and marked: it is round-off of the forward pass,
    to be neither fitted nor compared. The floor of a ratio is 16 eps of the states' precision;
    that of a cosine's distance from 1 is half its square, or 16 eps of float64; effective and
    stable rank are round-off where the second singular value is below the floor times the first,
    the participation ratio where the Frobenius ratio is below the floor.

    Args:
        states: hidden states [L + 1, B, T, D] without padding.
        precision: of the forward pass that made them.
        spectral_sequences: how many sequences get the measures that need singular values; all
            of them if not given.
        only: the measures to compute.

    Returns:
        Columns layer, sequence, measure, value (null where it has none), status.

    Raises:
        ValueError: a measure is not known, or none is asked for.
    """
    asked = set(only)
    for name in asked:
        require_known("measure", name, MEASURES)
    sequences = states.shape[1]
    spectral = sequences if spectral_sequences is None else spectral_sequences
    frames = []
    for index in range(sequences):
        names = asked if index < spectral else asked.difference(SPECTRAL_MEASURES)
        for frame in _measure_sequence(states[:, index], precision, names):
            frames.append(frame.assign(sequence=index))
    return pd.concat(frames, ignore_index=True)


def _measure_sequence(x: Tensor, precision: str, asked: set[str]) -> list[pd.DataFrame]:
    """Measure one sequence's states [L + 1, T, D]: one frame a measure."""
    reasons = _degenerate(x)
    finite = torch.tensor([reason != "not finite" for reason in reasons])
    x = torch.where(finite.to(x.device)[:, None, None], x, 0.0)
    marked: Marked = {}
    for names, measure in GROUPS.items():
        if not asked.isdisjoint(names):
            marked |= measure(x, precision)
    return [
        pd.DataFrame(
            {
                "layer": range(len(x)),
                "measure": name,
                "value": values.where(values.isfinite() & finite, torch.nan).tolist(),
                "status": _statuses(reasons, values, below),
            }
        )
        for name, (values, below) in marked.items()
        if name in asked
    ]


def _degenerate(x: Tensor) -> list[str]:
    """Return for each state what is wrong with it, or an empty text."""
    reasons = []
    for largest in x.abs().amax((1, 2)).tolist():
        if not math.isfinite(largest):
            reasons.append("not finite")
        elif largest == 0:
            reasons.append("zero matrix")
        else:
            reasons.append("one token" if x.shape[1] == 1 else "")
    return reasons


def _composite(x: Tensor, precision: str) -> Marked:
    values = measures.in_cache(measures.composite_ratio, x)
    marked = _mark(values, precision)
    above = values.cpu().where(~marked[1], torch.nan)
    rates = measures.rate(above[:, None])[:, 0]
    return {"composite_ratio": marked, "rate": (rates, torch.zeros_like(marked[1]))}


def _bracket(x: Tensor, precision: str) -> Marked:
    low, high = measures.in_cache(lambda pair: torch.stack(measures.minimiser_bracket(pair)), x)
    return {
        "composite_ratio_low": _mark(low, precision),
        "composite_ratio_high": _mark(high, precision),
    }


def _frobenius(x: Tensor, precision: str) -> Marked:
    return {"frobenius_ratio": _mark(measures.in_cache(measures.frobenius_ratio, x), precision)}


def _cosine(x: Tensor, precision: str) -> Marked:
    cosine = measures.in_cache(measures.mean_cosine, x).cpu()
    floor = max(precision_floor(precision) ** 2 / 2, precision_floor("float64"))
    return {"cosine": (cosine, 1 - cosine < floor)}


def _spectral(x: Tensor, precision: str) -> Marked:
    spectrum = measures.singular_values(x).cpu()
    centred = measures.singular_values(measures.residual(x)).cpu()
    second = spectrum[:, 1] if spectrum.shape[1] > 1 else torch.zeros(len(x), dtype=torch.double)
    below = second < precision_floor(precision) * spectrum[:, 0]
    tolerance = max(x.shape[-2:]) * EPS[precision]
    count = measures.numerical_rank(spectrum, tolerance=tolerance)
    _, frobenius_below = _frobenius(x, precision)["frobenius_ratio"]
    return {
        "effective_rank": (measures.effective_rank(spectrum), below),
        "stable_rank": (measures.stable_rank(spectrum), below),
        "numerical_rank": (count, torch.zeros_like(below)),
        "participation_ratio": (measures.participation_ratio(centred), frobenius_below),
    }


def _mark(ratios: Tensor, precision: str) -> tuple[Tensor, Tensor]:
    return ratios.cpu(), ratios.cpu() < precision_floor(precision)


# Which measures are found together, and how: values and marks of the floor of states [L + 1, T, D].
GROUPS: dict[tuple[str, ...], Callable[[Tensor, str], Marked]] = {
    ("composite_ratio", "rate"): _composite,
    ("composite_ratio_low", "composite_ratio_high"): _bracket,
    ("frobenius_ratio",): _frobenius,
    ("cosine",): _cosine,
    SPECTRAL_MEASURES: _spectral,
}


def _statuses(reasons: list[str], values: Tensor, below: Tensor) -> list[str]:
    statuses = []
    for reason, value, mark in zip(reasons, values.tolist(), below.tolist(), strict=True):
        undefined = "undefined" if math.isnan(value) else ""
        statuses.append(reason or undefined or ("below floor" if mark else "ok"))
    return statuses


def residuals(
    folder: Path,
    output: Path,
    *,
    spectral_sequences: int | None = None,
    only: Iterable[str] = MEASURES,
) -> pd.DataFrame:
    """Write the tidy table of a folder of hidden states.

    Beside the measures, layer 0 of each ablation gets `repeated_share`, the share of a sequence's
    pieces that repeat another: it moves models without absolute positions.

    Args:
        folder: what `rankcollapse.evaluate.evaluate` made.
        output: the Parquet file.
        spectral_sequences: how many sequences get the measures that need singular values.
        only: the measures to compute.

    Returns:
        The table.

    Raises:
        RankCollapseError: the states are missing or damaged, or the table cannot be written.
    """
    index = read_index(folder)
    repeated = pd.DataFrame({"layer": 0, "measure": "repeated_share", "status": "ok"}, index=[0])
    shares = repeated.merge(pd.DataFrame({"value": index["repeated_share"]}), how="cross")
    shares["sequence"] = range(len(shares))
    tables = []
    runs = [(entry["reading"], entry["variant"]) for entry in index["states"]]
    for (reading, variant), (_, states) in zip(
        steps(runs, f"measuring {folder.name}"), read_states(folder), strict=True
    ):
        table = measure_states(
            states,
            precision=index["precision"],
            spectral_sequences=spectral_sequences,
            only=only,
        )
        tables.append(pd.concat([table, shares]).assign(variant=variant, reading=reading))
    key = {name: index[name] for name in ("checkpoint", "weights", "seed", "text", "precision")}
    frame = pd.concat(tables, ignore_index=True).assign(**key)
    frame["seed"] = frame["seed"].astype("Int64")
    write_table(output, frame)
    return frame
