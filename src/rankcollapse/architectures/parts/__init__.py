"""The linear maps of a block, and where its attention, scales and gates can be seen.

Like the other modules of `architectures`, these touch the internals of `transformers`; they change
nothing. To add an architecture, write a module named after its `config.model_type`.

Shapes: B sequences, T tokens, D features, H heads, d features of a head.
"""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from rankcollapse.architectures import architecture_of

Take = Callable[[Tensor], None]


@dataclass(frozen=True)
class Map:
    """x W^T + b, as `torch.nn.functional.linear` takes it: W [out, in], b [out] or None."""

    weight: Tensor
    bias: Tensor | None

    @classmethod
    def of(cls, module: nn.Linear) -> "Map":
        """Return what a module computes; no gradient reaches its parameters."""
        return cls(module.weight.detach(), None if module.bias is None else module.bias.detach())


@dataclass(frozen=True)
class Parts:
    """One block: norm(x + attention(x)), then norm(y + outer(activation(inner(y)))).

    Attributes:
        heads: H.
        query: D to H d; its bias is what XLNet adds to the queries of the content scores.
        key: D to H d.
        value: D to H d.
        output: H d to D.
        attention_norm: the attention sub-layer's.
        inner: the MLP's first map, a module, so that its output can be seen.
        outer: the MLP's second map.
        mlp_norm: the MLP's.
        watch: gives the attention probabilities [B, H, T, T] of each call to a function.
    """

    heads: int
    query: Map
    key: Map
    value: Map
    output: Map
    attention_norm: nn.LayerNorm
    inner: nn.Linear
    outer: nn.Linear
    mlp_norm: nn.LayerNorm
    watch: Callable[[Take], RemovableHandle]

    def by_head(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return W_Q, W_K, W_V, each [H, D, d], and W_O [H, d, D]: a head gives x W_V W_O."""
        weights = (self.query.weight, self.key.weight, self.value.weight, self.output.weight.mT)
        query, key, value, output = (
            weight.reshape(self.heads, -1, weight.shape[-1]) for weight in weights
        )
        return query.mT, key.mT, value.mT, output


@dataclass(frozen=True)
class Anatomy:
    """What is common to the blocks of an architecture.

    Attributes:
        parts: those of a block.
        activation: the name that a config gives to the MLP's activation.
        needs_eager: whether probabilities can be seen with "eager" attention only.
    """

    parts: Callable[[Any], Parts]
    activation: Callable[[Any], object]
    needs_eager: bool


def watching(
    module: nn.Module, pick: Callable[[Any], Tensor | None]
) -> Callable[[Take], RemovableHandle]:
    """Return a `Parts.watch` that picks the probabilities from what a module returns, if any."""

    def watch(take: Take) -> RemovableHandle:
        def seen(_module: nn.Module, _args: Any, output: Any) -> None:  # noqa: ANN401
            if (found := pick(output)) is not None:
                take(found)

        handle: RemovableHandle = module.register_forward_hook(seen)
        return handle

    return watch


def anatomy_of(model_type: str) -> Anatomy:
    """Return the anatomy of the architecture with this `config.model_type`.

    Raises:
        ValueError: the architecture is not known; lists those that are.
    """
    architecture_of(model_type)
    anatomy: Anatomy = importlib.import_module(f"{__name__}.{model_type}").ANATOMY
    return anatomy
