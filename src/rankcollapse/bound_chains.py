"""Bounds over several layers and of what is not attention, and what a bound says of a layer.

Everything is log10, for the numbers themselves overflow (1e1430778 is a real case).

Shapes: `*batch` any leading axes (B sequences), T tokens, D features, H heads, L layers, M units
of an MLP.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Float64
from scipy.optimize import minimize_scalar
from torch import Tensor

from rankcollapse.bounds import CLOSED_FORMS, LayerBounds
from rankcollapse.theory import Values, composite_log10
from rankcollapse.vocabulary import require_known

VERDICTS = ("condition not met", "vacuous", "holds", "below floor", "violated")
TOLERANCE_DECADES = 1e-9
LN10 = math.log(10)
LayerValues = Float64[Tensor, "layer *batch"]


class Verdict(NamedTuple):
    """What a bound says of a layer.

    Attributes:
        name: one of `VERDICTS`.
        margin: log10 of bound over measured, in decades; inf where nothing is left.
    """

    name: str
    margin: float


def chain_bounds(layers: Sequence[LayerBounds], form: str) -> LayerValues:
    """Bound the residual after each layer from the first input's alone.

    Each layer has its own coefficient; where its reference is not the row that the bound before
    it is about, what that can add (`State.centre_log10`) is counted.

    Args:
        layers: consecutive layers, each measured at the output of the one before.
        form: one of `CLOSED_FORMS`.

    Returns:
        log10 of |R| and of each layer's bound, [L + 1, *batch]; NaN after a layer whose condition
        is not met.

    Raises:
        ValueError: the form is unknown or has no coefficient.
    """
    require_known("closed form", form, CLOSED_FORMS)
    bounds = [layers[0].state_residual_log10]
    for index, layer in enumerate(layers):
        moved = bounds[-1] + (layer.centre_log10 if index else 0.0)
        bounds.append(layer.coefficients_log10[form] + 3 * moved)
    return torch.stack(bounds)


def closed_form(coefficient_log10: float, residual_log10: float, *, depth: int) -> float:
    """Return log10 of a^((3^L - 1) / 2) |res X|^(3^L), the bound after L equal layers.

    Args:
        coefficient_log10: log10 a, a = c beta H / sqrt(k) the largest of the layers.
        residual_log10: log10 |res X| of the input.
        depth: L.

    Source: Dong et al. 2021, theorem 2.3.
    """
    power: int = 3**depth
    return (power - 1) // 2 * coefficient_log10 + power * residual_log10


def dobrushin_chain(layers: Sequence[LayerBounds]) -> LayerValues:
    """Return log10 of the first diameter and its bound after each layer, [L + 1, *batch].

    Valid for layers of attention alone; half the diameter is at most |res|_inf.
    """
    steps = [layers[0].diameter_log10, *(layer.contraction_log10 for layer in layers)]
    return torch.stack(steps).cumsum(0)


def skip_log10(contraction_log10: Values) -> tuple[Values, Values]:
    """Return log10 of the least and largest ratio of diameters of X + SA(X) and X, [*batch] each.

    They are 1 - c and 1 + c; -inf where c >= 1 says nothing.

    Args:
        contraction_log10: log10 c = sum_h tau_h |W_h|, in the operator norm that belongs to the
            norm of the tokens' distance: |W_h|_inf to the 1-norm, |W_h|_2 to the 2-norm.
    """
    contraction = 10**contraction_log10
    high = torch.log1p(contraction) / LN10
    return (1 - contraction).clamp_min(0.0).log10(), high


def layer_norm_log10(
    gain: Float[Tensor, " feature"], scale: Float[Tensor, "*batch token 1"]
) -> Values:
    """Return log10 of max|gain| max_i scale_i, [*batch].

    It bounds how much a LayerNorm can stretch the largest 2-norm distance of two tokens.

    Args:
        gain: its weights, [D].
        scale: 1 / sqrt(variance + eps) of each token, [*batch, T, 1].

    Returns:
        The factor's log10; inf where a token is constant and eps is 0.
    """
    return gain.double().abs().amax().log10() + scale.double().amax((-2, -1)).log10()


def lipschitz(gate: Callable[[Tensor], Tensor]) -> float:
    """Return the largest slope of an activation u gate(u); gelu's is 1.1289041 (at the root of 2).

    Args:
        gate: of `trace.GATES`: the steepest point lies between 0 and 5.
    """

    def slope(u: float) -> float:
        at = torch.tensor(u, dtype=torch.float64, requires_grad=True)
        with torch.enable_grad():
            (gradient,) = torch.autograd.grad(at * gate(at), at)
        return float(gradient)

    found = minimize_scalar(lambda u: -slope(u), bounds=(0, 5), method="bounded")
    return float(-found.fun)


def mlp_log10(
    first: Float[Tensor, "feature inner"],
    second: Float[Tensor, "inner output"],
    *,
    slope: float,
) -> float:
    """Return log10 of slope composite(|W1| |W2|), by which an MLP stretches a composite residual.

    Args:
        first: W1, [D, M].
        second: W2, [M, D'].
        slope: largest of the activation; `lipschitz`.
    """
    product = first.double().abs() @ second.double().abs()
    return math.log10(slope) + float(composite_log10(product))


def violates(measured_log10: Values, bound_log10: Values, *, floor_log10: Values) -> Tensor:
    """Return where a measured value exceeds its bound by more than round-off explains, [*batch].

    Round-off may add 10^floor to the measured value and `TOLERANCE_DECADES` (2.3e-9 in relative
    terms) to any; NaN bounds are never exceeded.
    """
    allowed = torch.logaddexp(bound_log10 * LN10, floor_log10 * LN10) / LN10
    return measured_log10 > allowed + TOLERANCE_DECADES


def verdict(
    measured_log10: float, bound_log10: float, *, trivial_log10: float, floor_log10: float
) -> Verdict:
    """Say what a bound says of a measured residual.

    Args:
        measured_log10: log10 of the residual, -inf for 0.
        bound_log10: log10 of its bound; NaN where the bound's condition is not met.
        trivial_log10: log10 of what is known without it, `LayerBounds.trivial_log10`.
        floor_log10: log10 of what round-off may add to the residual, for one computed from
            |R| alone `LayerBounds.floor_log10`; for a model's own state the precision floor times
            |X|; -inf if it is exact.

    Returns:
        `violated` before all else; `below floor` where a bound under the floor is exceeded, but
        round-off explains it.

    Raises:
        ValueError: the measured value is NaN.
    """
    if math.isnan(measured_log10):
        raise ValueError("the measured residual is NaN")
    if math.isnan(bound_log10):
        return Verdict("condition not met", math.nan)
    values = torch.tensor([measured_log10, bound_log10, floor_log10], dtype=torch.float64)
    margin = math.inf if measured_log10 == -math.inf else bound_log10 - measured_log10
    if violates(values[0], values[1], floor_log10=values[2]):
        return Verdict("violated", margin)
    if bound_log10 < floor_log10 and margin < -TOLERANCE_DECADES:
        return Verdict("below floor", margin)
    return Verdict("vacuous" if bound_log10 >= trivial_log10 else "holds", margin)
