"""How fast models collapse, and what relative positions have to do with it, in words.

`rates` has the rule for the words, `relative_tables` what the claims are.
"""

from typing import Any

import numpy as np
import pandas as pd

from rankcollapse.figures.panels import in_order, select
from rankcollapse.rates import WORDS
from rankcollapse.relative_tables import SOURCE, predicted
from rankcollapse.report.findings import (
    counted,
    curve_name,
    listed,
    number,
    panel_name,
    ranges,
)

_CURVE = ["checkpoint", "weights", "variant"]
_MODEL = ["checkpoint", "weights"]
NOTHING = "No curve has an order in this profile."


def section(tables: dict[str, pd.DataFrame], *, text: str) -> dict[str, Any]:
    """Return the orders, what scaling the relative term does, and the claims on it.

    Args:
        tables: "rates", "orders", "relative", "contraction", "asymptote" and "component_claims",
            as `path_inputs` has them.
        text: the name of the text whose curves are told.
    """
    chosen = {"reading": "as-published", "text": text}
    rows = in_order(select(tables["orders"], **chosen).dropna(subset="order"))
    return {
        "summary": summary(rows),
        "orders": _orders(rows, select(tables["rates"], **chosen)),
        "others": int(tables["orders"]["order"].notna().sum()) - len(rows),
        "scales": scales(tables["relative"], tables["contraction"]),
        "asymptote": asymptote(tables["asymptote"]),
        "claims": select(tables["component_claims"], source=SOURCE),
    }


def order_text(row: Any) -> str:  # noqa: ANN401
    """Return "2.97 (2.91 to 3.03)"."""
    interval = "" if pd.isna(row.low) else f" ({_two(row.low)} to {_two(row.high)})"
    return f"{_two(row.order)}{interval}"


def _two(value: float) -> str:
    return f"{value:.2f}".replace("-", "−")


def summary(orders: pd.DataFrame) -> str:
    """Return the orders of attention alone in one sentence, by word.

    Args:
        orders: `rates.ORDER_COLUMNS`, rows that have an order.
    """
    san = select(orders, variant="san")
    if san.empty:
        return NOTHING
    said = []
    for word in WORDS:
        rows = select(san, word=word)
        names = [
            f"{panel_name(str(row.checkpoint), str(row.weights))} {order_text(row)}"
            for row in rows.itertuples(index=False)
        ]
        said += [f"{word} in {listed(names)}"] if names else []
    return f"Order of the collapse of attention alone (SAN): {'; '.join(said)}."


def _orders(orders: pd.DataFrame, rates: pd.DataFrame) -> list[dict[str, Any]]:
    rows: list[Any] = list(orders.itertuples(index=False))
    result = []
    for row in rows:
        names = {name: str(getattr(row, name)) for name in _CURVE}
        result.append(
            row._asdict()
            | {
                "curve": curve_name(*names.values()),
                "order": order_text(row),
                "layers": f"{int(row.first)} to {int(row.last)}",
                "by_layer": _by_layer(select(rates, **names)),
            }
        )
    return result


def _by_layer(rates: pd.DataFrame) -> str:
    """Return "cubic at 3 and 4" from the words of single layers."""
    said = {word: select(rates, word=word)["layer"] for word in WORDS[:-1]}
    return "; ".join(f"{word} at {ranges(layers)}" for word, layers in said.items() if len(layers))


def scales(relative: pd.DataFrame, contraction: pd.DataFrame) -> list[dict[str, Any]]:
    """Return how each model collapses with its relative term scaled, beside the prediction.

    The layer is the deepest at which every sequence of every seed has a rate.

    Args:
        relative: `relative_tables.RELATIVE_COLUMNS`.
        contraction: `relative_tables.CONTRACTION_COLUMNS`.
    """
    alone = predicted(contraction).set_index([*_MODEL, "scale", "layer"])
    result = []
    for (checkpoint, weights), model in relative.groupby(_MODEL, sort=False):
        for scale, rows in sorted(model.groupby("scale"), reverse=True):
            complete = rows.groupby("layer")["rate"].apply(lambda rates: rates.notna().all())
            if not complete.any():
                continue
            layer = int(complete.index[complete][-1])
            key = (checkpoint, weights, scale, layer)
            result.append(
                {
                    "model": panel_name(str(checkpoint), str(weights)),
                    "scale": scale,
                    "layer": layer,
                    "rate": float(rows.loc[rows["layer"] == layer, "rate"].mean()),
                    "factor": _level(rows, layer) / _level(rows, layer - 1),
                    "ratio": _level(rows, int(rows["layer"].max())),
                    "eigenvalue": float(alone["second_eigenvalue"].get(key, np.nan)),
                    "tau": float(alone["tau"].get(key, np.nan)),
                }
            )
    return result


def _level(rows: pd.DataFrame, layer: int) -> float:
    """Return the geometric mean of the ratio after a layer."""
    with np.errstate(divide="ignore"):
        return float(np.exp(np.log(rows.loc[rows["layer"] == layer, "ratio"]).mean()))


def asymptote(networks: pd.DataFrame) -> list[str]:
    """Say where the small networks end.

    Args:
        networks: `relative_tables.ASYMPTOTE_COLUMNS`.
    """
    result = []
    for names, rows in networks.groupby(["heads", "scale", "seed"]):
        heads, scale, _ = (float(str(name)) for name in names)
        last = rows.iloc[-1]
        term = "with a relative term" if scale else "no relative term"
        said = (
            f"{counted(int(heads), 'head')}, {term}: rate {number(last['rate'])} at layer "
            f"{last['layer']:.0f}, log₁₀ of the ratio {number(last['log10_ratio'])}"
        )
        if scale:
            said += (
                f", factor a layer over the second half {number(_late_factor(rows), 2)} where "
                f"{number(last['limit'], 2)} is predicted"
            )
        else:
            margin = (rows["bound_log10"] - rows["log10_ratio"]).min()
            said += f", never nearer to the bound than {number(float(margin), 2)} decades"
        result.append(f"{said}.")
    return result


def _late_factor(rows: pd.DataFrame) -> float:
    """Return the geometric mean of r(l) / r(l - 1) over the second half of the layers."""
    logs = rows["log10_ratio"].to_numpy(float)
    half = len(logs) // 2
    return float(10 ** ((logs[-1] - logs[half]) / (len(logs) - 1 - half)))
