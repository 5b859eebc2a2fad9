"""The names that tables, config and command line share."""

import difflib
from collections.abc import Iterable

VARIANTS = ("san", "san_mlp", "san_skip", "transformer")
READINGS = ("as-published", "as-described")
TRAININGS = ("residual", "layer_drop", "pure")
PRECISIONS = ("float32", "float64", "bfloat16")
DEVICES = ("auto", "cpu", "cuda")
FORMS = ("wikibio", "plain")
SPECTRAL_MEASURES = ("effective_rank", "stable_rank", "numerical_rank", "participation_ratio")
MEASURES = (
    "composite_ratio",
    "composite_ratio_low",
    "composite_ratio_high",
    "frobenius_ratio",
    "cosine",
    "rate",
    *SPECTRAL_MEASURES,
)


def require_known(kind: str, name: str, known: Iterable[str]) -> None:
    """Raise ValueError, with the nearest valid name, unless `name` is in `known`."""
    names = list(known)
    if name in names:
        return
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise ValueError(f"unknown {kind} {name!r}: known are {', '.join(names)}{hint}")
