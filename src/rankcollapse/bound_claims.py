"""What the bounds of a network's layers claim, and a verdict of each claim, as tables.

- one step, from the layer's own measured input.
- chained, from the first input alone; in a network without LayerNorm.
- closed: one expression for all layers up to this one, with the largest coefficient of any. The
  paper's is 4 gamma beta H / sqrt(k) with the largest beta and gamma. It is the paper's claim and
  does not follow from the bound of one layer, for two steps have no proof: H times the largest
  head for the composite norm of a sum, and no cost for moves of the centre. A violation of it would
  be a finding, not an error. The other forms have sums over the heads and count the moves. No
  theorem covers more than one layer of a network with LayerNorms, which may enlarge a residual by
  any factor: where its closed form does not happen to be vacuous, its condition is not met.

Shapes: L layers, B sequences, H heads.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import pandas as pd
import torch
from jaxtyping import Float64
from torch import Tensor

from rankcollapse.bound_chains import (
    Verdict,
    chain_bounds,
    closed_form,
    dobrushin_chain,
    verdict,
)
from rankcollapse.bound_tables import (
    BOUND_COLUMNS,
    CHAINS,
    DOBRUSHIN,
    FORM_COLUMNS,
    UNPROVEN,
    by_layer,
    over_sequences,
)
from rankcollapse.bounds import CLOSED_FORMS, FORMS, LayerBounds
from rankcollapse.errors import RankCollapseError

ONE_STEP, CHAINED, CLOSED = CHAINS
Values = Float64[Tensor, " batch"]


class BoundViolatedError(RankCollapseError):
    """A measured value exceeds a bound that is proven here: a bug, or a proof is wrong."""


class Claim(NamedTuple):
    """One bound after one layer; all values are log10, [B].

    Attributes:
        layer: from 1.
        form: of `bounds.FORMS`, or `bound_tables.DOBRUSHIN`.
        chain: of `bound_tables.CHAINS`.
        bound: NaN where there is none.
        measured: what it bounds.
        trivial: what it has to lie below to say anything.
        floor: what round-off may add to the measured value.
        met: whether the theorem's condition holds; None where that is so unless the bound is NaN.
        normed: whether there are LayerNorms that the theorem does not cover.
    """

    layer: int
    form: str
    chain: str
    bound: Values
    measured: Values
    trivial: Values
    floor: Values
    met: Tensor | None = None
    normed: bool = False


def one_step(layers: Sequence[LayerBounds]) -> Iterator[Claim]:
    """Yield what is claimed of each layer from its own input."""
    for number, one in enumerate(layers, start=1):
        known = (one.residual_log10, one.trivial_log10, one.floor_log10)
        for form in FORMS:
            yield Claim(number, form, ONE_STEP, one.bounds_log10[form], *known)
        known = (one.output_diameter_log10, one.diameter_log10, one.floor_log10)
        yield Claim(number, DOBRUSHIN, ONE_STEP, one.dobrushin_log10, *known)


def layer_by_layer(layers: Sequence[LayerBounds]) -> Iterator[Claim]:
    """Yield what is claimed of each layer from the first input, in a network without norms."""
    first = layers[0]
    for form in CLOSED_FORMS:
        pairs = zip(layers, chain_bounds(layers, form)[1:], strict=True)
        for number, (one, bound) in enumerate(pairs, start=1):
            known = (one.residual_log10, first.trivial_log10, one.floor_log10)
            yield Claim(number, form, CHAINED, bound, *known)
    pairs = zip(layers, dobrushin_chain(layers)[1:], strict=True)
    for number, (one, bound) in enumerate(pairs, start=1):
        known = (one.output_diameter_log10, first.diameter_log10, one.floor_log10)
        yield Claim(number, DOBRUSHIN, CHAINED, bound, *known)


def closed(
    layers: Sequence[LayerBounds], below_floor: Sequence[Tensor], *, normed: bool
) -> Iterator[Claim]:
    """Yield what the closed forms claim of each layer from the first input.

    The paper's has the largest beta and gamma of layers whose input is more than round-off, for of
    round-off gamma is noise; the exponent 3^L counts every layer. The other forms, of which noise
    in gamma cannot make much, have the largest coefficient of all layers, as their proof needs.

    Args:
        layers: consecutive layers.
        below_floor: of each layer, whether its input is round-off, [B].
        normed: whether LayerNorms stand between them.
    """
    start = layers[0].state_residual_log10.tolist()
    for depth, one in enumerate(layers, start=1):
        known = (one.residual_log10, layers[0].trivial_log10, one.floor_log10)
        for form in CLOSED_FORMS:
            largest, centre = _coefficient(layers[:depth], below_floor[:depth], form)
            pairs = zip((largest + centre).tolist(), start, strict=True)
            bound = [closed_form(*pair, depth=depth) - centre for pair in pairs]
            met = ~torch.stack([one.bounds_log10[form] for one in layers[:depth]]).isnan().any(0)
            yield Claim(
                depth, form, CLOSED, largest.new_tensor(bound), *known, met, normed and depth > 1
            )


def _coefficient(
    layers: Sequence[LayerBounds], below_floor: Sequence[Tensor], form: str
) -> tuple[Values, float]:
    """Return log10 of the largest coefficient [B], and of what a move of the centre costs.

    The paper's theorem counts no moves, which is not proven, and has a number even where its
    condition is not met.
    """
    if form != "paper":
        coefficients = torch.stack([one.coefficients_log10[form] for one in layers])
        return coefficients.amax(0), layers[0].centre_log10
    gamma, beta = (
        _largest([getattr(one, name).amax(0) for one in layers], below_floor)
        for name in ("gamma", "beta")
    )
    uncovered = layers[-1].coefficients_log10["ours"].isnan()
    coefficient = (4 * len(layers[0].beta) * gamma * beta).log10()
    return torch.where(uncovered, math.nan, coefficient), 0.0


def _largest(values: Sequence[Values], below_floor: Sequence[Tensor]) -> Values:
    """Return the largest value [B] of layers whose input is not round-off; NaN if none is."""
    lost = torch.stack([*below_floor])
    largest: Tensor = torch.stack([*values]).masked_fill(lost, -math.inf).amax(0)
    return largest.masked_fill(lost.all(0), math.nan)


def tables(
    layers: Sequence[LayerBounds],
    claims: Iterable[Claim],
    below_floor: Sequence[Tensor],
    named: dict[str, Any],
) -> dict[str, pd.DataFrame]:
    """Judge claims, and return the tables "bounds" and "bound_forms" of one model.

    Args:
        layers: all of its layers.
        claims: what is claimed of them.
        below_floor: of each layer, whether round-off is all that its input has for a residual, [B].
        named: the columns that name the model: checkpoint, weights, seed.

    Raises:
        BoundViolatedError: a measured value exceeds its bound, unless that is
            `bound_tables.UNPROVEN`, whose verdict then is "violated".
    """
    rows = [row for claim in claims for row in _judged(claim, below_floor[claim.layer - 1])]
    columns = [name for name in FORM_COLUMNS if name not in named]
    forms = over_sequences(pd.DataFrame(rows, columns=columns))
    quantities = pd.DataFrame(
        {
            "layer": range(1, len(layers) + 1),
            **{name: [getattr(one, name).amax().item() for one in layers] for name in _QUANTITIES},
        }
    ).rename(columns=_QUANTITIES)
    return {
        "bounds": by_layer(forms, quantities).assign(**named)[BOUND_COLUMNS],
        "bound_forms": forms.assign(**named)[FORM_COLUMNS],
    }


_QUANTITIES = {"beta": "beta", "gamma": "gamma", "max_oscillation": "max_D"}


def _judged(claim: Claim, below_floor: Tensor) -> Iterator[tuple[Any, ...]]:
    met = ~claim.bound.isnan() if claim.met is None else claim.met
    columns = (claim.measured, claim.bound, claim.trivial, claim.floor, met, below_floor)
    for measured, bound, trivial, floor, holds, lost in zip(
        *(column.tolist() for column in columns), strict=True
    ):
        said = verdict(
            measured, bound if holds else math.nan, trivial_log10=trivial, floor_log10=floor
        )
        if claim.normed and said.name != "vacuous":
            said = Verdict("condition not met", math.nan)
        if said.name == "violated" and (claim.form, claim.chain) != UNPROVEN:
            raise BoundViolatedError(
                f"layer {claim.layer}: {claim.form}, {claim.chain}, bounds by 10^{bound:.9g} what "
                f"is 10^{measured:.9g}: report it, for a proven bound is never exceeded"
            )
        yield (claim.layer, claim.form, claim.chain, measured, bound, trivial, *said, lost)
