"""One sweep through a traced network: the terms of its states by path length, block after block.

Shapes: L blocks, K terms, B sequences, T tokens, D features, H heads, d features of a head.
"""

from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from rankcollapse.architectures.parts import Map, Parts
from rankcollapse.products import OneDNN
from rankcollapse.trace import Frozen, FrozenMlp, Structure, Trace

SOURCES = ("embedding", "attention", "mlp", "norm")  # where a path starts
WHOLE, PASSED = "whole", "passed"  # all heads of a block, or its skip

Terms = Float[Tensor, "length batch token feature"]
Choice = str | int  # WHOLE, PASSED, or one head; without a choice all paths are taken


def lengths(
    seen: Trace,
    *,
    mlp: str,
    sources: frozenset[str],
    choices: Mapping[int, Choice] | None = None,
    gains: Float[Tensor, "layer batch head"] | None = None,
) -> Iterator[Terms]:
    """Yield the terms of the embedding and after each block, by path length.

    Args:
        seen: what is held fixed.
        mlp: "gate" or "source", see `rankcollapse.decomposition`.
        sources: of `SOURCES`, where paths start.
        choices: in which blocks, from 0, paths take what. A path that starts at a bias behind the
            first block that it must take something in does not count.
        gains: what each head's output is multiplied by. No path takes two heads of a block, so
            the gradient at 1 is the sum of the paths through a head.

    Yields:
        [l + 1, B, T, D] after l blocks.
    """
    choices = choices or {}
    terms = seen.states[:1] if "embedding" in sources else torch.zeros_like(seen.states[:1])
    yield terms
    for index, (parts, frozen) in enumerate(zip(seen.parts, seen.frozen, strict=True)):
        choice = choices.get(index)
        gain = None if gains is None else gains[index]
        with torch.set_grad_enabled(gain is not None), OneDNN() if gain is None else nullcontext():
            block = _Block(parts, frozen, seen.structure, mlp, sources, gain)
            terms = block.attend(terms, choice)
            if choice not in (None, PASSED):
                sources = frozenset()
            block = _Block(parts, frozen, seen.structure, mlp, sources)
            terms = block.finish(terms)
        yield terms


@dataclass(frozen=True)
class _Block:
    """One application of a block to terms; biases and other sources go into the first term."""

    parts: Parts
    frozen: Frozen
    structure: Structure
    mlp: str
    sources: frozenset[str]
    gain: Float[Tensor, "batch head"] | None = None

    def attend(self, terms: Terms, choice: Choice | None) -> Terms:
        """Return the sum of skip and attention: one term more, [K + 1, B, T, D]."""
        longer = terms.new_zeros(len(terms) + 1, *terms.shape[1:])
        if self.structure.attention_skip and choice in (None, PASSED):
            longer[:-1] = terms
        if choice != PASSED:
            longer[1:] += self._attention(terms, choice if isinstance(choice, int) else None)
        return longer

    def _attention(self, terms: Terms, head: int | None) -> Terms:
        value, output, attention = self.parts.value, self.parts.output, self.frozen.attention
        if head is not None:
            value, output, attention = _head(self.parts, attention, head)
        count, sequences, tokens, _ = terms.shape
        heads = attention.shape[1]
        v = self._mapped(terms, value, "attention").view(count, sequences, tokens, heads, -1)
        v = v.permute(1, 3, 2, 0, 4).reshape(sequences * heads, tokens, -1)  # [B H, T, K d]
        context = torch.bmm(attention.reshape(-1, tokens, tokens), v)
        context = context.view(sequences, heads, tokens, count, -1).permute(3, 0, 2, 1, 4)
        if self.gain is not None:
            context = context * self.gain[:, None, :, None]
        return self._mapped(context.flatten(3), output, "attention")

    def finish(self, terms: Terms) -> Terms:
        """Return what norm, MLP and its norm make of the attention sub-layer's sum, in place."""
        terms = self._norm(terms, self.parts.attention_norm, self.frozen.scale)
        if (mlp := self.frozen.mlp) is None:
            return terms
        for index in range(len(terms)):
            term = terms[index]
            mapped = self._mlp(term, mlp, first=index == 0)
            terms[index] = mapped + term if self.structure.mlp_skip else mapped
        return self._norm(terms, self.parts.mlp_norm, mlp.scale)

    def _mlp(self, term: Tensor, mlp: FrozenMlp, *, first: bool) -> Tensor:
        starts = first and "mlp" in self.sources
        if self.mlp == "source":
            return mlp.output if starts else torch.zeros_like(term)
        if not self.structure.maps:
            return term * mlp.gate
        inner = _linear(term, Map.of(self.parts.inner), biased=starts)
        return _linear(inner.mul_(mlp.gate), Map.of(self.parts.outer), biased=starts)

    def _norm(self, terms: Terms, norm: nn.LayerNorm, scale: Tensor) -> Terms:
        terms -= terms.mean(-1, keepdim=True)
        terms *= scale * norm.weight.detach()
        if "norm" in self.sources:
            terms[0] += norm.bias.detach()
        return terms

    def _mapped(self, terms: Terms, through: Map, source: str) -> Terms:
        mapped = _linear(terms, through, biased=False)
        if through.bias is not None and source in self.sources:
            mapped[0] += through.bias
        return mapped


def _head(parts: Parts, attention: Tensor, head: int) -> tuple[Map, Map, Tensor]:
    """Return the maps of one head, without the output's bias, and its probabilities."""
    d = len(parts.value.weight) // parts.heads
    rows = slice(head * d, (head + 1) * d)
    bias = None if parts.value.bias is None else parts.value.bias[rows]
    value, output = Map(parts.value.weight[rows], bias), Map(parts.output.weight[:, rows], None)
    return value, output, attention[:, head : head + 1]


def _linear(x: Tensor, through: Map, *, biased: bool) -> Tensor:
    return functional.linear(x, through.weight, through.bias if biased else None)
