"""What follows from the measured collapse of models whose relative position term is scaled.

Shapes: S seeds, B sequences.
"""

import math

import pandas as pd

from rankcollapse.rates import CUBIC, EXPONENTIAL, mean_over

RELATIVE_COLUMNS = ["checkpoint", "weights", "seed", "scale", "layer", "sequence", "ratio", "rate"]
CONTRACTION_COLUMNS = ["checkpoint", "weights", "seed", "scale", "layer", "head"]
CONTRACTION_COLUMNS += ["tau", "second_eigenvalue", "weight"]
ASYMPTOTE_COLUMNS = ["heads", "scale", "seed", "layer", "log10_ratio", "rate", "factor"]
ASYMPTOTE_COLUMNS += ["bound_log10", "tau", "limit"]
CLAIM_COLUMNS = ["claim", "source", "condition", "effect", "low", "high", "verdict"]
SOURCE = "not in the paper: its theorem has no relative positions"
_MIDDLE = (CUBIC + EXPONENTIAL) / 2
_EXPONENTIAL_WITH = "with its relative term the collapse is exponential"
_DOUBLY_WITHOUT = "without its relative term the collapse is doubly exponential"
_SLOWER = "the relative term slows the collapse"


def predicted(contraction: pd.DataFrame) -> pd.DataFrame:
    """Return the factor by which a layer's relative term alone would shrink the residual.

    Both are means over the heads, weighted by |W_h|_inf, and over the sequences and seeds. `tau`,
    Dobrushin's coefficient, is the most that mixing by softmax(term) leaves of any difference of
    two tokens; the second eigenvalue's magnitude, never more, is what it leaves in the long run.
    Neither is a bound of the ratio: what the value maps and the LayerNorm do to the residual is
    taken to be what they do to the row that all tokens share.

    Args:
        contraction: `CONTRACTION_COLUMNS`.

    Returns:
        checkpoint, weights, scale, layer, tau, second_eigenvalue.
    """
    keys = ["checkpoint", "weights", "scale", "layer"]
    columns = ["tau", "second_eigenvalue"]
    weighted = contraction.assign(
        **{name: contraction[name] * contraction["weight"] for name in columns}
    )
    sums = weighted.groupby(keys, sort=False)[[*columns, "weight"]].sum()
    return sums[columns].div(sums["weight"], axis=0).reset_index()


def judge(measured: pd.DataFrame) -> pd.DataFrame:
    """Judge three claims for each checkpoint, from its last rate with and without its term.

    The last rate is that of the deepest layer at which every sequence of every seed is still above
    the floor. Midway between the rates 1 and 3 lies 2. *Supported*: the 95 % interval over texts
    and seeds (`rates.mean_over`) lies above 0; *opposite*: below; *not supported*: it holds 0;
    *not measured*: there is no interval, or a scale is missing.

    Args:
        measured: `RELATIVE_COLUMNS`, of any number of checkpoints and seeds.

    Returns:
        The columns of `CLAIM_COLUMNS`; effects are differences of rates.
    """
    rows = []
    for (checkpoint, weights), one in measured.groupby(["checkpoint", "weights"], sort=False):
        own, none = (_last_rates(one[one["scale"] == scale]) for scale in (1.0, 0.0))
        effects = {
            _EXPONENTIAL_WITH: _MIDDLE - own,
            _DOUBLY_WITHOUT: none - _MIDDLE,
            _SLOWER: none - own,
        }
        for claim, effect in effects.items():
            rows.append((claim, SOURCE, f"{checkpoint}, {weights}", *_judged(effect)))
    return pd.DataFrame(rows, columns=CLAIM_COLUMNS)


def _last_rates(measured: pd.DataFrame) -> pd.DataFrame:
    """Return the rates [S, B] of the last layer that all sequences have; none if there is none."""
    seeds = measured["seed"].astype("Int64").fillna(-1)
    table = measured.assign(seed=seeds).pivot(
        index="layer", columns=["seed", "sequence"], values="rate"
    )
    complete = table.dropna()
    return complete.iloc[-1].unstack() if len(complete) else pd.DataFrame(dtype=float)


def _judged(effects: pd.DataFrame) -> tuple[float, float, float, str]:
    if not effects.notna().to_numpy().any():
        return math.nan, math.nan, math.nan, "not measured"
    mean, low, high = mean_over(effects.to_numpy(float))
    if math.isnan(low):
        return mean, low, high, "not measured"
    verdict = "supported" if low > 0 else "opposite" if high < 0 else "not supported"
    return mean, low, high, verdict
