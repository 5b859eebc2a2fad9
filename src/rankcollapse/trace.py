"""What of one forward pass depends on its input: attention, the norms' scales, the MLPs' gates.

With these held fixed a transformer is linear in its input, its biases aside.

Shapes: L blocks, B sequences, T tokens, D features, F units of an MLP, H heads.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from math import pi, sqrt
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from rankcollapse.ablation import ABLATIONS, ablate
from rankcollapse.architectures import architecture_of, model_type_of
from rankcollapse.architectures.parts import Parts, anatomy_of
from rankcollapse.states import hidden_states
from rankcollapse.vocabulary import require_known

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# activation(u) = u gate(u), with the limit at u = 0.
GATES: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": lambda u: (1 + torch.erf(u / sqrt(2))) / 2,
    "gelu_new": lambda u: (1 + torch.tanh(sqrt(2 / pi) * (u + 0.044715 * u**3))) / 2,
    "relu": lambda u: (u > 0).to(u.dtype),
    "silu": torch.sigmoid,
}


@dataclass(frozen=True)
class Structure:
    """Which pieces a block of an ablated model has.

    Attributes:
        attention_skip: whether the attention's input is added to its output.
        mlp: whether there is an MLP sub-layer, or the activation that ALBERT keeps of it.
        maps: whether it has its two linear maps.
        mlp_skip: whether the MLP's input is added to its output.
    """

    attention_skip: bool
    mlp: bool
    maps: bool
    mlp_skip: bool


def structure_of(model_type: str, variant: str, reading: str) -> Structure:
    """Return which pieces the blocks have under an ablation."""
    ablation = ABLATIONS[variant]
    published = reading == "as-published"
    keeps_activation = architecture_of(model_type).remove_mlp_as_published is not None
    return Structure(
        attention_skip=ablation.attention_skip,
        mlp=ablation.mlp or (published and keeps_activation),
        maps=ablation.mlp,
        mlp_skip=ablation.attention_skip or published,
    )


@dataclass(frozen=True)
class FrozenMlp:
    """What one application of an MLP sub-layer saw.

    Attributes:
        gate: of its units, [B, T, F].
        output: before skip and norm, [B, T, D].
        scale: 1 / deviation in its norm, [B, T, 1].
    """

    gate: Tensor
    output: Tensor
    scale: Tensor


@dataclass(frozen=True)
class Frozen:
    """What one application of a block saw.

    Attributes:
        attention: probabilities [B, H, T, T].
        scale: 1 / deviation in the attention's norm, [B, T, 1].
        mlp: the same of the MLP; None without one.
    """

    attention: Tensor
    scale: Tensor
    mlp: FrozenMlp | None


@dataclass(frozen=True)
class Trace:
    """One forward pass.

    Attributes:
        states: the model's own, [L + 1, B, T, D].
        parts: those of each block in order of application.
        frozen: what each block saw.
        structure: which pieces the blocks have.
    """

    states: Tensor
    parts: list[Parts]
    frozen: list[Frozen]
    structure: Structure


def trace(
    model: "PreTrainedModel",
    inputs: dict[str, Any],
    *,
    variant: str = "transformer",
    reading: str = "as-published",
) -> Trace:
    """Run a model once, ablated or not, and keep what depends on its input.

    Args:
        model: a model of a known architecture, in evaluation mode.
        inputs: what the model takes.
        variant: of `rankcollapse.ablate`.
        reading: of `rankcollapse.ablate`.

    Raises:
        ValueError: the architecture or the activation is not known, the model is in training
            mode or did not call what its blocks consist of, or a state is not finite.
    """
    model_type = model_type_of(model)
    anatomy = anatomy_of(model_type)
    if model.training:
        raise ValueError("the model is in training mode, where dropout is drawn; call model.eval()")
    gate = gate_of(model)
    structure = structure_of(model_type, variant, reading)
    architecture = architecture_of(model_type)
    parts = {
        block: anatomy.parts(block)
        for block in dict.fromkeys(architecture.blocks(model.base_model))
    }
    seen = _Seen(gate, architecture.batch_first)
    eager = _eager(model) if anatomy.needs_eager else ExitStack()
    with torch.no_grad(), eager, ablate(model, variant, reading=reading), ExitStack() as hooks:
        for part in parts.values():
            for handle in seen.hook(part, structure):
                hooks.callback(handle.remove)
        states = hidden_states(model, **inputs)
    _require_finite(states)
    ordered = [parts[block] for block in architecture.blocks(model.base_model)]
    return Trace(states, ordered, seen.frozen(len(ordered), structure), structure)


def gate_of(model: "PreTrainedModel") -> Callable[[Tensor], Tensor]:
    """Return the gate of a model's activation.

    Raises:
        ValueError: the activation is not known.
    """
    activation = str(anatomy_of(model_type_of(model)).activation(model.config))
    require_known("activation", activation, tuple(GATES))
    return GATES[activation]


def _require_finite(states: Tensor) -> None:
    finite = states.isfinite().flatten(1).all(1)
    if not finite.all():
        layer = int((~finite).nonzero()[0])
        raise ValueError(
            f"state {layer} of the model is not finite: its weights are damaged or overflow"
        )


class _Seen:
    """What hooks have seen, in the order of their calls."""

    def __init__(
        self, gate: Callable[[Tensor], Tensor], batch_first: Callable[[Tensor], Tensor]
    ) -> None:
        self._gate, self._batch_first = gate, batch_first
        self.attention: list[Tensor] = []
        self.scales: list[Tensor] = []
        self.gates: list[Tensor] = []
        self.outputs: list[Tensor] = []
        self.mlp_scales: list[Tensor] = []

    def hook(self, part: Parts, structure: Structure) -> Iterator[Any]:
        """Place the hooks of one block, and yield their handles."""
        yield part.watch(self.attention.append)
        yield part.attention_norm.register_forward_pre_hook(self._scale(self.scales))
        if structure.mlp:
            yield part.inner.register_forward_hook(self._take_gate)
            yield part.outer.register_forward_hook(self._take_output)
            yield part.mlp_norm.register_forward_pre_hook(self._scale(self.mlp_scales))

    def _take_gate(self, _module: nn.Module, _args: Any, output: Tensor) -> None:  # noqa: ANN401
        self.gates.append(self._gate(self._batch_first(output)))

    def _take_output(self, _module: nn.Module, _args: Any, output: Tensor) -> None:  # noqa: ANN401
        self.outputs.append(self._batch_first(output))

    def _scale(self, scales: list[Tensor]) -> Callable[..., None]:
        def seen(norm: nn.LayerNorm, args: tuple[Tensor, ...]) -> None:
            variance = self._batch_first(args[0]).var(-1, correction=0, keepdim=True)
            scales.append((variance + norm.eps).rsqrt())

        return seen

    def frozen(self, blocks: int, structure: Structure) -> list[Frozen]:
        """Return what each block saw.

        Raises:
            ValueError: a piece was not called once for each block.
        """
        attentions, mlps = (
            (self.attention, self.scales),
            (self.gates, self.outputs, self.mlp_scales),
        )
        counts = [len(column) for column in (*attentions, *(mlps if structure.mlp else ()))]
        if set(counts) != {blocks}:
            raise ValueError(
                f"the model called its attention, norms and MLPs {counts} times, expected {blocks} "
                "each: it cannot be decomposed"
            )
        nothing: list[FrozenMlp | None] = [None] * blocks
        seen = [FrozenMlp(*one) for one in zip(*mlps, strict=True)] if structure.mlp else nothing
        return [Frozen(*one) for one in zip(*attentions, seen, strict=True)]


@contextmanager
def _eager(model: "PreTrainedModel") -> Iterator[None]:
    """Let attention be computed so that its probabilities are seen."""
    before = model.config._attn_implementation
    model.set_attn_implementation("eager")
    try:
        yield
    finally:
        model.set_attn_implementation(before)
