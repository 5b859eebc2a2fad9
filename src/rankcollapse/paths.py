"""Paths through a self-attention network: how many there are, and what each contributes.

A path takes one head in each layer or, where the network has skip connections, may pass a layer
by. Its length is the number of layers that it does not pass by.

Shapes: L layers, H heads, T tokens, D features.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float64
from scipy.special import gammaln

Array = np.ndarray[Any, np.dtype[np.float64]]


def path_length_proportions(heads: int, layers: int) -> Float64[Array, " length"]:
    """Return which share of all paths has each length, with skip connections.

    Args:
        heads: H, heads in each layer, at least 1.
        layers: L, at least 1.

    Returns:
        C(L, k) H^k / (1 + H)^L for the lengths k = 0 to L; they sum to 1.

    Raises:
        ValueError: there are no heads or no layers.

    Source: Dong et al. 2021, section 3 and figure 5.
    """
    if heads < 1 or layers < 1:
        raise ValueError(f"got {heads} heads and {layers} layers; both must be at least 1")
    length = np.arange(layers + 1)
    # (1 + H)^L is about 5e190 for GPT-3 and overflows for what is larger: stay in logarithms.
    choices = gammaln(layers + 1) - gammaln(length + 1) - gammaln(layers - length + 1)
    logarithm = choices + length * np.log(heads) - layers * np.log1p(heads)
    return np.asarray(np.exp(logarithm), dtype=np.float64)


@dataclass(frozen=True)
class SmallSan:
    """The weights of a network of attention layers and nothing else: no MLP, norm or bias.

    Attributes:
        query: W_Q of each layer and head.
        key: W_K of each layer and head.
        value: W of each layer and head: the product of the value and the output projection.

    Source: Dong et al. 2021, section 2.
    """

    query: Float64[Array, "layer head feature feature"]
    key: Float64[Array, "layer head feature feature"]
    value: Float64[Array, "layer head feature feature"]


@dataclass(frozen=True)
class Path:
    """One path and its share of the network's output.

    Attributes:
        heads: the head taken in each layer, first layer first, from 0; None passes the layer by.
        length: the number of layers that are not passed by.
        term: what comes through: the P of each head on the left, its W on the right.
    """

    heads: tuple[int | None, ...]
    length: int
    term: Float64[Array, "token feature"]


def random_san(
    *, layers: int, heads: int, tokens: int, features: int, seed: int
) -> tuple[SmallSan, Float64[Array, "token feature"]]:
    """Draw a network and an input for it.

    Args:
        layers: L.
        heads: H.
        tokens: T.
        features: D; queries and keys have as many.
        seed: the same seed gives the same numbers.

    Returns:
        The network, its weights normal with variance 1/D, and the input X, standard normal.
    """
    generator = np.random.default_rng(seed)
    x = generator.standard_normal((tokens, features))
    shape = (3, layers, heads, features, features)
    query, key, value = generator.standard_normal(shape) / np.sqrt(features)
    return SmallSan(query=query, key=key, value=value), x


def forward(
    san: SmallSan, x: Float64[Array, "token feature"], *, skip: bool
) -> tuple[Float64[Array, "layer head token token"], Float64[Array, "token feature"]]:
    """Run the network.

    Args:
        san: the network.
        x: the input X.
        skip: whether each layer adds its input to its output.

    Returns:
        The attention probabilities P of each layer and head, and the output.
    """
    probabilities = []
    for query, key, value in zip(san.query, san.key, san.value, strict=True):
        scores = (x @ query) @ (x @ key).swapaxes(-1, -2) / np.sqrt(query.shape[-1])  # [H, T, T]
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        attention = weights / weights.sum(-1, keepdims=True)
        heads = (attention @ x @ value).sum(0)  # [T, D]
        x = x + heads if skip else heads
        probabilities.append(attention)
    return np.stack(probabilities), x


def path_terms(san: SmallSan, x: Float64[Array, "token feature"], *, skip: bool) -> list[Path]:
    """Split the network's output into the terms of its paths, which sum to it.

    The attention probabilities are those of the whole network's forward pass and held fixed; the
    output is then linear in X, and its expansion has one term for each path.

    Args:
        san: the network; the number of paths is exponential in its depth.
        x: the input X.
        skip: whether the network has skip connections.

    Returns:
        All (H + 1)^L paths with skip connections, H^L without; the first layer's choice varies
        slowest, passing by comes first.

    Source: Dong et al. 2021, theorems 2.1 and 3.1.
    """
    probabilities, _ = forward(san, x, skip=skip)
    paths = [Path(heads=(), length=0, term=x)]
    for attention, value in zip(probabilities, san.value, strict=True):
        paths = [
            longer for path in paths for longer in _extensions(path, attention, value, skip=skip)
        ]
    return paths


def _extensions(
    path: Path,
    attention: Float64[Array, "head token token"],
    value: Float64[Array, "head feature feature"],
    *,
    skip: bool,
) -> list[Path]:
    passed_by = [Path((*path.heads, None), path.length, path.term)] if skip else []
    taken = [
        Path((*path.heads, head), path.length + 1, p @ path.term @ w)
        for head, (p, w) in enumerate(zip(attention, value, strict=True))
    ]
    return passed_by + taken
