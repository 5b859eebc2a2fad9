"""The claims on what stops or slows the collapse: of small networks, and of relative positions."""

from pathlib import Path

import pandas as pd

from rankcollapse import component_claims, relative_tables
from rankcollapse.components import COLUMNS
from rankcollapse.path_tables import read_rows
from rankcollapse.tables import read_csv, write_csv


def write_component_claims(components: Path, relative: Path, output: Path) -> pd.DataFrame:
    """Judge the claims and write them.

    Args:
        components: the table of small networks, `components.COLUMNS`.
        relative: the table of models with their relative term scaled, `RELATIVE_COLUMNS`.
        output: the CSV to write.

    Returns:
        claim, source, condition, effect, low, high, verdict.

    Raises:
        TableError: a table is missing or damaged.
    """
    tables = [
        component_claims.claims(read_rows(components, COLUMNS)),
        relative_tables.judge(read_csv(relative, relative_tables.RELATIVE_COLUMNS)),
    ]
    claims = pd.concat(tables, ignore_index=True)[component_claims.COLUMNS]
    write_csv(output, claims)
    return claims
