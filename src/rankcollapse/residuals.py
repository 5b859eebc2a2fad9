"""From hidden states to the tidy table of measures, each value with its status.

Shapes: L layers, B sequences, T tokens, D features.
"""

import math
from pathlib import Path

import pandas as pd
import torch
from torch import Tensor

from rankcollapse import measures
from rankcollapse.precision import EPS, precision_floor
from rankcollapse.progress import steps
from rankcollapse.states import read_index, read_states
from rankcollapse.tables import write_table


def measure_states(
    states: Tensor, *, precision: str, spectral_sequences: int | None = None
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

    Returns:
        Columns layer, sequence, measure, value (null where it has none), status.
    """
    sequences = states.shape[1]
    spectral = sequences if spectral_sequences is None else spectral_sequences
    frames = [
        _measure_sequence(states[:, index], precision, with_spectrum=index < spectral).assign(
            sequence=index
        )
        for index in range(sequences)
    ]
    return pd.concat(frames, ignore_index=True)


def _measure_sequence(x: Tensor, precision: str, *, with_spectrum: bool) -> pd.DataFrame:
    """Measure one sequence's states [L + 1, T, D]."""
    reasons = _degenerate(x)
    finite = torch.tensor([reason != "not finite" for reason in reasons])
    x = torch.where(finite.to(x.device)[:, None, None], x, 0.0)
    marked = _ratios(x, precision_floor(precision))
    if with_spectrum:
        frobenius_below = marked["frobenius_ratio"][1]
        marked |= _spectral(x, precision, frobenius_below)
    frames = [
        pd.DataFrame(
            {
                "layer": range(len(x)),
                "measure": name,
                "value": values.where(values.isfinite() & finite, torch.nan).tolist(),
                "status": _statuses(reasons, values, below),
            }
        )
        for name, (values, below) in marked.items()
    ]
    return pd.concat(frames, ignore_index=True)


def _degenerate(x: Tensor) -> list[str]:
    """Return for each state what is wrong with it, or an empty text."""
    reasons = []
    for state in x:
        if not state.isfinite().all():
            reasons.append("not finite")
        elif not state.any():
            reasons.append("zero matrix")
        else:
            reasons.append("one token" if len(state) == 1 else "")
    return reasons


def _ratios(x: Tensor, floor: float) -> dict[str, tuple[Tensor, Tensor]]:
    """Return the measures that need no spectrum, each with its marks of the floor."""
    low, high = measures.in_cache(lambda pair: torch.stack(measures.minimiser_bracket(pair)), x)
    ratios = {
        "composite_ratio": measures.in_cache(measures.composite_ratio, x),
        "composite_ratio_low": low,
        "composite_ratio_high": high,
        "frobenius_ratio": measures.in_cache(measures.frobenius_ratio, x),
    }
    marked = {name: (values.cpu(), values.cpu() < floor) for name, values in ratios.items()}
    cosine = measures.in_cache(measures.mean_cosine, x).cpu()
    marked["cosine"] = (cosine, 1 - cosine < max(floor**2 / 2, precision_floor("float64")))
    composite, below = marked["composite_ratio"]
    rates = measures.rate(composite.where(~below, torch.nan)[:, None])[:, 0]
    marked["rate"] = (rates, torch.zeros_like(below))
    return marked


def _spectral(
    x: Tensor, precision: str, frobenius_below: Tensor
) -> dict[str, tuple[Tensor, Tensor]]:
    """Return the measures of the singular values, each with its marks of the floor."""
    spectrum = measures.singular_values(x).cpu()
    centred = measures.singular_values(measures.residual(x)).cpu()
    second = spectrum[:, 1] if spectrum.shape[1] > 1 else torch.zeros(len(x), dtype=torch.double)
    below = second < precision_floor(precision) * spectrum[:, 0]
    tolerance = max(x.shape[-2:]) * EPS[precision]
    count = measures.numerical_rank(spectrum, tolerance=tolerance)
    return {
        "effective_rank": (measures.effective_rank(spectrum), below),
        "stable_rank": (measures.stable_rank(spectrum), below),
        "numerical_rank": (count, torch.zeros_like(below)),
        "participation_ratio": (measures.participation_ratio(centred), frobenius_below),
    }


def _statuses(reasons: list[str], values: Tensor, below: Tensor) -> list[str]:
    statuses = []
    for reason, value, mark in zip(reasons, values.tolist(), below.tolist(), strict=True):
        undefined = "undefined" if math.isnan(value) else ""
        statuses.append(reason or undefined or ("below floor" if mark else "ok"))
    return statuses


def residuals(folder: Path, output: Path, *, spectral_sequences: int | None = None) -> pd.DataFrame:
    """Write the tidy table of a folder of hidden states.

    Beside the measures, layer 0 of each ablation gets `repeated_share`, the share of a sequence's
    pieces that repeat another: it moves models without absolute positions.

    Args:
        folder: what `rankcollapse.evaluate.evaluate` made.
        output: the Parquet file.
        spectral_sequences: how many sequences get the measures that need singular values.

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
            states, precision=index["precision"], spectral_sequences=spectral_sequences
        )
        tables.append(pd.concat([table, shares]).assign(variant=variant, reading=reading))
    key = {name: index[name] for name in ("checkpoint", "weights", "seed", "text", "precision")}
    frame = pd.concat(tables, ignore_index=True).assign(**key)
    frame["seed"] = frame["seed"].astype("Int64")
    write_table(output, frame)
    return frame
