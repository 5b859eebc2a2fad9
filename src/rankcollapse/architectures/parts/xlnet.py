"""XLNet's block (Yang et al. 2019); its parameters of attention are [D, H, d]."""

from typing import Any

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from transformers.models.xlnet.modeling_xlnet import XLNetLayer

from rankcollapse.architectures.parts import Anatomy, Map, Parts, Take


def _to_heads(weight: Tensor, bias: Tensor | None = None) -> Map:
    return Map(weight.flatten(1).T, None if bias is None else bias.flatten())


def _parts(block: XLNetLayer) -> Parts:
    attention = block.rel_attn

    def watch(take: Take) -> RemovableHandle:
        def seen(_module: nn.Module, _args: Any, output: Tensor) -> None:  # noqa: ANN401
            # The one dropout sees the probabilities [B, H, T, T], then the output [T, B, D].
            if output.dim() == 4:
                take(output)

        handle: RemovableHandle = attention.dropout.register_forward_hook(seen)
        return handle

    return Parts(
        heads=attention.n_head,
        query=_to_heads(attention.q, attention.r_w_bias),
        key=_to_heads(attention.k),
        value=_to_heads(attention.v),
        output=Map(attention.o.flatten(1), None),
        attention_norm=attention.layer_norm,
        inner=block.ff.layer_1,
        outer=block.ff.layer_2,
        mlp_norm=block.ff.layer_norm,
        watch=watch,
    )


ANATOMY = Anatomy(parts=_parts, activation=lambda config: config.ff_activation, needs_eager=False)
