"""Which path lengths exist in whole models and which matter, in words.

Symbols: X_k, the sum of all paths through k attention sub-layers; its share, the signed projection
of its residual on that of the last state. The shares of a model sum to 1, but those of some lengths
may be negative: "carry" therefore counts their magnitudes.
"""

from typing import Any, NamedTuple

import pandas as pd

from rankcollapse.figures.panels import in_order, select
from rankcollapse.figures.style import VARIANTS
from rankcollapse.report.findings import counted, number, panel_name, percent, ranges

CARRIED = 0.9
NOTHING = "No model was decomposed in this profile."
_MODEL = ["checkpoint", "weights"]
_VISIBLE = 0.005  # a share below 0 is said from here on
_PLACES = {"attention": "attention", "mlp": "MLPs", "norm": "normalisations"}


class Lengths(NamedTuple):
    """The terms of one model's last state, each a mean over the seeds, by length."""

    share: "pd.Series[float]"
    paths: "pd.Series[float]"


def carrying(share: "pd.Series[float]") -> list[int]:
    """Return the fewest lengths that hold 90 % of the sum of the shares' magnitudes, ascending."""
    sizes = share.abs().sort_values(ascending=False, kind="stable")
    before = sizes.cumsum().shift(fill_value=0.0)
    return sorted(sizes.index[before < CARRIED * sizes.sum()])


def median_length(paths: "pd.Series[float]") -> int:
    """Return the least length that at least half of all paths do not exceed."""
    cumulative = paths.sort_index().astype(float).cumsum()
    return int(cumulative.index[cumulative * 2 >= cumulative.iloc[-1]][0])


def carried(found: Lengths) -> str:
    """Say which lengths carry the residual, and how long the paths are."""
    return (
        f"{_lengths(carrying(found.share))} {percent(CARRIED)} of the residual of the last state; "
        f"the median path has length {median_length(found.paths)}"
    )


def section(tables: dict[str, pd.DataFrame]) -> dict[str, Any]:
    """Return the sentences on each model, and the table of models and variants.

    Args:
        tables: "decomposition", "mlp_source", "left_out" and "sources", as `path_inputs` has them.
    """
    last = in_order(_last_layer(tables["decomposition"]))
    models = list(dict.fromkeys(last[_MODEL].itertuples(index=False, name=None)))
    return {
        "models": [(panel_name(*model), _sentences(tables, *model)) for model in models],
        "rows": [
            _row(tables, *names)
            for names in dict.fromkeys(
                last[[*_MODEL, "variant"]].itertuples(index=False, name=None)
            )
        ],
    }


def _last_layer(rows: pd.DataFrame) -> pd.DataFrame:
    return rows[rows["layer"] == rows.groupby(_MODEL)["layer"].transform("max")]


def _of(rows: pd.DataFrame, checkpoint: str, weights: str, variant: str) -> pd.DataFrame:
    return select(rows, checkpoint=checkpoint, weights=weights, variant=variant)


def _lengths_of(rows: pd.DataFrame) -> Lengths:
    by_length = rows.groupby("length")
    return Lengths(by_length["share"].mean(), by_length["paths"].first())


def _sentences(tables: dict[str, pd.DataFrame], checkpoint: str, weights: str) -> list[str]:
    names = (checkpoint, weights, "transformer")
    rows = _of(_last_layer(tables["decomposition"]), *names)
    if rows.empty:
        return ["the whole transformer was not decomposed."]
    found = _lengths_of(rows)
    return [
        f"{carried(found)}{_seeds(rows)}.",
        *_against(found.share),
        *_left_out(_of(tables["left_out"], *names)),
        *_biases(_of(tables["sources"], *names), carrying(found.share)),
        *_other_split(_of(_last_layer(tables["mlp_source"]), *names), found),
    ]


def _lengths(lengths: list[int]) -> str:
    noun = "length" if len(lengths) == 1 else "lengths"
    return f"{noun} {ranges(lengths)} {'carries' if len(lengths) == 1 else 'carry'}"


def _seeds(rows: pd.DataFrame) -> str:
    count = rows["seed"].nunique()
    return f" ({'mean over ' if count > 1 else ''}{counted(count, 'seed')})" if count else ""


def _against(share: "pd.Series[float]") -> list[str]:
    """Say which lengths count against the sum."""
    negative = share[share <= -_VISIBLE]
    if negative.empty:
        return []
    noun = "Length" if len(negative) == 1 else "Lengths"
    verb = "points" if len(negative) == 1 else "point"
    return [
        f"{noun} {ranges(negative.index)} {verb} against the state: shares that sum to "
        f"{number(float(negative.sum()), 2)}."
    ]


def _left_out(rows: pd.DataFrame) -> list[str]:
    means = rows.groupby("length")[["cosine", "similarity_error"]].mean()
    if means.empty:
        return []
    shortest, longest = means.iloc[0], means.iloc[-1]
    said = (
        f"Without length {means.index[0]} the last state keeps a cosine of "
        f"{shortest['cosine']:.3f} with itself, without length {means.index[-1]}, the longest, "
        f"{longest['cosine']:.3f}"
    )
    if means["similarity_error"].notna().all():
        said += (
            f"; the cosine of two sentences moves by {number(shortest['similarity_error'], 2)} and "
            f"{number(longest['similarity_error'], 2)}, most without length "
            f"{means['similarity_error'].idxmax()}, by "
            f"{number(means['similarity_error'].max(), 2)} (root mean square over pairs)"
        )
    return [f"{said}."]


def _biases(rows: pd.DataFrame, lengths: list[int]) -> list[str]:
    """Say which share of the terms that carry the residual starts at biases, and where."""
    shares = rows.groupby(["length", "source"])["share"].mean().unstack("source")
    shares = shares.loc[shares.index.isin(lengths)]
    if shares.empty:
        return []
    biases = 1 - shares["embedding"]
    low, high = (_percent(float(end)) for end in (biases.min(), biases.max()))
    said = f"Of the residual of these terms {low if low == high else f'{low} to {high}'} starts at "
    places = shares[list(_PLACES)].mean()
    most = f", most at those of the {_PLACES[str(places.idxmax())]}" if places.max() > 0 else ""
    return [f"{said}biases{most} (the first few of the texts)."]


def _percent(share: float) -> str:
    """Return "−110 %": shares that cancel may be below 0 and above 1."""
    return f"{round(100 * share)}\N{NO-BREAK SPACE}%".replace("-", "−")


def _other_split(rows: pd.DataFrame, found: Lengths) -> list[str]:
    if rows.empty:
        return []
    other = _lengths_of(rows)
    moved = float((other.share - found.share).abs().sum() / 2)
    return [
        f"With each MLP's output as a source of its own, {_lengths(carrying(other.share))} as "
        f"much, and {_percent(moved)} of the share is at other lengths (half the sum of the "
        "differences)."
    ]


def _row(
    tables: dict[str, pd.DataFrame], checkpoint: str, weights: str, variant: str
) -> dict[str, Any]:
    names = (checkpoint, weights, variant)
    rows = _of(_last_layer(tables["decomposition"]), *names)
    found = _lengths_of(rows)
    ranks = rows.groupby("length")["rank_one_distance"].mean()
    losses = _of(tables["left_out"], *names).groupby("length")["cosine"].mean()
    ends = [0, int(found.share.index.max())]
    return {
        "name": f"{panel_name(checkpoint, weights)}, {VARIANTS[variant].label}",
        "seeds": rows["seed"].nunique() or None,
        "carrying": ranges(carrying(found.share)),
        "longest_carrying": max(carrying(found.share)),
        "median": median_length(found.paths),
        "longest": ends[1],
        "share": float(found.share[0]),
        "negative": float(found.share.clip(upper=0).sum()),
        "rank_one": [float(ranks[end]) for end in ends],
        "cosine": [float(losses.get(end, float("nan"))) for end in ends],
    }


def summary(section: dict[str, Any]) -> str:
    """Return one sentence on all models for the top of the section."""
    if not section["rows"]:
        return NOTHING
    rows = section["rows"]
    rest = [row["name"] for row in rows if row["median"] <= row["longest_carrying"]]
    networks = counted(len(rows), "network")
    if not rest:
        return f"In all of {networks} the lengths that carry are shorter than the median path."
    return (
        f"In {len(rows) - len(rest)} of {networks} the lengths that carry are all shorter than the "
        f"median path; not in {'; '.join(rest)}."
    )
