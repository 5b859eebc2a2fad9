"""Which attention heads carry the paths of each length, in words."""

import pandas as pd

from rankcollapse.figures.heads import table
from rankcollapse.report.findings import counted, listed, number, panel_name

HALF = 0.5
_LARGEST = 3


def sentences(heads: pd.DataFrame) -> list[tuple[str, list[str]]]:
    """Say of each model and length how few heads hold half of it, and which are the largest.

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
    largest = [
        f"layer {row.layer} head {row.head} ({number(float(str(row.share)), 2)})"
        for row in ordered.head(_LARGEST).itertuples()
    ]
    return (
        f"Length {length}: {halves(rows['share'])} of {counted(len(rows), 'head')} hold half of "
        f"the shares (of their magnitudes); the largest are {listed(largest)}."
    )
