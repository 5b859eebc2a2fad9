"""XLNet's block (Yang et al. 2019); its parameters of attention are [D, H, d]."""

from torch import Tensor
from transformers.models.xlnet.modeling_xlnet import XLNetLayer

from rankcollapse.architectures.parts import Anatomy, Map, Parts, watching


def _to_heads(weight: Tensor, bias: Tensor | None = None) -> Map:
    return Map(weight.detach().flatten(1).T, None if bias is None else bias.detach().flatten())


def _parts(block: XLNetLayer) -> Parts:
    attention = block.rel_attn
    return Parts(
        heads=attention.n_head,
        query=_to_heads(attention.q, attention.r_w_bias),
        key=_to_heads(attention.k),
        value=_to_heads(attention.v),
        output=Map(attention.o.detach().flatten(1), None),
        attention_norm=attention.layer_norm,
        inner=block.ff.layer_1,
        outer=block.ff.layer_2,
        mlp_norm=block.ff.layer_norm,
        # The one dropout sees the probabilities [B, H, T, T], then the output [T, B, D].
        watch=watching(attention.dropout, lambda x: x if x.dim() == 4 else None),
    )


ANATOMY = Anatomy(parts=_parts, activation=lambda config: config.ff_activation, needs_eager=False)
