"""What the bounds say of real models, in words and counts."""

from typing import Any

import pandas as pd

from rankcollapse.bound_tables import CHAINS, CUBIC, DOBRUSHIN, PURE_SAN, conclusion
from rankcollapse.figures.panels import in_order
from rankcollapse.figures.style import MODELS
from rankcollapse.report.definitions import BOUND_VERDICTS
from rankcollapse.report.findings import counted, number, panel_name

FORMS = {  # in the order of `bound_tables.CUBIC`
    "paper": "the paper's, 4 gamma",
    "first": "the paper's first version, 4",
    "ours": "ours, min(gamma, √(2 exp D))",
    "sharp": "ours, sharper",
    "refined": "refined",
    "tight": "refined, sharper",
    DOBRUSHIN: "Dobrushin's",
}
_LABELS = {name: look.label for name, look in MODELS.items()}
_MODEL = ["checkpoint", "weights"]


def model_name(checkpoint: str, weights: str) -> str:
    """Return "MiniLM pretrained", or what the small network is."""
    if checkpoint == PURE_SAN:
        return "small attention network with small weights"
    return panel_name(checkpoint, weights)


def section(tables: dict[str, pd.DataFrame]) -> dict[str, Any]:
    """Return the conclusion, the counts of verdicts and the ranges of what the bounds are made of.

    Args:
        tables: "bounds" and "bound_forms", as `path_inputs` has them.
    """
    forms = tables["bound_forms"]
    return {
        "conclusion": conclusion(forms, labels=_LABELS),
        "violated": violated(forms),
        "gain": gain(forms),
        "counts": verdict_counts(forms),
        "quantities": quantities(above_floor(tables["bounds"], forms)),
    }


def violated(forms: pd.DataFrame) -> str:
    """Say how many bounds are violated: a finding if it is the paper's closed form, else a bug."""
    count = int((forms["verdict"] == "violated").sum())
    return (
        f"{counted(count, 'bound')} of {len(forms)} {'is' if count == 1 else 'are'} violated."
        if count
        else f"None of {counted(len(forms), 'bound')} (one a network, layer, form and chain) is "
        "violated."
    )


def gain(forms: pd.DataFrame) -> float:
    """Return by how many decades the sharper closed form lies below ours.

    Median over the layers whose input has more than round-off for a residual.
    """
    steps = forms[(forms["chain"] == CHAINS[0]) & ~forms["below_floor"].astype(bool)]
    wide = steps.pivot_table(
        index=[*_MODEL, "seed", "layer"], columns="form", values="bound_log10", dropna=False
    ).reindex(columns=["ours", "sharp"])
    return float((wide["ours"] - wide["sharp"]).median())


def verdict_counts(forms: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the number of layers with each verdict, of each model, form and chain.

    Args:
        forms: `bound_tables.FORM_COLUMNS`; layers of several seeds count once each.
    """
    ranks = {"form": (*CUBIC, DOBRUSHIN).index, "chain": CHAINS.index}
    ordered = in_order(
        forms.sort_values(
            ["chain", "form"],
            key=lambda column: column.map(ranks[str(column.name)]),
            kind="stable",
        )
    )
    return [
        {
            "model": model_name(str(checkpoint), str(weights)),
            "form": FORMS[str(form)],
            "chain": chain,
            "layers": len(rows),
            "counts": [int((rows["verdict"] == name).sum()) for name in BOUND_VERDICTS],
            "margin": float(rows["margin"].min()),
        }
        for (checkpoint, weights, chain, form), rows in ordered.groupby(
            [*_MODEL, "chain", "form"], sort=False
        )
    ]


def above_floor(bounds: pd.DataFrame, forms: pd.DataFrame) -> pd.DataFrame:
    """Return the layers whose input has more than round-off for a residual.

    Args:
        bounds: `bound_tables.BOUND_COLUMNS`.
        forms: `bound_tables.FORM_COLUMNS` of the same networks.
    """
    keys = [*_MODEL, "seed", "layer"]
    lost = forms.loc[forms["below_floor"].astype(bool), keys].drop_duplicates()
    found = bounds.merge(lost, on=keys, how="left", indicator="found")
    return found[found.pop("found") == "left_only"]


def quantities(bounds: pd.DataFrame) -> list[dict[str, Any]]:
    """Return least and largest of what the bounds are made of, of each model.

    Args:
        bounds: `bound_tables.BOUND_COLUMNS`.
    """
    return [
        {
            "model": model_name(str(checkpoint), str(weights)),
            "layers": len(rows),
            **{name: _range(rows[name]) for name in ("beta", "gamma", "max_D")},
            "margin": _range(rows["bound_log10"] - rows["measured_log10"]),
        }
        for (checkpoint, weights), rows in in_order(bounds).groupby(_MODEL, sort=False)
    ]


def _range(values: "pd.Series[float]") -> str:
    if values.isna().all():
        return "–"
    low, high = number(float(values.min())), number(float(values.max()))
    return low if low == high else f"{low} to {high}"
