"""The relative position terms of the architectures that have one: where they are in the scores.

Shapes: B sequences, T tokens, H heads.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

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
    """

    sources: Callable[[Any], list[nn.Module]]
    method: str
    attentions: Callable[[Any], list[nn.Module]]
    token_axis: int
    probabilities: Callable[[Any], Attention]


TERMS = {
    "mpnet": RelativeTerm(
        sources=lambda model: [model.encoder],
        method="compute_position_bias",
        attentions=lambda model: [block.attention.attn for block in model.encoder.layer],
        token_axis=1,
        probabilities=lambda output: output[1],
    ),
    "xlnet": RelativeTerm(
        sources=lambda model: [block.rel_attn for block in model.layer],
        method="rel_shift_bnij",
        attentions=lambda model: [block.rel_attn for block in model.layer],
        token_axis=0,
        probabilities=lambda output: output[-1].permute(2, 3, 0, 1),
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
