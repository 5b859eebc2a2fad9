"""What stops the collapse: random self-attention networks with one piece changed, or many.

Light on purpose: figures and claims need the names and columns and do not need torch; the networks
are in `rankcollapse.component_networks`.

All weights are N(0, 1/fan-in) times a scale, without biases. `baseline` is attention alone: no
skip, MLP, normalisation, positions or mask; 4 heads, 32 features, 24 tokens N(0, 1), 12 layers.
Everything is float64, and the residual is carried beside what the tokens have in common, so that
ratios far below the round-off of a plain pass are right. In a layer, with s the scale of the skip:

    x <- after(s x + SA(before(x)));  with an MLP then  x <- after(m x + MLP(before(x)))

`before` and `after` are the normalisation (no gain, no bias) or nothing. The MLP's own skip m is 0
for "gelu", as the paper's text has "SAN + MLP", and 1 for "gelu_skip", as its figures have it.

A seed draws the same numbers in every network, so that networks are compared seed by seed, and its
numbers depend neither on the other seeds nor on the depth.

Source: Dong et al. 2021, section 3; Wu et al. 2024 (arXiv 2405.18781).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from rankcollapse.component_settings import NAMES, Setting
from rankcollapse.errors import RankCollapseError

COLUMNS = ["condition", "factor", "level", "seed", "layer", "ratio", "rate"]
RESOLVED = 1e-150  # below this ratio the squares in a composite norm underflow

FACTORS: dict[str, tuple[Any, ...]] = {
    "skip": (0.0, 0.1, 0.5, 1.0),
    **NAMES,
    "query_key": (0.25, 0.5, 1.0, 2.0, 4.0, 8.0),
    "value": (0.25, 0.5, 1.0, 2.0, 4.0, 8.0),
    "mlp_scale": (0.5, 1.0, 2.0, 4.0),
    "heads": (1, 2, 4, 16),
    "width": (16, 32, 64, 128),
    "tokens": (8, 24, 64),
    "depth": (12, 24, 48),
}
# The networks of which one piece at a time is changed, and the pieces.
CONDITIONS = {
    "baseline": Setting(),
    "post-norm": Setting(norm="layer_after"),
    "skip": Setting(skip=1.0),
    "pre-norm with skip": Setting(skip=1.0, norm="layer_before"),
    "large post-norm": Setting(norm="layer_after", query_key=8.0),
    "window": Setting(mask="window"),
}
CHANGED = {
    "baseline": tuple(FACTORS)[:-1],  # collapses long before its last layer
    "post-norm": ("skip", "mlp", "positions", "mask", "query_key"),
    "skip": ("norm", "positions", "mask", "query_key", "value", "depth"),
    "pre-norm with skip": ("mlp", "positions", "mask", "query_key", "value", "depth"),
    "large post-norm": ("depth",),
    "window": ("depth",),
}
FACTORIAL = "factorial"
CROSSED: dict[str, tuple[Any, ...]] = {"skip": (0.0, 1.0), **NAMES}  # all their combinations


def networks() -> Iterator[tuple[str, str, str, Setting]]:
    """Yield condition, factor, level and network of the whole study.

    A level is written "skip=0.5"; one of the factorial names all crossed factors, "|" between.
    The scale of the MLP is changed in a network that has an MLP, without a skip of its own.
    """
    for condition, base in CONDITIONS.items():
        for factor in CHANGED[condition]:
            changed = replace(base, mlp="gelu") if factor == "mlp_scale" else base
            for level in FACTORS[factor]:
                yield condition, factor, name({factor: level}), replace(changed, **{factor: level})
    for combination in product(*CROSSED.values()):
        levels = dict(zip(CROSSED, combination, strict=True))
        yield FACTORIAL, FACTORIAL, name(levels), Setting(**levels)


def name(levels: Mapping[str, Any]) -> str:
    """Return how the table calls levels of factors: "skip=0.5", "skip=0|mlp=none"."""
    written = {
        factor: f"{level:g}" if isinstance(level, float) else level
        for factor, level in levels.items()
    }
    return "|".join(f"{factor}={level}" for factor, level in written.items())


def study(seeds: Sequence[int]) -> pd.DataFrame:
    """Run every network of `networks` and return its ratios.

    Args:
        seeds: each once; a seed is one draw of input and weights.

    Returns:
        `COLUMNS`, a row for each network, seed and layer 0..L: the composite ratio (centre: column
        mean), and its rate log r_l / log r_{l-1}, missing where either ratio is below `RESOLVED` or
        nothing has collapsed yet (`measures.rate`).

    Raises:
        ValueError: there are no seeds, or a seed occurs twice.
        RankCollapseError: a network overflows.
    """
    if not seeds or len(set(seeds)) < len(seeds):
        raise ValueError(f"seeds are {list(seeds)}; give at least one, each once")
    measured: dict[Setting, tuple[np.ndarray, np.ndarray]] = {}
    frames = []
    for condition, factor, level, setting in networks():
        if setting not in measured:
            measured[setting] = measure(setting, seeds)
        ratios, rates = measured[setting]  # [L + 1, S] each
        rows = {
            "condition": condition,
            "factor": factor,
            "level": level,
            "seed": np.repeat(np.asarray(seeds), len(ratios)),
            "layer": np.tile(np.arange(len(ratios)), len(seeds)),
            "ratio": ratios.T.ravel(),
            "rate": rates.T.ravel(),
        }
        frames.append(pd.DataFrame(rows))
    return pd.concat(frames, ignore_index=True)[COLUMNS]


def measure(setting: Setting, seeds: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Return ratios and rates of one network, [L + 1, S] each.

    Raises:
        RankCollapseError: it overflows.
    """
    from torch import nan, stack  # only for those who compute

    from rankcollapse.component_networks import states
    from rankcollapse.measures import composite_norm, rate

    ratios = stack(
        [composite_norm(x.rest) / composite_norm(x.tokens()) for x in states(setting, seeds)]
    )  # [L + 1, S]
    if not ratios.isfinite().all():
        raise RankCollapseError(f"{setting} overflows; give it smaller weights or fewer layers")
    return ratios.numpy(), rate(ratios.where(ratios >= RESOLVED, nan)).numpy()
