"""The tables of one checkpoint's decomposition by path length."""

import pandas as pd

from rankcollapse.decomposition import BATCH, decompose
from rankcollapse.path_measures import by_head, by_source, measure
from rankcollapse.path_tables import (
    DECOMPOSITION_COLUMNS,
    HEAD_COLUMNS,
    LEFT_OUT_COLUMNS,
    SOURCE_COLUMNS,
)
from rankcollapse.progress import steps
from rankcollapse.subjects import Subject

VARIANTS = ("transformer", "san_skip")


def decomposition(of: Subject, *, heads: bool = False) -> dict[str, pd.DataFrame]:
    """Decompose a checkpoint's states by path length.

    Args:
        of: the checkpoint.
        heads: whether to say which heads carry each length: a sweep for each head.

    Returns:
        "decomposition" and "mlp_source" (`DECOMPOSITION_COLUMNS`; the latter with each MLP's output
        as a source of its own, last layer only), "left_out" (`LEFT_OUT_COLUMNS`) and "sources"
        (`SOURCE_COLUMNS`, of the first `BATCH` sequences); if asked for, "heads" (`HEAD_COLUMNS`,
        of the transformer and as few sequences).
    """
    found: dict[str, list[pd.DataFrame]] = {"decomposition": [], "left_out": [], "sources": []}
    label = f"decomposing {of.named['checkpoint']}"
    for (variant,) in steps([(variant,) for variant in VARIANTS], label):
        by_length, left_out = measure(decompose(of.model, variant=variant, input_ids=of.ids))
        few = decompose(of.model, variant=variant, input_ids=of.ids[:BATCH])
        tables = {"decomposition": by_length, "left_out": left_out, "sources": by_source(few)}
        for name, table in tables.items():
            found[name].append(table.assign(variant=variant))
    by_length, _ = measure(decompose(of.model, mlp="source", input_ids=of.ids))
    last = by_length[by_length["layer"] == by_length["layer"].max()]
    found["mlp_source"] = [last.assign(variant="transformer")]
    if heads:
        few = decompose(of.model, input_ids=of.ids[:BATCH])
        found["heads"] = [by_head(few).assign(variant="transformer")]
    columns = {
        "heads": HEAD_COLUMNS,
        "decomposition": DECOMPOSITION_COLUMNS,
        "mlp_source": DECOMPOSITION_COLUMNS,
        "left_out": LEFT_OUT_COLUMNS,
        "sources": SOURCE_COLUMNS,
    }
    return {
        name: pd.concat(tables, ignore_index=True).assign(**of.named)[columns[name]]
        for name, tables in found.items()
    }
