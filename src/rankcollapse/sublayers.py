"""A model's attention sub-layers as the theory sees them: heads, what they give, how far apart.

Shapes: B sequences, T tokens, D features, H heads, k width of a head.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float64
from torch import Tensor, nn

from rankcollapse.architectures import architecture_of, model_type_of
from rankcollapse.architectures.parts import Parts, anatomy_of
from rankcollapse.theory import Head, diameter

if TYPE_CHECKING:
    from transformers import PreTrainedModel

States = Float64[Tensor, "batch token feature"]


def heads_of(part: Parts, attention: Tensor | None = None) -> list[Head]:
    """Return the heads of a block.

    Args:
        part: the block's linear maps.
        attention: probabilities [B, H, T, T], if the scores have a relative position term.
    """
    query, key, value, output = part.by_head()
    bias = part.query.bias
    biases = [None] * part.heads if bias is None else bias.chunk(part.heads)
    seen = [None] * part.heads if attention is None else attention.unbind(1)
    maps = zip(query, key, value @ output, biases, seen, strict=True)
    return [Head(q, k, w, b, probabilities=p) for q, k, w, b, p in maps]


def spectral_norms(part: Parts) -> Float64[Tensor, " head"]:
    """Return |W_V W_O|_2 of each head, from triangular factors [H, k, k]."""
    *_, value, output = part.by_head()
    inner, outer = (torch.linalg.qr(one).R for one in (value, output.mT))
    norms: Tensor = torch.linalg.matrix_norm(inner @ outer.mT, 2)
    return norms


def contraction_log10(part: Parts, attention: Tensor) -> Float64[Tensor, " batch"]:
    """Return log10 sum_h tau_h |W_h|_2, [B]: Dobrushin's bound in the 2-norm of tokens.

    Args:
        part: the block's linear maps.
        attention: probabilities [B, H, T, T].
    """
    tau = diameter(attention) / 2  # [B, H]
    return (tau * spectral_norms(part)).sum(-1).log10()


def distance_log10(x: States) -> Float64[Tensor, " batch"]:
    """Return log10 of the largest 2-norm distance of two tokens, [B]."""
    exact = "donot_use_mm_for_euclid_dist"
    return torch.cdist(x, x, compute_mode=exact).amax((-2, -1)).log10()


@contextmanager
def attention_sums(model: "PreTrainedModel") -> Iterator[list[Tensor]]:
    """Yield what the norm after each attention sub-layer will have got, in order, [B, T, D].

    That is the attention's output, and in front of a skip the sum with its input.
    """
    architecture = architecture_of(model_type_of(model))
    anatomy = anatomy_of(model_type_of(model))
    sums: list[Tensor] = []

    # After the norm, not before it: by then the ablation has given it its input.
    def keep(_norm: nn.Module, args: tuple[Tensor, ...], _output: Tensor) -> None:
        sums.append(architecture.batch_first(args[0]))

    blocks = dict.fromkeys(architecture.blocks(model.base_model))
    norms = [anatomy.parts(block).attention_norm for block in blocks]
    handles = [norm.register_forward_hook(keep) for norm in norms]
    try:
        yield sums
    finally:
        for handle in handles:
            handle.remove()
