"""Chained attention of one checkpoint: from its forward passes to the table of pairs.

Shapes: L layers, b sequences in one pass, H heads, T tokens.
"""

import pandas as pd
import torch
from torch import Tensor

from rankcollapse.chained import chained
from rankcollapse.chained_tables import LAYERS, PUBLISHED_CHECKPOINT
from rankcollapse.progress import steps
from rankcollapse.subjects import Subject
from rankcollapse.trace import trace

BATCH = 4
FEWER = 4  # by which the pairs of the rule "first" are divided


def chained_study(of: Subject, *, pairs: int) -> pd.DataFrame:
    """Measure products of attention along random paths.

    Where there is something published to compare with, a quarter as many pairs pass the first
    layers, for the other rule of which layers a path passes.

    Args:
        of: the checkpoint, in any precision; the products are float64.
        pairs: of path and sequence.

    Returns:
        `chained_tables.CHAINED_COLUMNS`.
    """
    rules = LAYERS if of.named["checkpoint"] == PUBLISHED_CHECKPOINT else LAYERS[:1]
    attention = [_attention(of, ids) for ids in torch.split(of.ids, BATCH)]
    label = f"chaining the attention of {of.named['checkpoint']}"
    tables = []
    for (rule,) in steps([(rule,) for rule in rules], label):
        count = pairs if rule == LAYERS[0] else max(1, pairs // FEWER)
        sequences = len(of.ids)
        tables.append(chained(attention, sequences=sequences, pairs=count, rule=rule, **of.named))
    return pd.concat(tables, ignore_index=True)


def _attention(of: Subject, ids: Tensor) -> Tensor:
    """Return probabilities [L, b, H, T, T]."""
    seen = trace(of.model, {"input_ids": ids})
    return torch.stack([frozen.attention for frozen in seen.frozen])
