"""Chained attention, in words: which published quartiles reproduce, and what gets through."""

from typing import Any

import pandas as pd

from rankcollapse.chained_tables import LAYERS
from rankcollapse.figures.panels import in_order, select
from rankcollapse.report.findings import counted, number, panel_name
from rankcollapse.verdicts import VERDICTS

RULES = {
    "any": "a path of depth k passes any k of the layers, each choice as likely",
    "first": "a path of depth k passes the first k layers",
}
_COMPARED = ("reproduced", "not reproduced")


def counts(verdicts: pd.DataFrame) -> list[str]:
    """Return how many published quartiles reproduce, a sentence for each rule of the layers.

    Args:
        verdicts: `chained_verdicts.COLUMNS`.
    """
    return [
        f"{RULES[rule].capitalize()}: {_counted(rows['verdict'])}."
        for rule in LAYERS
        if len(rows := select(verdicts, layers=rule))
    ]


def _counted(verdicts: "pd.Series[str]") -> str:
    inside, outside, below, absent = (int((verdicts == verdict).sum()) for verdict in VERDICTS)
    said = [
        f"of {counted(len(verdicts), 'published quartile')} {inside + outside} could be compared"
    ]
    if inside + outside:
        verbs = ("s" if inside == 1 else "", "does" if outside == 1 else "do")
        said.append(f"{inside} reproduce{verbs[0]}, {outside} {verbs[1]} not")
    if below:
        verb = "lies" if below == 1 else "lie"
        said.append(f"{below} {verb} below the precision floor of float32")
    if absent:
        said.append(f"{absent} {'was' if absent == 1 else 'were'} not measured")
    return "; ".join(said)


def section(tables: dict[str, pd.DataFrame]) -> dict[str, Any]:
    """Return the counts, the comparable quartiles and what gets through the products.

    Args:
        tables: "chained" and "chained_verdicts", as `path_inputs` has them.
    """
    verdicts = tables["chained_verdicts"]
    return {
        "counts": counts(verdicts),
        "quartiles": verdicts[verdicts["verdict"].isin(_COMPARED)],
        "certificates": certificates(tables["chained"]),
    }


def certificates(summary: pd.DataFrame) -> list[str]:
    """Say how much of a difference of two tokens gets through the products of each model.

    Args:
        summary: `chained_tables.SUMMARY_COLUMNS`.
    """
    rows = select(summary, layers="any", reading="as-published")
    rows = in_order(rows.sort_values("depth", kind="stable"))
    return [
        _certificate(
            panel_name(*map(str, model)),
            select(of_model, measure="dobrushin"),
            select(of_model, measure="distance"),
        )
        for model, of_model in rows.groupby(["checkpoint", "weights"], sort=False)
    ]


def _certificate(name: str, passing: pd.DataFrame, distance: pd.DataFrame) -> str:
    first, last = passing.iloc[0], passing.iloc[-1]
    return (
        f"{name} ({counted(int(last['pairs']), 'pair')} a depth): the median coefficient goes from "
        f"{_median(first)} at depth {first['depth']} to {_median(last)} at depth {last['depth']}, "
        f"the median distance to rank one from {_median(distance.iloc[0])} to "
        f"{_median(distance.iloc[-1])}."
    )


def _median(row: "pd.Series[Any]") -> str:
    floor = "" if row["median"] >= row["floor"] else ", below the floor"
    return f"{number(row['median'], 2)}{floor}"
