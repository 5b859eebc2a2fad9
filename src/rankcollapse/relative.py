"""What relative positions do to the collapse: exponential with them, doubly exponential without.

A self-attention layer collapses cubically because its attention tends to a matrix of equal rows as
the tokens become equal. A relative position term B in the scores does not vanish with the residual:
the attention tends to P = softmax(B), and each layer leaves about as much of the residual as P
does. Here the term of a real model is scaled, and the ratio measured beside what P alone predicts.

P is each layer's attention when every token is the mean row of the state that it gets. MPNet adds
one learned bias to the scores of all layers. XLNet's term is (query + r_r_bias) . (R r) for each
offset, so it depends on the row that all tokens share, and at initialisation its query makes up
most of it.

Of a layer it is proven that diam(sum_h P_h X W_h) <= sum_h tau(P_h) |W_h|_inf diam(X), diam being
the largest 1-norm distance of two tokens: mixing alone accounts for the mean of tau(P_h), weighted
by |W_h|_inf. The factor r_l / r_{l-1} has W_h and the LayerNorm act on the shared row too, so that
mean is a prediction of it, not a bound (`relative_tables.predicted`).

Shapes: L layers, B sequences, T tokens, D features, H heads.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float64, Int64
from torch import Tensor, nn

from rankcollapse.ablation import ablate
from rankcollapse.architectures import architecture_of, model_type_of
from rankcollapse.architectures.edits import Edits
from rankcollapse.architectures.parts import anatomy_of
from rankcollapse.architectures.relative import Attention, RelativeTerm, relative_term_of
from rankcollapse.measures import rate, residual_ratio
from rankcollapse.precision import precision_floor
from rankcollapse.relative_tables import CONTRACTION_COLUMNS, RELATIVE_COLUMNS
from rankcollapse.states import hidden_states
from rankcollapse.theory import diameter, row_norm

if TYPE_CHECKING:
    from transformers import PreTrainedModel

SCALES = (1.0, 0.5, 0.25, 0.0)


class Study(NamedTuple):
    """Measured and predicted collapse of one model: `RELATIVE_COLUMNS`, `CONTRACTION_COLUMNS`."""

    measured: pd.DataFrame
    contraction: pd.DataFrame


@contextmanager
def relative_term(model: "PreTrainedModel", scale: float) -> Iterator["PreTrainedModel"]:
    """Multiply the relative position term of every layer's scores while the context lasts.

    Args:
        model: MPNet or XLNet, with or without a head.
        scale: 1 changes nothing, 0 takes the term out.

    Yields:
        The same model; afterwards, also after an exception, it is what it was.

    Raises:
        ValueError: the architecture has no relative term that is known here, the scale is not a
            finite number, or the term is scaled already.
        RuntimeError: the change had no effect on a forward pass that was made.
    """
    term = relative_term_of(model)
    if not math.isfinite(scale):
        raise ValueError(f"scale is {scale}: expected a finite number")
    edits = Edits()
    try:
        for module in term.sources(model.base_model):
            edits.replace(module, term.method, _scaled(getattr(module, term.method), scale))
        passes = edits.count_calls(model.base_model)
        yield model
        if passes() and 0 in edits.fired:
            raise RuntimeError(f"scaling had no effect on {edits.fired.count(0)} relative terms")
    finally:
        edits.undo()


def _scaled(method: Callable[..., Tensor], scale: float) -> Callable[..., Tensor]:
    return lambda *args, **kwargs: scale * method(*args, **kwargs)


@torch.inference_mode()
def relative_study(
    model: "PreTrainedModel",
    input_ids: Int64[Tensor, "sequence token"],
    *,
    checkpoint: str,
    weights: str,
    seed: int | None,
    scales: Sequence[float] = SCALES,
) -> Study:
    """Measure the SAN of a model, as published, with its relative term scaled.

    Args:
        model: MPNet or XLNet in float64.
        input_ids: [B, T], without padding, at least 2 tokens.
        checkpoint: its name in the tables.
        weights: "init" or "pretrained".
        seed: of the initialisation; None for trained weights.
        scales: of the term.

    Returns:
        Measured: ratio (centre: column mean) and rate of each layer from 0 on and each sequence;
        no rate where the ratio is below the floor. Contraction, of each layer from 1 on and each
        head: tau and the magnitude of the second eigenvalue of P, means over the sequences, and
        weight, |W_h|_inf.

    Raises:
        ValueError: the architecture has no relative term that is known here, the model is not in
            float64, there are fewer than 2 tokens, or a state is not finite.
    """
    term = relative_term_of(model)
    if model.dtype != torch.float64 or input_ids.ndim != 2 or input_ids.shape[1] < 2:
        raise ValueError(
            f"model in {model.dtype}, tokens {tuple(input_ids.shape)}: expected torch.float64 "
            "and [sequences, tokens], at least 2 tokens"
        )
    weight = torch.stack([row_norm(one) for one in _value_outputs(model)])  # [L, H]
    measured, contraction = [], []
    for scale in scales:
        with relative_term(model, scale), ablate(model, "san"):
            states, alone = _states_and_terms(model, term, input_ids)
        if not states.isfinite().all():
            raise ValueError("a state of the model is not finite: its weights are damaged")
        measured.append(_measured(residual_ratio(states)).assign(scale=scale))
        contraction.append(_contraction(alone, weight).assign(scale=scale))
    key = {"checkpoint": checkpoint, "weights": weights, "seed": pd.array([seed], "Int64")[0]}
    tables = [
        pd.concat(parts, ignore_index=True).assign(**key) for parts in (measured, contraction)
    ]
    for table in tables:
        table["seed"] = table["seed"].astype("Int64")
    return Study(tables[0][RELATIVE_COLUMNS], tables[1][CONTRACTION_COLUMNS])


def _value_outputs(model: "PreTrainedModel") -> Iterator[Tensor]:
    """Yield W_V W_O of the heads of each layer, [H, D, D]."""
    anatomy = anatomy_of(model_type_of(model))
    for block in architecture_of(model_type_of(model)).blocks(model.base_model):
        *_, value, output = anatomy.parts(block).by_head()
        yield value @ output


def _states_and_terms(
    model: "PreTrainedModel", term: RelativeTerm, input_ids: Tensor
) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
    """Return the states [L + 1, B, T, D], and tau and second eigenvalue of each P, [H] each."""
    alone: list[tuple[Tensor, Tensor]] = []
    asking = False

    def hook(module: nn.Module, args: Any, kwargs: Any, _output: object) -> None:  # noqa: ANN401
        nonlocal asking
        if asking:
            return
        asking = True
        x = args[0]
        shared = x.mean(term.token_axis, keepdim=True).expand_as(x)
        output = module(shared, *args[1:], **{**kwargs, "output_attentions": True})
        alone.append(_coefficients(term.probabilities(output)))
        asking = False

    modules = term.attentions(model.base_model)
    handles = [one.register_forward_hook(hook, with_kwargs=True) for one in modules]
    try:
        return hidden_states(model, input_ids=input_ids), alone
    finally:
        for handle in handles:
            handle.remove()


def _coefficients(attention: Attention) -> tuple[Tensor, Tensor]:
    """Return tau and the magnitude of the second eigenvalue, means over the sequences, [H]."""
    same = torch.allclose(attention, attention[:1].expand_as(attention), rtol=0, atol=1e-13)
    attention = attention[:1] if same else attention
    magnitudes: Tensor = torch.linalg.eigvals(attention).abs()
    second = magnitudes.sort(-1, descending=True).values[..., 1]  # [B, H]
    return diameter(attention).mean(0) / 2, second.mean(0)


def _measured(ratios: Float64[Tensor, "state sequence"]) -> pd.DataFrame:
    above = ratios.where(ratios >= precision_floor("float64"), torch.nan)
    layers, sequences = np.indices(ratios.shape)
    return pd.DataFrame(
        {
            "layer": layers.ravel(),
            "sequence": sequences.ravel(),
            "ratio": ratios.flatten().numpy(),
            "rate": rate(above).flatten().numpy(),
        }
    )


def _contraction(alone: list[tuple[Tensor, Tensor]], weight: Tensor) -> pd.DataFrame:
    tau, second = (torch.stack(parts) for parts in zip(*alone, strict=True))  # [L, H]
    layers, heads = np.indices(tau.shape)
    return pd.DataFrame(
        {
            "layer": layers.ravel() + 1,
            "head": heads.ravel(),
            "tau": tau.flatten().numpy(),
            "second_eigenvalue": second.flatten().numpy(),
            "weight": weight.flatten().numpy(),
        }
    )
