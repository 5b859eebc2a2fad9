"""The tables of one checkpoint's decomposition by path length."""

import math

import pandas as pd
from torch import Tensor

from rankcollapse.decomposition import BATCH, decompose
from rankcollapse.path_measures import by_head, by_source, measure
from rankcollapse.path_tables import (
    DECOMPOSITION_COLUMNS,
    HEAD_COLUMNS,
    LEFT_OUT_COLUMNS,
    SOURCE_COLUMNS,
)
from rankcollapse.progress import steps
from rankcollapse.sentences import Sentences, similarity_errors
from rankcollapse.subjects import Subject

VARIANTS = ("transformer", "san_skip")


def decomposition(of: Subject, *, sentences: Sentences | None = None) -> dict[str, pd.DataFrame]:
    """Decompose a checkpoint's states by path length.

    Args:
        of: the checkpoint.
        sentences: pairs of them, whose similarities are measured without each length, in the
            transformer.

    Returns:
        "decomposition" and "mlp_source" (`DECOMPOSITION_COLUMNS`; the latter with each MLP's output
        as a source of its own, last layer only), "left_out" (`LEFT_OUT_COLUMNS`) and "sources"
        (`SOURCE_COLUMNS`, of the first `BATCH` sequences).
    """
    found: dict[str, list[pd.DataFrame]] = {"decomposition": [], "left_out": [], "sources": []}
    label = f"decomposing {of.named['checkpoint']}"
    for (variant,) in steps([(variant,) for variant in VARIANTS], label):
        by_length, left_out = measure(decompose(of.model, variant=variant, input_ids=of.ids))
        left_out["similarity_error"] = math.nan
        if variant == "transformer" and sentences is not None:
            left_out["similarity_error"] = _similarity_errors(of, *sentences)
        few = decompose(of.model, variant=variant, input_ids=of.ids[:BATCH])
        tables = {"decomposition": by_length, "left_out": left_out, "sources": by_source(few)}
        for name, table in tables.items():
            found[name].append(table.assign(variant=variant))
    by_length, _ = measure(decompose(of.model, mlp="source", input_ids=of.ids))
    last = by_length[by_length["layer"] == by_length["layer"].max()]
    found["mlp_source"] = [last.assign(variant="transformer")]
    columns = {
        "decomposition": DECOMPOSITION_COLUMNS,
        "mlp_source": DECOMPOSITION_COLUMNS,
        "left_out": LEFT_OUT_COLUMNS,
        "sources": SOURCE_COLUMNS,
    }
    return {
        name: pd.concat(tables, ignore_index=True).assign(**of.named)[columns[name]]
        for name, tables in found.items()
    }


def _similarity_errors(of: Subject, ids: Tensor, mask: Tensor) -> list[float]:
    found = decompose(of.model, input_ids=ids, attention_mask=mask)
    errors: list[float] = similarity_errors(found).tolist()
    return errors


def heads(of: Subject) -> pd.DataFrame:
    """Say which heads of a transformer carry the paths of each length, `HEAD_COLUMNS`."""
    table = by_head(decompose(of.model, input_ids=of.ids))
    return table.assign(variant="transformer", **of.named)[HEAD_COLUMNS]
