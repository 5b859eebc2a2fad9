"""What the package knows of each transformer architecture.

These modules are the only code that touches the internals of `transformers`. Each offers an
`Architecture`: where its blocks are, and how to take one piece out of a block. To add one, write
a module named after the model's `config.model_type` and list it in `KNOWN`.

A block is one attention sub-layer followed by one MLP sub-layer.
"""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from rankcollapse.architectures.edits import Edits

KNOWN = ("albert", "bert", "mpnet", "xlnet")

BlockEdit = Callable[[Any, Edits], None]


@dataclass(frozen=True)
class Architecture:
    """One architecture's blocks, and the edits that take a piece out of a block.

    Attributes:
        blocks: the blocks of a base model in the order of their application; a block whose
            weights are shared stands there once for each application.
        tokens_first: whether a block's states are [T, B, D] instead of [B, T, D].
        remove_attention_skip: the attention sub-layer gives LayerNorm(attention output).
        remove_mlp: the attention sub-layer's output is the block's output.
        remove_mlp_as_published: what the published code did instead, where that differs.
        remove_mlp_skip: the MLP sub-layer gives LayerNorm(MLP output).
    """

    blocks: Callable[[Any], list[nn.Module]]
    tokens_first: bool
    remove_attention_skip: BlockEdit
    remove_mlp: BlockEdit
    remove_mlp_as_published: BlockEdit | None
    remove_mlp_skip: BlockEdit

    def batch_first(self, states: Tensor) -> Tensor:
        """Return a block's states as [B, T, D]."""
        return states.transpose(0, 1) if self.tokens_first else states


def model_type_of(model: object) -> str:
    """Return what a model says its architecture is, or the name of its class."""
    return str(getattr(getattr(model, "config", None), "model_type", type(model).__name__))


def architecture_of(model_type: str) -> Architecture:
    """Return the architecture with this `config.model_type`.

    Raises:
        ValueError: the architecture is not known; lists those that are.
    """
    if model_type not in KNOWN:
        raise ValueError(
            f"model_type {model_type!r} is not known here: known are {', '.join(KNOWN)}; "
            "CONTRIBUTING.md says how to add one"
        )
    module = importlib.import_module(f"{__name__}.{model_type}")
    architecture: Architecture = module.ARCHITECTURE
    return architecture
