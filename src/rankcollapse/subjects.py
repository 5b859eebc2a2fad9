"""A checkpoint whose paths are studied, and what it reads.

Shapes: B sequences, T tokens.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rankcollapse.checkpoints.load import load_model
from rankcollapse.checkpoints.manifest import read_manifest
from rankcollapse.evaluate import Text, read_batch

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class Subject:
    """A checkpoint, and what it reads.

    Attributes:
        model: in evaluation mode.
        ids: [B, T].
        named: the columns that name it in tables: checkpoint, weights, seed.
    """

    model: "PreTrainedModel"
    ids: Tensor
    named: dict[str, Any]


def subject(
    checkpoint: Path, tokenizer: Path, text: Text, *, precision: str, sequences: int, tokens: int
) -> Subject:
    """Load a checkpoint and read a text for it.

    Raises:
        RankCollapseError: a file is missing, broken or too short.
    """
    batch = read_batch(checkpoint, tokenizer, text, sequences=sequences, tokens=tokens)
    manifest = read_manifest(checkpoint)
    named = {
        "checkpoint": manifest.name,
        "weights": manifest.weights,
        "seed": getattr(manifest.source, "seed", None),
    }
    model = load_model(checkpoint, precision=precision)
    return Subject(model, torch.from_numpy(batch.ids), named)
