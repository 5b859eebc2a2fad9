"""One attention block of many seeds, with its gradient written by hand.

torch's own operations cost several times the arithmetic on the short sequences of the trained
experiments: softmax over rows of ten alone ten times. A test holds both passes against torch.

Shapes: S seeds, N tokens of all examples one after the other, B examples of T tokens in a group,
D features, A heads, d = D / A, n = S B A attention matrices of a group.
"""

from collections.abc import Sequence
from itertools import groupby
from math import sqrt
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rankcollapse.products import batched

EPS = 1e-12  # of every layer normalisation
_SHORT = 32  # rows below which torch's softmax is slow


class Group(NamedTuple):
    """Neighbouring examples of one length: first token, how many examples, tokens of each."""

    start: int
    examples: int
    tokens: int

    @property
    def part(self) -> slice:
        """Return which of the N tokens are those of the group."""
        return slice(self.start, self.start + self.examples * self.tokens)


class Masks(NamedTuple):
    """What dropout multiplies: attention weights of each group [n, T, T], output [S, N, D]."""

    attention: Sequence[Tensor]
    output: Tensor


def groups_of(lengths: Sequence[int]) -> tuple[Group, ...]:
    """Return the groups of neighbouring examples of equal length."""
    groups, start = [], 0
    for tokens, run in groupby(lengths):
        group = Group(start, len(list(run)), tokens)
        groups.append(group)
        start = group.part.stop
    return tuple(groups)


def attention_block(
    x: Tensor,
    parameters: Sequence[Tensor],
    heads: int,
    groups: Sequence[Group],
    *,
    residual: bool,
    masks: Masks | None,
) -> Tensor:
    """Return norm(attention(x) + x), or norm(attention(x)) without the skip connection.

    Args:
        x: [S, N, D].
        parameters: weight and bias of query, key and value [S, D, 3 D] and [S, 3 D]; weight and
            bias of the output [S, D, D] and [S, D]; gain and bias of the normalisation [S, D].
        heads: A.
        groups: where the examples are.
        residual: whether x is added.
        masks: of dropout.
    """
    y: Tensor = AttentionBlock.apply(  # type: ignore[no-untyped-call]
        x, *parameters, heads, groups, residual, masks
    )
    return y


class AttentionBlock(torch.autograd.Function):
    """`attention_block`, for autograd."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        x: Tensor,
        qkv_weight: Tensor,
        qkv_bias: Tensor,
        out_weight: Tensor,
        out_bias: Tensor,
        gain: Tensor,
        bias: Tensor,
        heads: int,
        groups: Sequence[Group],
        residual: bool,
        masks: Masks | None,
    ) -> Tensor:
        """Return [S, N, D]."""
        qkv = batched(x, qkv_weight, qkv_bias)
        context = torch.empty_like(x)
        attention = []
        for index, group in enumerate(groups):
            query, key, value = split_heads(qkv[:, group.part], group, heads, parts=3)
            weights = softmax(torch.bmm(query, key.mT).mul_(1 / sqrt(query.shape[-1])))
            dropped = weights if masks is None else weights * masks.attention[index]
            context[:, group.part] = join_heads(torch.bmm(dropped, value)[None], group, heads)
            attention += [query, key, value, weights]
        y = batched(context, out_weight, out_bias)
        if masks is not None:
            y *= masks.output
        if residual:
            y += x
        ones, zeros = torch.ones_like(y[0, 0]), torch.zeros_like(y[0, 0])
        normal, mean, deviation = torch.native_layer_norm(y, y.shape[-1:], ones, zeros, EPS)
        ctx.save_for_backward(
            x, qkv_weight, out_weight, gain, context, y, normal, mean, deviation, *attention
        )
        ctx.heads, ctx.groups, ctx.residual, ctx.masks = heads, groups, residual, masks
        return torch.addcmul(bias.unsqueeze(1), normal, gain.unsqueeze(1))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        """Return the gradients of x and of the six parameters."""
        (gradient,) = gradients
        saved = ctx.saved_tensors
        x, qkv_weight, out_weight, gain, context, y, normal, mean, deviation, *attention = saved
        gain_gradient, bias_gradient = (gradient * normal).sum(1), gradient.sum(1)
        ones, zeros = torch.ones_like(y[0, 0]), torch.zeros_like(y[0, 0])
        before = torch.ops.aten.native_layer_norm_backward(
            gradient * gain.unsqueeze(1),
            y,
            y.shape[-1:],
            mean,
            deviation,
            ones,
            zeros,
            [True, False, False],
        )[0]
        outgoing = before if ctx.masks is None else before * ctx.masks.output
        through = batched(outgoing, out_weight.mT)
        qkv_gradient = torch.empty((*x.shape[:2], 3 * x.shape[2]), dtype=x.dtype, device=x.device)
        for index, group in enumerate(ctx.groups):
            mask = None if ctx.masks is None else ctx.masks.attention[index]
            parts = attention[4 * index : 4 * index + 4]
            (inner,) = split_heads(through[:, group.part], group, ctx.heads, parts=1)
            joined = join_heads(_attention_gradient(inner, parts, mask), group, ctx.heads)
            qkv_gradient[:, group.part] = joined
        incoming = batched(qkv_gradient, qkv_weight.mT)
        if ctx.residual:
            incoming += before
        return (
            incoming,
            batched(x.mT, qkv_gradient),
            qkv_gradient.sum(1),
            batched(context.mT, outgoing),
            outgoing.sum(1),
            gain_gradient,
            bias_gradient,
            *(None, None, None, None),
        )


def _attention_gradient(gradient: Tensor, saved: Sequence[Tensor], mask: Tensor | None) -> Tensor:
    """Return the gradients of query, key and value, [3, n, T, d]."""
    query, key, value, weights = saved
    dropped = weights if mask is None else weights * mask
    of_weights = torch.bmm(gradient, value.mT)
    if mask is not None:
        of_weights *= mask
    of_weights *= weights
    of_scores = of_weights.addcmul_(weights, of_weights.sum(-1, keepdim=True), value=-1)
    of_scores *= 1 / sqrt(query.shape[-1])
    result = torch.empty((3, *query.shape), dtype=query.dtype, device=query.device)
    torch.bmm(of_scores, key, out=result[0])
    torch.bmm(of_scores.mT, query, out=result[1])
    torch.bmm(dropped.mT, gradient, out=result[2])
    return result


def split_heads(x: Tensor, group: Group, heads: int, *, parts: int) -> Tensor:
    """Return [parts, n, T, d] from [S, B T, parts D]."""
    seeds, _, width = x.shape
    d = width // (parts * heads)
    x = x.reshape(seeds, group.examples, group.tokens, parts, heads, d)
    return x.permute(3, 0, 1, 4, 2, 5).reshape(parts, -1, group.tokens, d)


def join_heads(x: Tensor, group: Group, heads: int) -> Tensor:
    """Return [S, B T, parts D] from [parts, n, T, d]: what `split_heads` did, undone."""
    parts, _, tokens, d = x.shape
    x = x.view(parts, -1, group.examples, heads, tokens, d).permute(1, 2, 4, 0, 3, 5)
    return x.reshape(len(x), group.examples * tokens, parts * heads * d)


def softmax(scores: Tensor) -> Tensor:
    """Return the softmax over the last axis of [n, T, T]."""
    if scores.shape[-1] >= _SHORT:
        return torch.softmax(scores, -1)
    # Along another axis than the last, torch works on eight rows at a time.
    return torch.softmax(scores.permute(1, 2, 0).contiguous(), 1).permute(2, 0, 1).contiguous()
