"""BERT's block (Devlin et al. 2019)."""

from typing import Any

from torch import nn
from torch.utils.hooks import RemovableHandle
from transformers.models.bert.modeling_bert import BertLayer

from rankcollapse.architectures.parts import Anatomy, Map, Parts, Take


def _parts(block: BertLayer) -> Parts:
    attention = block.attention.self

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
        output=Map.of(block.attention.output.dense),
        attention_norm=block.attention.output.LayerNorm,
        inner=block.intermediate.dense,
        outer=block.output.dense,
        mlp_norm=block.output.LayerNorm,
        watch=watch,
    )


ANATOMY = Anatomy(parts=_parts, activation=lambda config: config.hidden_act, needs_eager=True)
