"""Bounds of the residual that one self-attention layer leaves.

Everything is log10, for the numbers themselves overflow (1e1430778 is a real case). The forms:

- `paper`: (4 gamma beta / sqrt(k)) |R|^3, if every D is at most `bound_tables.PAPER_LIMIT`.
- `first`: 4 without gamma, the paper's first version, if every D is at most ln 8. It fails without
  a condition: tests/test_bounds.py has a layer with D = 12.5 that leaves more.
- `ours`: min(gamma, sqrt(2 exp D)), without a condition.
- `sharp`: min(gamma, sqrt(phi)) sqrt(mu / 2) with phi = (exp(D) - 1) / D and mu = |R|_max / |R|_1,
  which is at most 1, and at most 1/2 around the mean, where columns sum to 0. So as a layer
  collapses it tends to sqrt(mu / 2), to at most 1/2 around the mean; no smaller constant holds for
  all layers, as two tokens (a, -a) show where a tends to 0. Proof: along the tilt t E_i
  from q_j to P_ij the rate of p_j is p_j (1 - p_j) (E_ij - sum_l w_l E_il), where p (1 - p) <= 1/4
  and w_l <= exp(t D) q_l / (1 - q_j); so sum_i |P_ij - q_j| <= phi S / 4 for each j. The log-odds
  of P_ij and q_j differ by at most D_i, so gamma^2 S / 4 is a bound too. As S <= 2 |E|_1 this
  limits |.|_1; for |.|_inf, D_i <= 2 |R_i|_max |WQK|_1 |R|_inf / sqrt(k).
- `refined`: the root of u1 |W|_1 times uinf |W|_inf, from D and S themselves: u1 is the smaller of
  exp(D) S max_c sum_j q_j |R_jc| and sum_i tanh(D_i / 4) times R's largest max - min of a column,
  uinf is max_i tanh(D_i / 4) times the largest 1-norm distance of two tokens. Proof: for any set of
  keys the log-odds of P_i and q differ by at most D_i, so their masses by at most tanh(D_i / 4),
  the largest difference of two sigmoids that far apart. P_i moves no more mass than that from keys
  to other keys, each unit by at most that max - min or distance. The other half of u1 is the next
  proof without its 1 - q_j.
- `tight`: `refined` with S max_c sum_j min(phi / 4, exp(D) q_j (1 - q_j)) |R_jc| in u1. Proof: phi
  as above. With p = P_i, p_j - q_j is the sum over k != j of p_j q_k - p_k q_j. The logarithms of
  these two products differ by E_ij - E_ik, and neither exceeds exp(D) q_j q_k, for p <= exp(D) q.
  As |a - b| <= |log a - log b| max(a, b), each difference is at most exp(D) q_j q_k |E_ij - E_ik|;
  summed over i, then over k, sum_i |P_ij - q_j| <= exp(D) q_j (1 - q_j) S.

Shapes: `*batch` any leading axes (B sequences), T tokens, D features, H heads, L layers.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rankcollapse.bound_tables import FIRST_LIMIT, PAPER_LIMIT
from rankcollapse.errors import RankCollapseError
from rankcollapse.precision import EPS
from rankcollapse.theory import (
    Head,
    HeadQuantities,
    Matrices,
    State,
    Values,
    composite_log10,
    diameter,
    measure_head,
    measure_state,
)

CLOSED_FORMS = ("paper", "first", "ours", "sharp")
FORMS = (*CLOSED_FORMS, "refined", "tight")
LN10 = math.log(10)
_ROUND_OFF = 64 * EPS["float64"]


@dataclass(frozen=True)
class LayerBounds:
    """One layer's measured residual, its bounds and what they are made of.

    Attributes:
        state_residual_log10: log10 |R| of the layer's input, [*batch].
        norm_log10: log10 |X| of the layer's input, [*batch].
        residual_log10: log10 of the composite norm of the sum over heads of (P - 1 q^T) R W, which
            is what the bounds limit, [*batch].
        mean_residual_log10: the same around the output's column mean, [*batch].
        bounds_log10: by form, [*batch]; NaN where the form's condition is not met.
        coefficients_log10: by closed form, log10 a of the bound a |R|^3, [*batch].
        diameter_log10: log10 of the largest 1-norm distance of two tokens, [*batch].
        output_diameter_log10: the same of the output, [*batch].
        contraction_log10: log10 sum_h tau_h |W_h|_inf, Dobrushin's bound of their ratio, [*batch].
        floor_log10: log10 of the round-off in `residual_log10`, [*batch].
        centre_log10: see `State`.
        gamma, max_oscillation, beta, tau: by head, [H, *batch]; beta includes 1 / sqrt(k).
    """

    state_residual_log10: Tensor
    norm_log10: Tensor
    residual_log10: Tensor
    mean_residual_log10: Tensor
    bounds_log10: dict[str, Tensor]
    coefficients_log10: dict[str, Tensor]
    diameter_log10: Tensor
    output_diameter_log10: Tensor
    contraction_log10: Tensor
    floor_log10: Tensor
    centre_log10: float
    gamma: Tensor
    max_oscillation: Tensor
    beta: Tensor
    tau: Tensor

    @property
    def dobrushin_log10(self) -> Values:
        """Return the log10 bound of the output's diameter, [*batch]."""
        return self.contraction_log10 + self.diameter_log10

    @property
    def trivial_log10(self) -> Values:
        """Return the smaller of log10 |R| and log10 |X|: a bound above it is vacuous, [*batch]."""
        return torch.minimum(self.state_residual_log10, self.norm_log10)


def layer_bounds(
    x: Matrices, heads: Sequence[Head], *, reference: str | Tensor = "mean"
) -> LayerBounds:
    """Measure a layer at its input and bound what it leaves.

    Heads are summed in |.|_1 and |.|_inf, each by itself, before the root of the product: the
    composite norm has no triangle inequality.

    Args:
        x: the layer's input, [*batch, T, D].
        heads: the layer's heads; at least one.
        reference: "mean", "median" or a row [*batch, D].

    Returns:
        The measured residual and the bounds, all in float64.

    Raises:
        RankCollapseError: a value is not finite, or a token has all its keys masked.
        ValueError: there is no head.
    """
    if not heads:
        raise ValueError("a layer needs at least one head")
    state = measure_state(x, reference=reference)
    total = torch.zeros(())
    measured: list[dict[str, Tensor]] = []
    for head in heads:
        quantities = measure_head(state, head)
        total = total + quantities.output
        measured.append(_measure(state, quantities))
    sums = {name: torch.stack([one[name] for one in measured]) for name in measured[0]}
    cubic = {form: _root(sums[form]) for form in CLOSED_FORMS}
    cubed = 3 * state.residual_log10
    weights = (sums["columns"].sum(0).log10() + sums["rows"].sum(0).log10()) / 2
    if not total.isfinite().all():
        raise RankCollapseError("a head's output overflows float64: scale the state or the weights")
    return LayerBounds(
        state_residual_log10=state.residual_log10,
        norm_log10=state.norm_log10,
        residual_log10=composite_log10(total),
        mean_residual_log10=composite_log10(total - total.mean(-2, keepdim=True)),
        bounds_log10={form: a + cubed for form, a in cubic.items()}
        | {form: _root(sums[form]) for form in ("refined", "tight")},
        coefficients_log10=cubic,
        diameter_log10=state.diameter.log10(),
        output_diameter_log10=diameter(total).log10(),
        contraction_log10=(sums["tau"] * sums["rows"]).sum(0).log10(),
        floor_log10=math.log10(_ROUND_OFF) + weights + state.residual_log10,
        centre_log10=state.centre_log10,
        **{name: sums[name] for name in ("gamma", "max_oscillation", "beta", "tau")},
    )


def _measure(state: State, head: HeadQuantities) -> dict[str, Tensor]:
    """Return what is kept of a head: values [*batch], and each form's two bounds [2, *batch]."""
    like = head.tau
    weights = torch.stack([(like * 0 + norm).log() for norm in (head.columns, head.rows)])
    forms = _cubic_parts(state, head) | _refined_parts(state, head)
    return {name: parts + weights for name, parts in forms.items()} | {
        "gamma": head.gamma,
        "max_oscillation": head.max_oscillation,
        "beta": like * 0 + head.beta,
        "tau": head.tau,
        "columns": like * 0 + head.columns,
        "rows": like * 0 + head.rows,
    }


def _root(parts: Tensor) -> Values:
    """Return log10 of the root of two sums over heads, from natural logarithms [H, 2, *batch]."""
    return parts.logsumexp(0).mean(0) / LN10


def _cubic_parts(state: State, head: HeadQuantities) -> dict[str, Tensor]:
    """Return log u1 / (|R|_1^2 |R|_inf) and log uinf / (|R|_1 |R|_inf^2), [2, *batch] by form."""
    largest, gamma = head.max_oscillation, 2 * head.gamma.log()
    one = torch.zeros_like(largest)
    peak = torch.where(state.columns > 0, state.peak / state.columns, 1.0)
    forms = {
        "paper": (_where(largest <= PAPER_LIMIT, gamma + math.log(4)), one + math.log(4)),
        "first": (_where(largest <= FIRST_LIMIT, one + math.log(16)), one),
        "ours": (torch.minimum(gamma, largest + math.log(2)), one),
        "sharp": (torch.minimum(gamma, _log_phi(largest)) - math.log(2), peak.log()),
    }
    scale = head.interaction.log()
    return {form: _if_covered(head, torch.stack(parts) + scale) for form, parts in forms.items()}


def _refined_parts(state: State, head: HeadQuantities) -> dict[str, Tensor]:
    """Return log u1 and log uinf, [2, *batch] by form."""
    largest, entries = head.max_oscillation, state.residual.abs().log()
    spread, reference = head.spread.log(), head.log_reference
    tilt = (head.oscillations / 4).tanh()
    bounded = tilt.sum(-1).log() + state.oscillation.log()
    grown = largest[..., None] * (1 + _ROUND_OFF) + reference  # [*batch, T], D may cancel log q
    least = torch.minimum(
        _log_phi(largest)[..., None] - math.log(4), grown + _log_of_others(reference)
    )
    rows = tilt.amax(-1).log() + state.diameter.log()
    parts = {}
    for form, share in (("refined", grown), ("tight", least)):
        columns = spread + (share[..., None] + entries).logsumexp(-2).amax(-1)
        parts[form] = _if_covered(head, torch.stack([torch.minimum(columns, bounded), rows]))
    return parts


def _log_phi(d: Tensor) -> Tensor:
    """Return log((exp(d) - 1) / d), 0 at 0."""
    safe = d.clamp_min(1e-8)
    return torch.where(d < 1e-8, d / 2, d + (-(-safe).expm1()).log() - safe.log())


def _log_of_others(log_reference: Tensor) -> Tensor:
    """Return log(1 - q_j), [*batch, T], exact where q_j is nearly 1."""
    tokens = log_reference.shape[-1]
    own = torch.eye(tokens, dtype=torch.bool, device=log_reference.device)
    return log_reference[..., None, :].masked_fill(own, -math.inf).logsumexp(-1)


def _where(met: Tensor, value: Tensor) -> Tensor:
    return torch.where(met, value, math.nan)


def _if_covered(head: HeadQuantities, parts: Tensor) -> Tensor:
    return parts if head.covered else torch.full_like(parts, math.nan)
