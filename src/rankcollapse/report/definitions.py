"""What every number of the report means."""

from typing import NamedTuple

from rankcollapse.precision import EPS, precision_floor


class Measure(NamedTuple):
    """A measure of the tables: its name there, its formula, what it takes as given, its floor."""

    name: str
    formula: str
    meaning: str
    floor: str


_RATIO_FLOOR = "16 eps of the precision"

MEASURES = (
    Measure(
        "composite_ratio",
        "‖X − 1x̄ᵀ‖ / ‖X‖,  ‖A‖ = √(max column sum of |A| × max row sum of |A|)",
        "The published measure. Centre x̄: column mean. The composite norm obeys no triangle "
        "inequality, so the ratio may exceed 1; 0 means that all tokens are the same.",
        _RATIO_FLOOR,
    ),
    Measure(
        "composite_ratio_low",
        "√(max column sum of |X − 1mᵀ| × ½ max distance of two tokens) / ‖X‖",
        "Proven lower bound of the same ratio with the centre that minimises it; m: column "
        "median, distance: sum of |differences|.",
        _RATIO_FLOOR,
    ),
    Measure(
        "composite_ratio_high",
        "min(‖X − 1x̄ᵀ‖, ‖X − 1mᵀ‖) / ‖X‖",
        "Proven upper bound of the same: the better of column mean and column median.",
        _RATIO_FLOOR,
    ),
    Measure(
        "frobenius_ratio",
        "‖X − 1x̄ᵀ‖ / ‖X‖,  ‖·‖: Frobenius norm",
        "The centre that minimises this norm is the column mean itself. At most 1.",
        _RATIO_FLOOR,
    ),
    Measure(
        "rate",
        "log r(l) / log r(l − 1),  r: composite_ratio",
        "About 3: each layer cubes the residual (doubly exponential in depth); about 1: it only "
        "shrinks by a factor. Undefined unless r(l − 1) < ½ and both ratios are above the floor.",
        "none of its own: undefined below that of the ratio",
    ),
    Measure(
        "cosine",
        "mean of xᵢ·xⱼ / (|xᵢ| |xⱼ|) over pairs i ≠ j",
        "1 when all tokens point the same way. No centre.",
        "1 − cosine below half the squared floor of a ratio, or below that of float64",
    ),
    Measure(
        "effective_rank",
        "exp(−Σ p log p),  p: singular values over their sum",
        "Roy and Vetterli 2007. Between 1 and min(tokens, features). No centre.",
        "second singular value below the floor of a ratio, times the first",
    ),
    Measure(
        "stable_rank",
        "Σ σᵢ² / σ₁²",
        "σᵢ: singular values, σ₁ the largest. At least 1. No centre.",
        "as effective_rank",
    ),
    Measure(
        "numerical_rank",
        "number of σᵢ > max(tokens, features) × eps × σ₁",
        "eps: of the precision. No centre.",
        "none: it counts above round-off",
    ),
    Measure(
        "participation_ratio",
        "(Σ v)² / Σ v²,  v: squared singular values of X − 1x̄ᵀ",
        "Over how many directions the tokens spread around the column mean.",
        "frobenius_ratio below its floor",
    ),
    Measure(
        "repeated_share",
        "1 − different pieces / pieces",
        "Of the text, before the model and without special tokens; noted at layer 0.",
        "none",
    ),
)

STATUSES = {
    "ok": "a value above the floor",
    "below floor": "round-off of the forward pass: kept, but neither compared nor fitted",
    "one token": "a sequence of one token has no residual",
    "zero matrix": "all states are 0, so ratios have no denominator",
    "undefined": "the formula has no value here, as the rate where nothing has collapsed yet",
    "not finite": "the states hold NaN or infinity",
}

VERDICT_MEANINGS = {
    "reproduced": "the published mean lies inside our 95 % interval",
    "not reproduced": "it lies outside",
    "below precision floor": "the published mean is itself round-off of float32: not compared",
    "not measured": "no run of these weights in this profile, or too few seeds",
}

# Variant: as published, as described. What stands in the paper's text was not always what was run.
ABLATIONS = {
    "san": (
        "no skip around attention, its LayerNorm stays; the MLP sub-layer goes with its LayerNorm. "
        "ALBERT: its linear maps become identities, activation, skip and last LayerNorm stay",
        "the same; ALBERT: the attention sub-layer's output is the block's output",
    ),
    "san_mlp": ("no skip around attention; the MLP keeps its own skip", "no skip anywhere"),
    "san_skip": ("the skip around attention stays, the MLP goes as in SAN", "MLP as in SAN"),
    "transformer": ("nothing is removed", "the same"),
}


def floors() -> dict[str, float]:
    """Return the floor of a ratio in each precision."""
    return {precision: precision_floor(precision) for precision in EPS}
