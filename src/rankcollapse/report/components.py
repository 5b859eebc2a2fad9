"""What stops or slows the collapse, in words: the claims on small networks, piece by piece."""

from typing import Any

import pandas as pd

from rankcollapse.relative_tables import SOURCE
from rankcollapse.report.findings import counted, listed

NOTHING = "No claim on what stops the collapse was judged in this profile."
EFFECTS = {
    "slow": "slows it",
    "end": "ends the cubic rate",
    "leave": "keeps the rate",
    "stop": "stops it",
}
VERDICTS = ("supported", "opposite", "not supported", "one seed", "not measured")
_CONDITION = r"^(?P<network>.*?): (?P<measure>.*)$"
_CLAIM = r"^(?P<piece>.+?) (?P<verb>slow|end|leave|stop)s? (?:it|the cubic rate|the rate)$"


def of_components(claims: pd.DataFrame) -> pd.DataFrame:
    """Return the claims on small networks: those on relative positions of models stand elsewhere.

    Args:
        claims: `component_claims.COLUMNS`.

    Returns:
        The same with `network` and `measure`, the two parts of the condition.
    """
    rows = claims[claims["source"] != SOURCE]
    return rows.join(rows["condition"].astype(str).str.extract(_CONDITION))


def section(tables: dict[str, pd.DataFrame]) -> dict[str, Any]:
    """Return the answers by piece, by claim, and all claims.

    Args:
        tables: "component_claims", as `path_inputs` has it.
    """
    rows = of_components(tables["component_claims"])
    return {"pieces": pieces(rows), "answers": answers(rows), "claims": rows}


def pieces(claims: pd.DataFrame) -> list[tuple[str, list[str]]]:
    """Return of each piece in how many networks each of `EFFECTS` is supported: "2 of 3".

    Args:
        claims: as `of_components`; means over the factorial and what fits no effect are left out.
    """
    named = claims.join(claims["claim"].astype(str).str.extract(_CLAIM)).dropna(subset="piece")
    return [
        (str(piece), [_share(rows[rows["verb"] == verb]["verdict"]) for verb in EFFECTS])
        for piece, rows in named.groupby("piece", sort=False)
    ]


def _share(verdicts: "pd.Series[str]") -> str:
    return f"{int((verdicts == 'supported').sum())} of {len(verdicts)}" if len(verdicts) else "–"


def answers(claims: pd.DataFrame) -> list[str]:
    """Return a sentence for each claim: in which networks it came out how.

    Args:
        claims: as `of_components`.
    """
    return [
        f"{_capital(str(claim))} ({source}): {_outcomes(rows)}."
        for (claim, source), rows in claims.groupby(["claim", "source"], sort=False)
    ]


def _outcomes(rows: pd.DataFrame) -> str:
    said = []
    for verdict in VERDICTS:
        networks = rows.loc[rows["verdict"] == verdict, "network"]
        if len(networks) == len(rows) > 1:
            said.append(f"{verdict} in all of {counted(len(rows), 'network')}: {_list(networks)}")
        elif len(networks):
            said.append(f"{verdict} in {_list(networks)}")
    return "; ".join(said)


def _list(networks: "pd.Series[str]") -> str:
    return listed(f"“{network.replace('_', ' ')}”" for network in networks)


def _capital(words: str) -> str:
    return words[:1].upper() + words[1:]
