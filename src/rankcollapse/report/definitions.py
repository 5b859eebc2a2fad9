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


TRAININGS = {
    "residual": "residuals",
    "layer_drop": "layer drop: every other step along one random path",
    "pure": "attention without residuals",
}

TRAINED = {
    "accuracy": "share of tokens classified rightly, mean over the training seeds. Sorting and "
    "convex hull: on held-out examples; memorisation: on the first of the texts that were learned.",
    "path of length k": "one head in k of the layers, nothing in the others. A set of paths: the "
    "sum of their states, normalised and classified; random sets of 5 or 20, mean over several "
    "draws. “All”: every single path alone, mean of their accuracies.",
    "short, long": "lengths 1 to half the layers, and those above it; the mean over these lengths. "
    "Length 0 passes no attention and counts as neither. Short minus long is taken within each "
    "training seed; sets of 20 paths, of frozen terms each length alone.",
    "residual ratio": "composite_ratio (centre: column mean) of the same states that were "
    "classified; mean over examples, draws and seeds.",
    "entire": "the whole trained network, nothing cut.",
    "trivial": "a predictor that looks at no other token: the most frequent label of the position "
    "(sorting), of all points (convex hull), of the word piece (memorisation).",
    "as published": "residual and trained normalisation are cut along the path, which computes its "
    "own attention: lost rank and unknown inputs mixed.",
    "residual kept": "the same paths of the same networks, with the residual and the trained "
    "normalisation that they were trained with.",
    "frozen": "attention weights and normalisation scales of the full forward pass; then the terms "
    "of all lengths sum to the network's output, and each length is one term of it.",
    "re-read": "as published, but the classifier alone is fitted anew to the states (a logistic "
    "regression): what was lost cannot be read back, what was only displaced can. Memorisation "
    "has no held-out text: fitted and read on the same texts, beside the same with shuffled "
    "labels.",
    "layer drop": "evaluated as published, but trained with random paths too: none is new to it.",
    "no residual": "evaluated as published, and trained that way: pure attention.",
    "share used": "of the norms of the frozen terms' residuals, that of one length; expected is "
    "its share in the number of paths. Mean over held-out examples and seeds.",
    "ends in one point": "the two points on the circle are closer than the threshold after the "
    "last step.",
    "learned the step": (
        "the mean error of one step is below half the step that is to be learned; staying in "
        "place has an error of one step."
    ),
}

CLAIM_VERDICTS = {
    "supported": "the whole 95 % interval of the effect lies above 0",
    "opposite": "it lies below 0",
    "not supported": "it holds 0",
    "one seed": "the effect is shown, but no interval is claimed",
    "not measured": "there is no training seed in this profile",
}

PATHS = {
    "terms": "attention weights, normalisation scales and MLP gates (activation(u) = u × gate) of "
    "one forward pass are held fixed; the state is then a sum of terms, one for each number of "
    "attention sub-layers that are passed. What starts at a later bias counts those that it still "
    "passes. float32; the terms sum to the state.",
    "share": "signed projection of the term's residual (column mean) on that of the last state, "
    "Frobenius product; mean over texts and seeds. The shares sum to 1.",
    "carry 90 %": "the fewest lengths that hold 90 % of the sum of the shares' magnitudes.",
    "norm, residual": "composite norm of a term, and of the term less its column mean.",
    "distance from rank one": "of a term: relative Frobenius distance to the nearest matrix of "
    "rank one. Of a product P of attention matrices: ‖P − rank₁(P)‖ / ‖P‖ in the composite norm, "
    "rank₁ by SVD, float64.",
    "cosine without a length": "of the last state with and without the term, all tokens of a "
    "text as one vector; mean over texts and seeds.",
    "cosine of two texts": "of their mean tokens; root of the mean square by which it changes, "
    "over all pairs of texts.",
    "Dobrushin's coefficient": "τ(P), half the largest 1-norm distance of two rows of P: no more "
    "than this share of the largest difference of two tokens gets through P.",
    "order": "slope of log r(l) over log r(l − 1) by least squares in each text, r: "
    "composite_ratio. 3 or 1 whatever the constants, which the rate is only as r goes to 0.",
}

BOUND_VERDICTS = {
    "holds": "the bound lies below what was there before the layer, so it says something",
    "vacuous": "it does not: the residual or the norm of the input says as much",
    "condition not met": "the theorem does not cover the layer",
    "below floor": "the bound lies below round-off, which is all that was measured",
    "violated": "the measured value exceeds the bound by more than round-off",
}

RATE_WORDS = {
    "cubic": "the interval reaches 3 ± ¼ and not 1 ± ¼: doubly exponential in depth",
    "exponential": "it reaches 1 ± ¼ and not 3 ± ¼: a constant factor a layer",
    "between": "it lies between 1 and 3 and reaches near neither",
    "neither": "it lies elsewhere, or is so wide that it reaches near both",
    "no collapse": "near 1 or below, and the ratio is not shown to fall",
    "not measured": "there is no interval",
}


def floors() -> dict[str, float]:
    """Return the floor of a ratio in each precision."""
    return {precision: precision_floor(precision) for precision in EPS}
