"""The exact contribution of all paths of each length, with what depends on the input held fixed.

Attention weights, the scale of each normalisation and the gate of each MLP unit, gelu(u) =
u gate(u), are taken from the full forward pass. The network is then linear in its input, and its
output is a polynomial in z where each attention sub-layer's output, its biases included, is
multiplied by z and its skip is not. The coefficient of z^k is the sum of all paths through k
attention sub-layers; what begins at a later bias counts the sub-layers that it still passes.
Another way to split the nonlinearities gives other terms.

Shapes: S seeds, N tokens of all examples, D features, L blocks, K = L + 1 terms.
"""

from collections.abc import Sequence
from math import sqrt

import torch
from torch import Tensor

from rankcollapse.block import EPS, Group, groups_of, join_heads, softmax, split_heads
from rankcollapse.san import Network, Parameters, embed


def frozen_terms(
    network: Network,
    parameters: Parameters,
    inputs: Tensor,
    lengths: Sequence[int],
    *,
    residual: bool = True,
) -> list[Tensor]:
    """Return the terms of the last state by path length.

    Args:
        network: the shape.
        parameters: those of S seeds; the terms have their precision.
        inputs: token ids [S, N], or points [S, N, 2].
        lengths: tokens of each example.
        residual: whether the network was trained with skip connections.

    Returns:
        L + 1 tensors [S, N, D], which sum to the last state of `san.forward`.

    Source: Dong et al. 2021, theorem 2.1 and section 3.
    """
    groups = groups_of(lengths)
    terms = [embed(network, parameters, inputs, lengths)]
    for layer in range(network.depth):
        name = f"layer{layer}"
        attended = _attend(network, parameters, name, terms, groups)
        terms.append(torch.zeros_like(terms[0]))
        if not residual:
            terms = [torch.zeros_like(term) for term in terms]
        for length, term in enumerate(attended, start=1):
            terms[length] = terms[length] + term
        terms = _normalise(parameters, f"{name}.norm", terms)
        if network.mlp:
            terms = _mlp(parameters, name, terms)
    return terms


def _attend(
    network: Network,
    parameters: Parameters,
    name: str,
    terms: list[Tensor],
    groups: Sequence[Group],
) -> list[Tensor]:
    """Return the attention sub-layer's output for each term, its biases with the first."""
    weight, bias = parameters[f"{name}.qkv.weight"], parameters[f"{name}.qkv.bias"].unsqueeze(1)
    out, width = parameters[f"{name}.out.weight"], network.width
    whole = torch.stack(terms).sum(0)
    query_key = torch.baddbmm(bias[..., : 2 * width], whole, weight[..., : 2 * width])
    values = [torch.bmm(term, weight[..., 2 * width :]) for term in terms]
    # Rows of attention sum to one, so that the value's bias passes it unchanged.
    constant = parameters[f"{name}.out.bias"].unsqueeze(1) + torch.bmm(bias[..., 2 * width :], out)
    contexts = [torch.empty_like(value) for value in values]
    for group in groups:
        query, key = split_heads(query_key[:, group.part], group, network.heads, parts=2)
        weights = softmax(torch.bmm(query, key.mT) / sqrt(network.head_width))
        for context, value in zip(contexts, values, strict=True):
            (heads,) = split_heads(value[:, group.part], group, network.heads, parts=1)
            joined = join_heads(torch.bmm(weights, heads)[None], group, network.heads)
            context[:, group.part] = joined
    attended = [torch.bmm(context, out) for context in contexts]
    attended[0] = attended[0] + constant
    return attended


def _normalise(parameters: Parameters, name: str, terms: list[Tensor]) -> list[Tensor]:
    gain, bias = (parameters[f"{name}.{part}"].unsqueeze(1) for part in ("gain", "bias"))
    variance = torch.var(torch.stack(terms).sum(0), -1, correction=0, keepdim=True)
    scale = gain / (variance + EPS).sqrt()
    normal = [(term - term.mean(-1, keepdim=True)) * scale for term in terms]
    normal[0] = normal[0] + bias
    return normal


def _mlp(parameters: Parameters, name: str, terms: list[Tensor]) -> list[Tensor]:
    inner = [torch.bmm(term, parameters[f"{name}.mlp_in.weight"]) for term in terms]
    inner[0] = inner[0] + parameters[f"{name}.mlp_in.bias"].unsqueeze(1)
    whole = torch.stack(inner).sum(0)
    # gelu(u) / u is the normal distribution function, 1/2 at 0.
    gate = torch.special.ndtr(whole)
    outer = [torch.bmm(part * gate, parameters[f"{name}.mlp_out.weight"]) for part in inner]
    outer[0] = outer[0] + parameters[f"{name}.mlp_out.bias"].unsqueeze(1)
    added = [term + part for term, part in zip(terms, outer, strict=True)]
    return _normalise(parameters, f"{name}.mlp_norm", added)
