"""MPNet's block (Song et al. 2020)."""

from typing import Any

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from transformers.models.mpnet.modeling_mpnet import MPNetLayer

from rankcollapse.architectures.parts import Anatomy, Map, Parts, Take


def _parts(block: MPNetLayer) -> Parts:
    attention = block.attention.attn

    def watch(take: Take) -> RemovableHandle:
        def seen(_module: nn.Module, _args: Any, output: Tensor) -> None:  # noqa: ANN401
            take(output)

        handle: RemovableHandle = attention.dropout.register_forward_hook(seen)
        return handle

    return Parts(
        heads=attention.num_attention_heads,
        query=Map.of(attention.q),
        key=Map.of(attention.k),
        value=Map.of(attention.v),
        output=Map.of(attention.o),
        attention_norm=block.attention.LayerNorm,
        inner=block.intermediate.dense,
        outer=block.output.dense,
        mlp_norm=block.output.LayerNorm,
        watch=watch,
    )


ANATOMY = Anatomy(parts=_parts, activation=lambda config: config.hidden_act, needs_eager=False)
