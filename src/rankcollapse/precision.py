"""The smallest ratio that each floating-point precision can show.

Light on purpose: figures and verdicts need the floors and do not need torch.
"""

from rankcollapse.vocabulary import require_known

EPS = {"float32": 2.0**-23, "float64": 2.0**-52, "bfloat16": 2.0**-7}
_FLOOR_IN_EPS = 16


def precision_floor(precision: str) -> float:
    """Return the ratio below which a residual is round-off: 16 eps of the precision.

    A model whose tokens have become equal still leaves a residual of a few eps, because each
    token is rounded by itself in every layer: the published float32 curves level off between 1 and
    8 eps (1.6e-7 to 8.8e-7) and none of their means lies between that and 2.0e-6. Sixteen eps is
    the next power of two: 1.9e-6 in float32, 3.6e-15 in float64, 0.125 in bfloat16.

    Args:
        precision: "float32", "float64" or "bfloat16".

    Returns:
        The floor, a ratio without unit.

    Raises:
        ValueError: the precision is unknown; the message lists the known ones.
    """
    require_known("precision", precision, EPS)
    return _FLOOR_IN_EPS * EPS[precision]
