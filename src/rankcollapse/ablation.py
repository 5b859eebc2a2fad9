"""Take the skip connections and the MLPs out of a transformer, and put them back.

The four networks of the paper's figure 2 differ in two pieces of each block: the attention
sub-layer's skip connection and the MLP sub-layer. Every LayerNorm that belongs to a piece that
stays, stays.

Source: Dong et al. 2021, section 3 and figure 2.
"""

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rankcollapse.architectures import Architecture, architecture_of, model_type_of
from rankcollapse.architectures.edits import Edits
from rankcollapse.vocabulary import READINGS, VARIANTS, require_known

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class Ablation:
    """Which pieces of each block stay."""

    attention_skip: bool
    mlp: bool


ABLATIONS = {
    "san": Ablation(attention_skip=False, mlp=False),
    "san_mlp": Ablation(attention_skip=False, mlp=True),
    "san_skip": Ablation(attention_skip=True, mlp=False),
    "transformer": Ablation(attention_skip=True, mlp=True),
}

_ablated: "weakref.WeakSet[nn.Module]" = weakref.WeakSet()


@contextmanager
def ablate(
    model: "PreTrainedModel", variant: str, *, reading: str = "as-published"
) -> Iterator["PreTrainedModel"]:
    """Ablate every block of `model` while the context lasts.

    `as-published` is what the published code did, which drew the figures: "SAN + MLP" keeps the
    MLP's own skip, and ALBERT without MLP keeps the activation, its skip and the last LayerNorm.
    `as-described` is what the paper's text says: no skip anywhere in "SAN + MLP", and a block
    without MLP ends with its attention sub-layer.

    Args:
        model: a model of a known architecture, with or without a head.
        variant: "san", "san_mlp", "san_skip" or "transformer" (nothing is removed).
        reading: "as-published" or "as-described".

    Yields:
        The same model; afterwards, also after an exception, it is what it was.

    Raises:
        ValueError: the variant, the reading or the architecture is not known.
        RuntimeError: the model is already ablated, or a change had no effect on the forward
            passes that were made.
    """
    require_known("variant", variant, VARIANTS)
    require_known("reading", reading, READINGS)
    architecture = architecture_of(model_type_of(model))
    base = model.base_model
    if base in _ablated:
        raise RuntimeError("this model is already ablated: leave that ablation before the next")
    edits = Edits()
    _ablated.add(base)
    try:
        blocks = list(dict.fromkeys(architecture.blocks(base)))
        _edit(blocks, architecture, ABLATIONS[variant], reading, edits)
        passes = edits.count_calls(base)
        yield model
        if passes() and 0 in edits.fired:
            raise RuntimeError(
                f"{edits.fired.count(0)} of {len(edits.fired)} changes for {variant!r} had no "
                f"effect on a forward pass of {type(base).__name__}: its result is not {variant}"
            )
    finally:
        edits.undo()
        _ablated.discard(base)


def _edit(
    blocks: list["nn.Module"],
    architecture: Architecture,
    ablation: Ablation,
    reading: str,
    edits: Edits,
) -> None:
    """Edit each block, and check that each got the same number of edits."""
    counts = []
    for block in blocks:
        before = len(edits.fired)
        if not ablation.attention_skip:
            architecture.remove_attention_skip(block, edits)
        if not ablation.mlp:
            published = architecture.remove_mlp_as_published
            remove = published if published and reading == "as-published" else None
            (remove or architecture.remove_mlp)(block, edits)
        elif not ablation.attention_skip and reading == "as-described":
            architecture.remove_mlp_skip(block, edits)
        counts.append(len(edits.fired) - before)
    if len(set(counts)) > 1:
        raise RuntimeError(f"the blocks were changed in {counts} places, expected equal numbers")


def readings_differ(model_type: str, variant: str) -> bool:
    """Return whether the two readings of `variant` are different networks.

    Raises:
        ValueError: the variant or the architecture is not known.
    """
    require_known("variant", variant, VARIANTS)
    if variant == "san_mlp":
        return True
    published = architecture_of(model_type).remove_mlp_as_published
    return published is not None and not ABLATIONS[variant].mlp
