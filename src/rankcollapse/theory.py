"""What one self-attention layer can leave of a residual: measured quantities and their bounds.

Around a reference row x, with R = X - 1 x^T, the attention of a head is softmax(1 r^T + E) with
E = R WQK R^T / sqrt(k): what is constant along a row of scores drops out, so no key bias matters.
With q = softmax(r) its output is 1 (q R + x) W + (P - 1 q^T) R W, and the last term is a residual
of the output. Every bound here limits its composite norm, and so the residual with the best row.

Shapes: B sequences (`*batch`: any leading axes), T tokens, D features, k width of a head.
|M|_1 is the largest column sum of magnitudes, |M|_inf the largest row sum.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from rankcollapse.errors import RankCollapseError
from rankcollapse.vocabulary import require_known

Matrices = Float[Tensor, "*batch token feature"]
Attention = Float64[Tensor, "*batch token token"]
Rows = Float64[Tensor, "*batch token"]
Values = Float64[Tensor, "*batch"]
REFERENCES = ("mean", "median")


@dataclass(frozen=True)
class Head:
    """The weights of one head; leading axes of any of them are batched.

    Attributes:
        query: W_Q, [D, k].
        key: W_K, [D, k].
        value_output: W = W_V W_O, [D, D'].
        query_bias: b_Q, [k]; none if not given.
        position: what is added to the scores already divided by sqrt(k), [*batch, T, T]; -inf
            masks a key. With all rows the same (padding) every bound applies; otherwise only
            Dobrushin's.
        probabilities: attention weights [*batch, T, T] of a head whose scores are not of this
            form; only Dobrushin's bound applies. They replace the position term.
    """

    query: Tensor
    key: Tensor
    value_output: Tensor
    query_bias: Tensor | None = None
    position: Tensor | None = None
    probabilities: Tensor | None = None


@dataclass(frozen=True)
class State:
    """A state and its distance from a reference row x; every field is float64.

    Attributes:
        row: x, [*batch, 1, D].
        residual: R = X - 1 x^T, [*batch, T, D].
        columns: |R|_1, [*batch].
        rows: |R|_inf, [*batch].
        peak: the largest entry of R in magnitude, [*batch].
        oscillation: the largest max - min of a column, [*batch].
        diameter: the largest 1-norm distance of two tokens, [*batch].
        norm_log10: log10 of the composite norm of X, [*batch].
        centre_log10: log10 of how much longer R can be than with any other row: 2 (1 - 1/T) for
            the mean, sqrt(3) for the median; 1 for a row that is given, which is taken to be the
            one that the bound of the layer before is about.
    """

    row: Tensor
    residual: Tensor
    columns: Tensor
    rows: Tensor
    peak: Tensor
    oscillation: Tensor
    diameter: Tensor
    norm_log10: Tensor
    centre_log10: float

    @property
    def residual_log10(self) -> Values:
        """Return log10 of the composite norm of R, [*batch]."""
        return (self.columns.log10() + self.rows.log10()) / 2


@dataclass(frozen=True)
class HeadQuantities:
    """What the bounds need of one head at one state; every field is float64.

    Attributes:
        attention: P, [*batch, T, T].
        log_reference: natural logarithm of q, [*batch, T].
        shift: P - 1 q^T, without cancellation where it is small, [*batch, T, T].
        oscillations: D_i = max_j E_ij - min_j E_ij, [*batch, T].
        spread: S = max_jj' sum_i |E_ij - E_ij'|, [*batch].
        interaction: |WQK|_1 / sqrt(k), [] or [*batch].
        columns: |W|_1 of value times output, [] or [*batch].
        rows: |W|_inf of value times output, [] or [*batch].
        tau: Dobrushin coefficient of P, [*batch].
        output: the residual (P - 1 q^T) R W, [*batch, T, D'].
        covered: whether P is softmax(1 r^T + E), as the cubic bounds need.
    """

    attention: Tensor
    log_reference: Tensor
    shift: Tensor
    oscillations: Tensor
    spread: Tensor
    interaction: Tensor
    columns: Tensor
    rows: Tensor
    tau: Tensor
    output: Tensor
    covered: bool

    @property
    def max_oscillation(self) -> Values:
        """Return D = max_i D_i, [*batch]."""
        return self.oscillations.amax(-1)

    @property
    def gamma(self) -> Values:
        """Return sqrt(sum_i D_i / S), at least 1, [*batch]; 1 where the scores are constant."""
        total = self.oscillations.sum(-1)
        return torch.where(self.spread > 0, (total / self.spread).sqrt(), 1.0).clamp_min(1.0)

    @property
    def beta(self) -> Values:
        """Return |WQK|_1 times the composite norm of W, over sqrt(k), [] or [*batch]."""
        return self.interaction * (self.columns * self.rows).sqrt()


def measure_state(x: Matrices, *, reference: str | Tensor = "mean") -> State:
    """Measure the states' distance from a reference row.

    Args:
        x: states [*batch, T, D].
        reference: "mean", "median" (of an even number: halfway) or a row [*batch, D].

    Raises:
        RankCollapseError: a state is not finite.
        ValueError: the reference is unknown; the message lists the known ones.
    """
    x = _finite("state", x)
    row, centre = _reference_row(x, reference)
    residual = x - row
    magnitude = residual.abs()
    return State(
        row=row,
        residual=residual,
        columns=column_norm(residual),
        rows=row_norm(residual),
        peak=magnitude.amax((-2, -1)),
        oscillation=(residual.amax(-2) - residual.amin(-2)).amax(-1),
        diameter=diameter(residual),
        norm_log10=composite_log10(x),
        centre_log10=math.log10(centre) if centre else -math.inf,
    )


def measure_head(state: State, head: Head) -> HeadQuantities:
    """Measure one head at a state.

    Raises:
        RankCollapseError: a number is not finite, or a token has all its keys masked.
        ValueError: both a position term and probabilities are given.
    """
    if head.position is not None and head.probabilities is not None:
        raise ValueError("give a position term or probabilities, not both")
    query, key = _finite("query weights", head.query), _finite("key weights", head.key)
    value_output = _finite("value-times-output weights", head.value_output)
    scores, log_reference = _scores(state, query, key, head.query_bias)
    position = _position(head.position)
    covered = head.probabilities is None and (position is None or _same_rows(position))
    attention, shift, log_reference = _attention(
        scores, log_reference, position, head.probabilities
    )
    seen = _seen_columns(scores, log_reference) if covered else scores
    return HeadQuantities(
        attention=attention,
        log_reference=log_reference,
        shift=shift,
        oscillations=seen.amax(-1) - seen.amin(-1),
        spread=diameter(seen.mT),
        interaction=column_norm(query @ key.mT) / math.sqrt(key.shape[-1]),
        columns=column_norm(value_output),
        rows=row_norm(value_output),
        tau=diameter(shift) / 2,
        output=shift @ state.residual @ value_output,
        covered=covered,
    )


def column_norm(x: Matrices) -> Values:
    """Return |x|_1, [*batch]."""
    return x.abs().sum(-2).amax(-1)


def row_norm(x: Matrices) -> Values:
    """Return |x|_inf, [*batch]."""
    return x.abs().sum(-1).amax(-1)


def composite_log10(x: Matrices) -> Values:
    """Return log10 of the composite norm, [*batch]; -inf for a matrix of zeros."""
    return (column_norm(x).log10() + row_norm(x).log10()) / 2


def diameter(x: Matrices) -> Values:
    """Return the largest 1-norm distance of two rows, [*batch]."""
    return torch.cdist(x, x, p=1.0).amax((-2, -1))


def _finite(what: str, x: Tensor) -> Tensor:
    x = x.detach().double()
    bad = int((~x.isfinite()).sum())
    if bad:
        raise RankCollapseError(
            f"{what}: {bad} of {x.numel()} values are NaN or infinite; no bound"
        )
    return x


def _reference_row(x: Tensor, reference: str | Tensor) -> tuple[Tensor, float]:
    if isinstance(reference, Tensor):
        return _finite("reference row", reference)[..., None, :], 1.0
    require_known("reference", reference, REFERENCES)
    tokens = x.shape[-2]
    if reference == "mean":
        return x.mean(-2, keepdim=True), 2 * (1 - 1 / tokens)
    ordered = x.sort(-2).values
    low, high = (tokens - 1) // 2, tokens // 2
    return (ordered[..., [low], :] + ordered[..., [high], :]) / 2, math.sqrt(3)


def _scores(state: State, query: Tensor, key: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return E [*batch, T, T] and r [*batch, T]."""
    keys = state.residual @ key / math.sqrt(key.shape[-1])  # [*batch, T, k]
    anchor = state.row @ query  # [*batch, 1, k]
    if bias is not None:
        anchor = anchor + _finite("query bias", bias)[..., None, :]
    scores = state.residual @ query @ keys.mT
    shared = (anchor @ keys.mT).squeeze(-2)
    return _finite("scores", scores), _finite("scores", shared)


def _position(position: Tensor | None) -> Tensor | None:
    if position is None:
        return None
    position = position.detach().double()
    if position.isnan().any() or (position == math.inf).any():
        raise RankCollapseError("the position term has NaN or +inf: only -inf may mask a key")
    masked = (position == -math.inf).all(-1)
    if masked.any():
        token = int(masked.nonzero()[0, -1])
        raise RankCollapseError(f"token {token} has all its keys masked: drop it or unmask a key")
    return position


def _same_rows(position: Tensor) -> bool:
    return bool((position == position[..., :1, :]).all())


def _attention(
    scores: Tensor, shared: Tensor, position: Tensor | None, probabilities: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return P [*batch, T, T], P - 1 q^T and log q [*batch, T].

    Where P is not of the cubic bounds' form, q is its mean row: any row may be the reference.
    """
    if position is not None and _same_rows(position):
        shared, position = shared + position[..., 0, :], None
    if position is not None:
        probabilities = torch.softmax(shared[..., None, :] + scores + position, -1)
    if probabilities is None:
        log_reference = torch.log_softmax(shared, -1)
        shift = _tilt(scores, log_reference)
        return log_reference.exp()[..., None, :] + shift, shift, log_reference
    attention = _finite("attention probabilities", probabilities)
    mean = attention.mean(-2)
    return attention, attention - mean[..., None, :], mean.log()


def _tilt(scores: Tensor, log_reference: Tensor) -> Tensor:
    """Return softmax(log q + E) - q, exact in relative terms where E is small."""
    reference = log_reference.exp()[..., None, :]
    centred = scores - (reference * scores).sum(-1, keepdim=True)
    small = centred.abs().amax(-1, keepdim=True) < 0.5
    near = torch.where(small, centred, 0.0)
    log_total = torch.log1p((reference * near.expm1()).sum(-1, keepdim=True))
    far = torch.softmax(log_reference[..., None, :] + scores, -1) - reference
    return torch.where(small, reference * (near - log_total).expm1(), far)


def _seen_columns(scores: Tensor, log_reference: Tensor) -> Tensor:
    """Return E with each masked column replaced by one that is seen."""
    seen = log_reference > -math.inf
    first = seen.int().argmax(-1)[..., None, None].expand(*scores.shape[:-1], 1)
    return torch.where(seen[..., None, :], scores, scores.gather(-1, first))
