"""Exact decomposition of a transformer's states by path length.

Held fixed are the attention probabilities, each normalisation's scale and each MLP unit's gate,
activation(u) = u gate, of one forward pass: the network is then linear in its input. Multiply each
attention sub-layer's whole output, its biases included, by z, and its skip not: the state becomes a
polynomial in z whose coefficient X_k is the sum of all paths through k attention sub-layers, of
C(l, k) H^k paths after l blocks that start at the embedding. What starts at a later bias counts the
attention sub-layers that it still passes. One sweep finds all coefficients; nothing is enumerated.

Another way to split the nonlinearities gives other terms: with `mlp="source"` an MLP's whole output
is a source of its own, and what enters the MLP does not come through it.

Shapes: L blocks, K = L path lengths beside 0, B sequences, T tokens, D features, H heads.

Source: Dong et al. 2021, theorems 2.1 and 3.1, which have attention only. Differs from the paper:
MLPs and normalisations are part of the paths.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from rankcollapse.architectures import architecture_of, model_type_of
from rankcollapse.architectures.parts import anatomy_of
from rankcollapse.products import OneDNN
from rankcollapse.sweep import PASSED, SOURCES, WHOLE, Choice, Terms, lengths
from rankcollapse.trace import Trace, trace
from rankcollapse.vocabulary import READINGS, VARIANTS, require_known

if TYPE_CHECKING:
    from transformers import PreTrainedModel

MLPS = ("gate", "source")
BATCH = 4  # sequences in one sweep
CLOSURE = 512  # machine epsilons that rounding may leave between the terms' sum and the state


@dataclass(frozen=True)
class Part:
    """The terms of some sequences after one block.

    Attributes:
        sequences: which of the batch.
        layer: 0 for the embedding, then the number of the block.
        terms: X_0 to X_layer, [layer + 1, b, T, D].
        state: the model's own state there, [b, T, D].
    """

    sequences: slice
    layer: int
    terms: Terms
    state: Tensor


def decompose(
    model: "PreTrainedModel",
    *,
    variant: str = "transformer",
    reading: str = "as-published",
    mlp: str = "gate",
    **inputs: Any,  # noqa: ANN401 (whatever the model takes)
) -> "Decomposition":
    """Split every state of a model into its terms by path length.

    Args:
        model: a model of a known architecture, in evaluation mode; not ablated.
        variant: of `rankcollapse.ablate`.
        reading: of `rankcollapse.ablate`.
        mlp: "gate", or "source" to count each MLP's output as a source of its own.
        inputs: what the model takes, as `input_ids=` and `attention_mask=`.

    Returns:
        The decomposition; nothing is computed before it is asked for.

    Raises:
        ValueError: a name or the architecture is not known, there are no tokens, or a sequence is
            masked altogether.
    """
    require_known("variant", variant, VARIANTS)
    require_known("reading", reading, READINGS)
    require_known("mlp", mlp, MLPS)
    _require_tokens(inputs)
    return Decomposition(model, inputs, variant, reading, mlp)


def _require_tokens(inputs: dict[str, Any]) -> None:
    shape = _tokens(inputs).shape[:2]
    if len(shape) < 2 or 0 in shape:
        raise ValueError("there are no tokens; give at least one sequence of one token, [B, T]")
    if inputs.get("input_mask") is not None:
        raise ValueError("input_mask is not known here; give attention_mask=, 1 for real tokens")
    mask = inputs.get("attention_mask")
    if mask is None:
        return
    if mask.shape != shape:
        raise ValueError(
            f"attention_mask has shape {[*mask.shape]}; expected {[*shape]}, as tokens"
        )
    if not (kept := mask.bool().any(-1)).all():
        empty = (~kept).nonzero().flatten().tolist()
        raise ValueError(f"sequence {empty[0]} is all padding; leave it out, or correct the mask")


def _tokens(inputs: dict[str, Any]) -> Tensor:
    """Return the inputs' tokens, as ids or as embeddings."""
    given = [inputs.get(name) for name in ("input_ids", "inputs_embeds")]
    tokens = next((value for value in given if isinstance(value, Tensor)), None)
    if tokens is None:
        raise ValueError("there are no tokens; give input_ids= as a tensor")
    return tokens


def require_sum(terms: Terms, state: Tensor, layer: int) -> None:
    """Raise ValueError unless terms [K + 1, B, T, D] sum to the model's own state [B, T, D]."""
    difference = (terms.sum(0) - state).double().norm() / state.double().norm()
    if not difference <= CLOSURE * torch.finfo(state.dtype).eps:
        raise ValueError(
            f"the terms of layer {layer} miss the model's own state by {float(difference):.1e} of "
            "it: the model computes something else than its architecture; do not use them"
        )


class Decomposition:
    """The terms of a model's states by path length, computed in small batches of sequences.

    Attributes:
        sequences: B.
        layers: L.
        heads: H.
    """

    def __init__(
        self,
        model: "PreTrainedModel",
        inputs: dict[str, Any],
        variant: str,
        reading: str,
        mlp: str,
    ) -> None:
        self.model, self.inputs = model, inputs
        self.variant, self.reading, self.mlp = variant, reading, mlp
        tokens = _tokens(inputs)
        self._shape = tokens.shape[:2]
        self._blocks = architecture_of(model_type_of(model)).blocks(model.base_model)
        self.sequences, self.layers = len(tokens), len(self._blocks)
        self.heads = anatomy_of(model_type_of(model)).parts(self._blocks[0]).heads

    def masks(self, some: slice) -> Bool[Tensor, "batch token"]:
        """Return which tokens of some sequences are not padding."""
        mask = self.inputs.get("attention_mask")
        whole = torch.ones(self._shape, dtype=torch.bool) if mask is None else mask.bool()
        return whole[some]

    def parts(self, *, sources: Sequence[str] = SOURCES) -> Iterator[Part]:
        """Yield the terms after every block, a few sequences at a time.

        Args:
            sources: where the paths start: "embedding", or the biases of the "attention", "mlp" or
                "norm" sub-layers. The terms of all four sum to the state, those of each sum to
                the terms of all.

        Raises:
            ValueError: a source or what the model consists of is not known, a state is not finite,
                or the terms do not sum to the model's own state.
        """
        for source in sources:
            require_known("source", source, SOURCES)
        for some, seen in self.traces():
            for layer, terms in enumerate(lengths(seen, mlp=self.mlp, sources=frozenset(sources))):
                if set(sources) == set(SOURCES):
                    require_sum(terms, seen.states[layer], layer)
                yield Part(some, layer, terms, seen.states[layer])

    def terms(self, *, sources: Sequence[str] = SOURCES) -> Float[Tensor, "layer length b t d"]:
        """Return all terms, [L + 1, L + 1, B, T, D]; those of lengths above the layer are 0.

        Raises:
            MemoryError: they would not fit in the memory that is free; `parts` streams them.
        """
        whole: Tensor | None = None
        for part in self.parts(sources=sources):
            if whole is None:
                whole = self._room(part)
            whole[part.layer, : part.layer + 1, part.sequences] = part.terms
        if whole is None:
            raise ValueError("there are no sequences")
        return whole

    def _room(self, part: Part) -> Tensor:
        import psutil

        shape = (self.layers + 1, self.layers + 1, self.sequences, *part.state.shape[1:])
        needed = part.state.itemsize
        for size in shape:
            needed *= size
        free = psutil.virtual_memory().available
        if needed > free:
            raise MemoryError(
                f"the terms need {needed / 1e9:.2f} GB, {free / 1e9:.2f} GB are free; "
                "take them in parts: decompose(...).parts()"
            )
        return torch.zeros(shape, dtype=part.state.dtype)

    def of_length(self, length: int) -> Float[Tensor, "batch token feature"]:
        """Return the term of the last state for one path length, [B, T, D].

        Raises:
            ValueError: no path has that length.
        """
        if not 0 <= length <= self.layers:
            raise ValueError(f"no path has length {length}; they are 0 to {self.layers}")
        return self._last({})[length]

    def through_heads(self, heads: Mapping[int, int]) -> Terms:
        """Return the terms of the last state that take given heads in given blocks.

        The bias of a block's output map belongs to no head. What starts at a bias after the first
        of these blocks does not take its head.

        Args:
            heads: block, from 1, to head, from 0.

        Returns:
            [L + 1, B, T, D].

        Raises:
            ValueError: there is no such block or head.
        """
        self._require_heads(heads)
        return self._last({block - 1: head for block, head in heads.items()})

    def through_layers(self, layers: Sequence[int]) -> Float[Tensor, "batch token feature"]:
        """Return the term of the last state whose paths take attention in exactly these blocks.

        Args:
            layers: blocks, from 1; none for what passes all attention by.

        Returns:
            [B, T, D].

        Raises:
            ValueError: there is no such block.
        """
        blocks = range(1, self.layers + 1)
        if unknown := sorted(set(layers) - set(blocks)):
            raise ValueError(f"there is no block {unknown[0]}; they are 1 to {self.layers}")
        chosen = {block - 1: WHOLE if block in layers else PASSED for block in blocks}
        return self._last(chosen)[len(set(layers))]

    def _require_heads(self, heads: Mapping[int, int]) -> None:
        for block, head in heads.items():
            if not 1 <= block <= self.layers:
                raise ValueError(f"there is no block {block}; they are 1 to {self.layers}")
            if not 0 <= head < self.heads:
                raise ValueError(f"there is no head {head}; they are 0 to {self.heads - 1}")

    def _last(self, choices: Mapping[int, Choice]) -> Terms:
        last = []
        for _, seen in self.traces():
            *_, terms = lengths(seen, mlp=self.mlp, sources=frozenset(SOURCES), choices=choices)
            last.append(terms)
        return torch.cat(last, dim=1)

    def traces(self) -> Iterator[tuple[slice, Trace]]:
        """Yield what is held fixed, a few sequences at a time."""
        for start in range(0, self.sequences, BATCH):
            some = slice(start, min(start + BATCH, self.sequences))
            inputs = {
                # What is the same for all sequences, as position_ids may be, has one row.
                name: value[some] if isinstance(value, Tensor) and len(value) > 1 else value
                for name, value in self.inputs.items()
            }
            with torch.no_grad(), OneDNN():
                seen = trace(self.model, inputs, variant=self.variant, reading=self.reading)
            yield some, seen
