"""The tables of bounds on models: their columns, and what they say in one sentence.

Light on purpose: figures and report read these tables and do not need torch.
"""

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pandas as pd
from scipy.optimize import brentq

_MODEL = ["checkpoint", "weights", "seed"]
PURE_SAN = "pure-san"  # the network with small weights and no norms, not a model that anyone uses
CHAINS = ("one step", "chained", "closed")
CUBIC = ("paper", "first", "ours", "sharp", "refined", "tight")
DOBRUSHIN = "dobrushin"
HEADLINE = "tight"
UNPROVEN = ("paper", "closed")  # form and chain that the paper claims and no proof here covers
# The largest D at which the forms "paper" (exp(D) - 1 = 2 D) and "first" are proven.
PAPER_LIMIT: float = brentq(lambda d: math.expm1(d) - 2 * d, 1, 2, xtol=1e-15)
FIRST_LIMIT = math.log(8)

# A row for each layer, one step from its measured state. `measured_log10`: of the residual of the
# attention's output, before its norm, around the layer's own reference row (1 (q R + x) W, summed
# over heads), not the column mean; `bound_log10`: the form `HEADLINE`, the least of the cubic ones;
# `dobrushin_log10` bounds not the residual but the largest 1-norm distance of two tokens of the
# output. Means over the sequences; beta = |WQK|_1 |W| / sqrt(k), gamma and max_D are each the
# largest of any head and sequence, of content scores alone where there is a relative term.
# `verdict`: of `bound_log10`, the worst of the sequences.
BOUND_COLUMNS = [
    *_MODEL,
    "layer",
    *("measured_log10", "bound_log10", "dobrushin_log10", "beta", "gamma", "max_D", "verdict"),
]
# A row for each layer, form and chain. Means of log10 over the sequences, the worst verdict and the
# least margin.
FORM_COLUMNS = [
    *_MODEL,
    "layer",
    "form",  # of CUBIC, or DOBRUSHIN
    "chain",  # of CHAINS: from the layer's own input; from the first, layer by layer; closed form
    # Of DOBRUSHIN the largest distance of two tokens: in the 2-norm where it is chained through the
    # LayerNorms of a real model, else (one step, and the chain of PURE_SAN) in the 1-norm. Of other
    # forms the residual around the layer's own reference row (see above), not the column mean.
    "measured_log10",
    "bound_log10",  # empty where it has none
    "trivial_log10",  # what it has to lie below to say anything: the same of the input
    "verdict",  # of bound_chains.VERDICTS
    "margin",  # bound over measured in decades; empty where the bound does not apply
    "below_floor",  # whether round-off is all that the layer's input has for a residual
]
# Pieces beside attention, in the order of a block, and the sides from which they are limited.
PIECES = ("skip", "attention norm", "mlp", "mlp norm")
LEAST, MOST = SIDES = ("least", "most")
# A row for each layer, piece and side: log10 of after over before, of the largest 2-norm distance
# of two tokens (skip and norms) or of the composite residual (MLP; see `bound_pieces`). Means over
# the sequences; empty where one sequence's input is round-off.
PIECE_COLUMNS = [
    *_MODEL,
    *("variant", "layer", "piece", "side", "measured_log10"),
    "bound_log10",  # -inf: nothing is proven to be left
    "margin",  # in decades; empty where the bound says nothing
    "verdict",  # "vacuous", "below floor" or "holds"
]
# Of several sequences the first of these that one of them has.
_WORST_FIRST = ("violated", "condition not met", "vacuous", "below floor", "holds")
_KEY = ["layer", "form", "chain"]
_THEOREMS = {
    ("paper", "one step"): "the paper's bound of one layer",
    ("sharp", "one step"): "our form of it",
    (HEADLINE, "one step"): "the refined one",
    (DOBRUSHIN, "one step"): "Dobrushin's",
    (DOBRUSHIN, "chained"): "Dobrushin's chained through the norms",
    ("paper", "closed"): "the paper's theorem over several layers",
    ("sharp", "closed"): "our form of that",
}
_WEIGHTS = {"init": "{} at initialisation", "pretrained": "pretrained {}"}


def over_sequences(rows: pd.DataFrame) -> pd.DataFrame:
    """Put the sequences of one model together.

    Args:
        rows: `FORM_COLUMNS` without the model's names, a row for each sequence.

    Returns:
        The same columns: means of logarithms, which are empty where one sequence has none; the
        worst verdict; the least margin, empty where one sequence has none; whether the input of any
        is below the floor.
    """
    return _together(rows, _KEY)


def pieces_over_sequences(rows: pd.DataFrame) -> pd.DataFrame:
    """Put the sequences of one model together, as `over_sequences` does.

    Args:
        rows: `PIECE_COLUMNS` without the model's names and the variant, a row for each sequence.
    """
    return _merged(rows, ["layer", "piece", "side"], ["measured_log10", "bound_log10"])


def over_seeds(bound_forms: pd.DataFrame) -> pd.DataFrame:
    """Put the seeds of each model together, as `over_sequences` does; `seeds` is how many."""
    keys = [*_MODEL[:2], *_KEY]
    counts = bound_forms.groupby(keys, sort=False).size().rename("seeds").reset_index()
    return _together(bound_forms, keys).merge(counts, on=keys)


def _together(rows: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    lost = rows.groupby(keys, sort=False)["below_floor"].any().reset_index()
    return _merged(rows, keys, ["measured_log10", "bound_log10", "trivial_log10"]).merge(lost)


def _merged(rows: pd.DataFrame, keys: list[str], means: list[str]) -> pd.DataFrame:
    ranked = rows.assign(verdict=rows["verdict"].map(_WORST_FIRST.index))
    grouped = ranked.groupby(keys, sort=False)
    result = grouped[means].agg(_mean)
    result["verdict"] = grouped["verdict"].min().map(dict(enumerate(_WORST_FIRST)))
    result["margin"] = grouped["margin"].agg(_least)
    return result.reset_index()


def _mean(column: pd.Series) -> float:
    """Return the mean, NaN if there is one among them."""
    return float(column.to_numpy().mean())


def _least(column: pd.Series) -> float:
    """Return the least value, NaN if there is one among them."""
    return float(column.to_numpy().min())


def by_layer(forms: pd.DataFrame, quantities: pd.DataFrame) -> pd.DataFrame:
    """Return `BOUND_COLUMNS` without the model's names.

    Args:
        forms: what `over_sequences` gives.
        quantities: layer, beta, gamma, max_D.
    """
    steps = forms[forms["chain"] == CHAINS[0]]
    bounds = steps.loc[
        steps["form"] == HEADLINE, ["layer", "measured_log10", "bound_log10", "verdict"]
    ]
    distance = steps.loc[steps["form"] == DOBRUSHIN, ["layer", "bound_log10"]]
    distance = distance.rename(columns={"bound_log10": "dobrushin_log10"})
    return bounds.merge(distance, on="layer").merge(quantities, on="layer")


def conclusion(bound_forms: pd.DataFrame, *, labels: Mapping[str, str] | None = None) -> str:
    """Say in one sentence of which real models each theorem says anything.

    It does where its verdict is "holds" for every seed. Layers whose input has nothing but
    round-off for a residual do not count. A violation is a bug, unless it is of `UNPROVEN`.

    Args:
        bound_forms: `FORM_COLUMNS` of any number of models.
        labels: what checkpoints are called, where that is not their name.
    """
    real = bound_forms[bound_forms["checkpoint"] != PURE_SAN]
    proven = (real["form"] != UNPROVEN[0]) | (real["chain"] != UNPROVEN[1])
    broken = int(((real["verdict"] == "violated") & proven).sum())
    if broken:
        return f"A bound is violated in {broken} rows of the table of bounds, which is a bug."
    if real.empty:
        return "No bound was evaluated on a real model."
    found = {name: list(_holding(real, *key)) for key, name in _THEOREMS.items()}
    names = labels or {}
    said = [
        f"{theorem} of {_and([_model(model, names, layers) for model, layers in models])}"
        for theorem, models in found.items()
        if models
    ]
    silent = [theorem for theorem, models in found.items() if not models]
    heard = {model for models in found.values() for model, _ in models}
    models = dict.fromkeys(zip(real["checkpoint"], real["weights"], strict=True))
    unknown = [_model(model, names) for model in models if model not in heard]
    parts = [
        "; ".join(said) or "none",
        *([f"{_and(silent)} of none"] if silent and said else []),
        *([f"none of {_and(unknown)}"] if unknown and said else []),
    ]
    return (
        "Of real models without skips and MLPs, in layers whose input is more than round-off, "
        f"these bounds say something: {'; '.join(parts)}."
    )


def _holding(
    real: pd.DataFrame, form: str, chain: str
) -> Iterator[tuple[tuple[str, str], list[int]]]:
    """Yield each model, and its layers at which a theorem says something for every seed."""
    rows = real[(real["form"] == form) & (real["chain"] == chain)]
    if chain == "closed":
        rows = rows[rows["layer"] > 1]  # of one layer it is the bound of one step
    for (checkpoint, weights), model in rows.groupby(["checkpoint", "weights"], sort=False):
        holds = (model["verdict"] == "holds") & ~model["below_floor"].astype(bool)
        every = holds.groupby(model["layer"]).all()
        if every.any():
            yield (str(checkpoint), str(weights)), every.index[every].tolist()


def _model(model: tuple[str, str], labels: Mapping[str, str], layers: Sequence[int] = ()) -> str:
    checkpoint, weights = model
    where = f" ({_layers(layers)})" if layers else ""
    return _WEIGHTS[weights].format(labels.get(checkpoint, checkpoint)) + where


def _layers(layers: Sequence[int]) -> str:
    """Return "layers 1, 4 and 6 to 9"."""
    runs = np.split(layers, np.flatnonzero(np.diff(layers) > 1) + 1)
    words: list[str] = []
    for run in runs:
        words += [f"{run[0]} to {run[-1]}"] if len(run) > 2 else [str(layer) for layer in run]
    return f"layer{'s' if len(layers) > 1 else ''} {_and(words)}"


def _and(words: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))
