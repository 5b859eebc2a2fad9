"""ALBERT's block (Lan et al. 2020)."""

from typing import Any

from torch import nn
from torch.utils.hooks import RemovableHandle
from transformers.models.albert.modeling_albert import AlbertLayer

from rankcollapse.architectures.parts import Anatomy, Map, Parts, Take


def _parts(block: AlbertLayer) -> Parts:
    attention = block.attention

    def watch(take: Take) -> RemovableHandle:
        def seen(_module: nn.Module, _args: Any, output: Any) -> None:  # noqa: ANN401
            take(output[1])

        handle: RemovableHandle = attention.register_forward_hook(seen)
        return handle

    return Parts(
        heads=attention.num_attention_heads,
        query=Map.of(attention.query),
        key=Map.of(attention.key),
        value=Map.of(attention.value),
        output=Map.of(attention.dense),
        attention_norm=attention.LayerNorm,
        inner=block.ffn,
        outer=block.ffn_output,
        mlp_norm=block.full_layer_layer_norm,
        watch=watch,
    )


ANATOMY = Anatomy(parts=_parts, activation=lambda config: config.hidden_act, needs_eager=True)
