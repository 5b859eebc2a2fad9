"""What is proven of skips, LayerNorms and MLPs on real models, in words and counts."""

from typing import Any

import pandas as pd

from rankcollapse.bound_tables import LEAST, PIECES, SIDES
from rankcollapse.figures.panels import in_order, select
from rankcollapse.report.findings import counted, curve_name, number

_CURVE = ["checkpoint", "weights", "variant"]
NAMES = {
    "skip": "skip",
    "attention norm": "LayerNorm after attention",
    "mlp": "MLP",
    "mlp norm": "LayerNorm after MLP",
}


def section(bound_pieces: pd.DataFrame) -> dict[str, Any]:
    """Return the sentences and the table of pieces.

    Args:
        bound_pieces: `bound_tables.PIECE_COLUMNS`; layers of several seeds count once each.
    """
    return {"sentences": sentences(bound_pieces), "rows": rows(bound_pieces)}


def sentences(bound_pieces: pd.DataFrame) -> list[str]:
    """Say where the skip provably keeps something, and that LayerNorms can stretch."""
    if bound_pieces.empty:
        return []
    least = in_order(select(bound_pieces, piece="skip", side=LEAST))
    kept = [
        f"{curve_name(*map(str, names))} ({len(found)} of {counted(len(layers), 'layer')}, "
        f"{number(100 * 10 ** float(found['bound_log10'].min()))}\N{NO-BREAK SPACE}%)"
        for names, layers in least.groupby(_CURVE, sort=False)
        if len(found := select(layers, verdict="holds"))
    ]
    norms = bound_pieces.loc[bound_pieces["piece"].str.endswith("norm"), "measured_log10"].dropna()
    stretched = int((norms > 0).sum())
    return [
        "A skip provably keeps tokens apart where the sum over heads of τ ‖W‖₂ is below 1 "
        "(percent: the least that it keeps of the largest distance of two tokens, geometric mean "
        f"over texts; seeds counted one by one): {'; '.join(kept) or 'in no layer measured here'}.",
        f"Of {counted(len(norms), 'LayerNorm')} in a layer of these networks {stretched} "
        f"{'stretches' if stretched == 1 else 'stretch'} the largest distance of two tokens (the "
        "distance itself, not its ratio to the size of the tokens)"
        + (": that they cannot is not a theorem." if stretched else "."),
    ]


def rows(bound_pieces: pd.DataFrame) -> list[dict[str, Any]]:
    """Return ranges of measured ratios, limits and margins, of each network, piece and side."""
    found = []
    for names, network in in_order(bound_pieces).groupby(_CURVE, sort=False):
        for piece in PIECES:
            for side in SIDES:
                layers = select(network, piece=piece, side=side)
                if layers.empty:
                    continue
                held = select(layers, verdict="holds")
                found.append(
                    {
                        "network": curve_name(*map(str, names)),
                        "piece": f"{NAMES[piece]}, at {side}",
                        "layers": len(layers),
                        "holds": len(held),
                        "measured": _factors(held["measured_log10"]),
                        "limit": _factors(held["bound_log10"]),
                        "margin": float(held["margin"].min()),
                    }
                )
    return found


def _factors(logarithms: "pd.Series[float]") -> str:
    if logarithms.dropna().empty:
        return "–"
    low, high = (number(10 ** float(end)) for end in (logarithms.min(), logarithms.max()))
    return low if low == high else f"{low} to {high}"
