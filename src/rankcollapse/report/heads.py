"""Which attention heads carry the paths of each length, in words."""

import pandas as pd

from rankcollapse.figures.heads import table
from rankcollapse.report.findings import counted, listed, number, panel_name

HALF = 0.5
_STRONGEST = 3


def sentences(heads: pd.DataFrame) -> list[tuple[str, list[str]]]:
    """Say of each model and length how few heads carry half of it, and which are the strongest.

    Args:
        heads: `path_tables.HEAD_COLUMNS`.
    """
    rows = table(heads)
    return [
        (
            panel_name(str(checkpoint), str(weights)),
            [_sentence(int(str(length)), of) for length, of in model.groupby("length")],
        )
        for (checkpoint, weights), model in rows.groupby(["checkpoint", "weights"], sort=False)
    ]


def halves(shares: "pd.Series[float]") -> int:
    """Return the fewest heads that hold half of the sum of the shares' magnitudes."""
    sizes = shares.abs().sort_values(ascending=False, kind="stable")
    before = sizes.cumsum().shift(fill_value=0.0)
    return int((before < HALF * sizes.sum()).sum())


def _sentence(length: int, rows: pd.DataFrame) -> str:
    ordered = rows.sort_values("share", ascending=False, kind="stable")
    strongest = [
        f"layer {row.layer} head {row.head} ({number(float(str(row.share)), 2)})"
        for row in ordered.head(_STRONGEST).itertuples()
    ]
    return (
        f"length {length}: half of it passes {counted(halves(rows['share']), 'head')} of "
        f"{len(rows)}, the strongest {listed(strongest)}."
    )
