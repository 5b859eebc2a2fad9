"""The relative position terms of the architectures that have one: where they are in the scores.

Shapes: B sequences, T tokens, D features, H heads, K = D / H.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float64
from torch import Tensor, nn

from rankcollapse.architectures import model_type_of
from rankcollapse.vocabulary import require_known

Attention = Float64[Tensor, "sequence head token token"]


@dataclass(frozen=True)
class RelativeTerm:
    """Where one architecture's relative term is.

    Attributes:
        sources: of a base model, each module whose method gives the term.
        method: its name.
        attentions: of a base model, each layer's module that mixes the tokens.
        token_axis: of the states that this module gets.
        probabilities: from what it returns with `output_attentions=True`, [B, H, T, T].
        value_maps: of such a block, W_h as [H, D, D].
    """

    sources: Callable[[Any], list[nn.Module]]
    method: str
    attentions: Callable[[Any], list[nn.Module]]
    token_axis: int
    probabilities: Callable[[Any], Attention]
    value_maps: Callable[[Any], Tensor]


def _mpnet_value_maps(attention: Any) -> Tensor:  # noqa: ANN401
    heads = attention.num_attention_heads
    value = attention.v.weight.unflatten(0, (heads, -1))  # [H, K, D]
    output = attention.o.weight.T.unflatten(0, (heads, -1))  # [H, K, D]
    maps: Tensor = value.mT @ output
    return maps


def _xlnet_value_maps(attention: Any) -> Tensor:  # noqa: ANN401
    return torch.einsum("dhk,ehk->hde", attention.v, attention.o)


TERMS = {
    "mpnet": RelativeTerm(
        sources=lambda model: [model.encoder],
        method="compute_position_bias",
        attentions=lambda model: [block.attention.attn for block in model.encoder.layer],
        token_axis=1,
        probabilities=lambda output: output[1],
        value_maps=_mpnet_value_maps,
    ),
    "xlnet": RelativeTerm(
        sources=lambda model: [block.rel_attn for block in model.layer],
        method="rel_shift_bnij",
        attentions=lambda model: [block.rel_attn for block in model.layer],
        token_axis=0,
        probabilities=lambda output: output[-1].permute(2, 3, 0, 1),
        value_maps=_xlnet_value_maps,
    ),
}


def relative_term_of(model: object) -> RelativeTerm:
    """Return where a model's relative term is.

    Raises:
        ValueError: its architecture has none that is known here; lists those that have.
    """
    model_type = model_type_of(model)
    require_known("model_type with relative positions", model_type, TERMS)
    return TERMS[model_type]
