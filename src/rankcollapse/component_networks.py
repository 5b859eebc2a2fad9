"""The random self-attention networks of `rankcollapse.components`, many seeds at once.

A state X is carried as X = 1 row + rest, and every operation gives what follows for both without
taking a difference of nearly equal numbers. So a residual keeps its digits however small it is
next to X, where a plain pass in float64 ends in round-off at 1e-15; a cubic fall is followed for
two or three layers more, and its exponent is seen apart from its constant.

Shapes: S seeds, T tokens, D features, H heads, d = D / H, L layers. Everything is float64. Matrices
[S, in, out] multiply rows from the right. No number crosses the axis of seeds.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from math import pi, sqrt
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor
from torch.nn import functional

from rankcollapse.component_settings import Setting
from rankcollapse.tasks import stream

Heads = Float64[Tensor, "seed head token part"]
Scores = Float64[Tensor, "#seed #head token token"]

WINDOW = 4  # tokens to either side
ROTARY_BASE = 10_000.0
MLP_RATIO = 4
EPS = 1e-12  # of BERT; keeps a token of zeros from dividing by zero

_SMALL = 0.1  # below this, differences come from an integral
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(4)  # error 1e-15 of the integral over 0.1


class State(NamedTuple):
    """Tokens X = row + rest.

    Attributes:
        row: what the tokens have in common, [S, 1, D].
        rest: the remainder, [S, T, D].
    """

    row: Float64[Tensor, "seed 1 feature"]
    rest: Float64[Tensor, "seed token feature"]

    def __matmul__(self, weight: Float64[Tensor, "seed feature out"]) -> "State":
        """Return X W."""
        return State(self.row @ weight, self.rest @ weight)

    def centred(self) -> "State":
        """Return the same X with its column mean as row; the rest is then the residual."""
        mean = self.rest.mean(-2, keepdim=True)
        return State(self.row + mean, self.rest - mean)

    def tokens(self) -> Float64[Tensor, "seed token feature"]:
        """Return X."""
        return self.row + self.rest


def states(setting: Setting, seeds: Sequence[int]) -> Iterator[State]:
    """Yield the input and what leaves each layer of a network, L + 1 centred states."""
    seeds = tuple(seeds)
    tokens = _normal("input", seeds, setting.tokens, setting.width)
    if setting.positions == "absolute":
        tokens = tokens + _normal("absolute", seeds, setting.tokens, setting.width)
    x = State(torch.zeros_like(tokens[:, :1]), tokens).centred()
    bias = _score_bias(setting, seeds)
    yield x
    for layer in range(setting.depth):
        x = _layer(setting, x, bias, _weights(setting, seeds, layer))
        yield x


@lru_cache(maxsize=32)
def _normal(name: str, seeds: tuple[int, ...], *shape: int) -> Tensor:
    """Return N(0, 1), [S, *shape], each seed's from its own stream of that name and last axis.

    The first axis may be any length: what is drawn for a layer or token stays the same.
    """
    names = ("components", name, str(shape[-1]))
    drawn = [stream(seed, *names).standard_normal(shape) for seed in seeds]
    return torch.from_numpy(np.stack(drawn))


def _weights(setting: Setting, seeds: tuple[int, ...], layer: int) -> dict[str, Tensor]:
    """Return the matrices of a layer, [S, in, out]."""
    width, inner = setting.width, MLP_RATIO * setting.width
    shapes = {
        "query": (width, width, setting.query_key / sqrt(width)),
        "key": (width, width, setting.query_key / sqrt(width)),
        "value": (width, width, setting.value / sqrt(width)),
        "out": (width, width, 1 / sqrt(width)),
    }
    if setting.mlp != "none":
        shapes["mlp_in"] = (width, inner, setting.mlp_scale / sqrt(width))
        # GELU halves the second moment, about.
        shapes["mlp_out"] = (inner, width, setting.mlp_scale * sqrt(2 / inner))
    return {
        name: _normal(name, seeds, setting.depth, rows, columns)[:, layer] * scale
        for name, (rows, columns, scale) in shapes.items()
    }


def _layer(setting: Setting, x: State, bias: Scores, weights: dict[str, Tensor]) -> State:
    x = _sub_layer(setting, x, setting.skip, lambda y: _attention(setting, y, bias, weights))
    if setting.mlp == "none":
        return x
    own_skip = float(setting.mlp == "gelu_skip")
    return _sub_layer(setting, x, own_skip, lambda y: _mlp(y, weights))


def _sub_layer(
    setting: Setting, x: State, skip: float, function: Callable[[State], State]
) -> State:
    """Return after(skip x + function(before(x)))."""
    place = setting.norm.partition("_")[2]
    out = function(_normalise(setting, x) if place == "before" else x)
    mixed = State(skip * x.row + out.row, skip * x.rest + out.rest)
    return (_normalise(setting, mixed) if place == "after" else mixed).centred()


def _normalise(setting: Setting, x: State) -> State:
    """Return each token with mean square 1, for LayerNorm with its mean taken off before."""
    row, rest = x
    if setting.norm.startswith("layer"):
        row, rest = (part - part.mean(-1, keepdim=True) for part in x)
    common = (row.square().mean(-1, keepdim=True) + EPS).sqrt()  # [S, 1, 1]
    scale = ((row + rest).square().mean(-1, keepdim=True) + EPS).sqrt()  # [S, T, 1]
    growth = ((2 * row + rest) * rest).mean(-1, keepdim=True)  # of the square
    change = -growth / (common * scale * (common + scale))  # 1 / scale - 1 / common
    return State(row / common, rest / scale + row * change)


def _mlp(x: State, weights: dict[str, Tensor]) -> State:
    row, rest = x @ weights["mlp_in"]
    hidden = State(functional.gelu(row), rest * _phi(row + rest) + row * _phi_change(row, rest))
    return hidden @ weights["mlp_out"]


def _phi(x: Tensor) -> Tensor:
    """Return the normal distribution function."""
    below: Tensor = torch.special.ndtr(x)
    return below


def _phi_change(start: Tensor, step: Tensor) -> Tensor:
    """Return Phi(start + step) - Phi(start), to full precision for small steps too."""
    density = sum(
        weight / 2 * torch.exp(-(start + (1 + node) / 2 * step).square() / 2)
        for node, weight in zip(_NODES, _WEIGHTS, strict=True)
    )
    small = step * density / sqrt(2 * pi)
    return torch.where(step.abs() < _SMALL, small, _phi(start + step) - _phi(start))


def _attention(setting: Setting, x: State, bias: Scores, weights: dict[str, Tensor]) -> State:
    query, key, value = (
        tuple(_split(part, setting.heads) for part in x @ weights[name])
        for name in ("query", "key", "value")
    )  # a row [S, H, 1, d] and a rest [S, H, T, d] each
    if setting.positions == "rotary":
        scores = _rotate(query[0] + query[1]) @ _rotate(key[0] + key[1]).mT
        common = torch.zeros_like(scores[..., :1, :])
    else:  # what is constant along a row of scores drops out of the softmax
        common, scores = query[0] @ key[1].mT, query[1] @ key[1].mT
    root = sqrt(setting.width // setting.heads)
    limit, change = _softmax_change(common / root, scores / root + bias)
    out = State(_merge(value[0] + limit @ value[1]), _merge(change @ value[1]))
    return out @ weights["out"]


def _softmax_change(common: Tensor, scores: Scores) -> tuple[Tensor, Tensor]:
    """Return q = softmax(common) and softmax(common + scores) - 1 q, [S, H, 1 and T, T]."""
    limit = common.softmax(-1)
    tilt = torch.expm1(scores.clamp(-_SMALL, _SMALL))
    mean = (limit * tilt).sum(-1, keepdim=True)
    small = limit * (tilt - mean) / (1 + mean)
    is_small = (scores.abs() < _SMALL).all(-1, keepdim=True)
    return limit, torch.where(is_small, small, (common + scores).softmax(-1) - limit)


def _split(x: Tensor, heads: int) -> Heads:
    return x.reshape(*x.shape[:2], heads, -1).transpose(1, 2)


def _merge(x: Heads) -> Tensor:
    return x.transpose(1, 2).flatten(2)


def _rotate(x: Heads) -> Heads:
    """Turn the pairs of features (i, i + d/2) of token t by t / 10000^(2 i / d) radians."""
    tokens, width = x.shape[-2:]
    speed = ROTARY_BASE ** (-torch.arange(0, width, 2, dtype=x.dtype) / width)  # [d / 2]
    angle = torch.arange(tokens, dtype=x.dtype)[:, None] * speed  # [T, d / 2]
    first, second = x.chunk(2, -1)
    cos, sin = angle.cos(), angle.sin()
    return torch.cat([first * cos - second * sin, first * sin + second * cos], -1)


def _score_bias(setting: Setting, seeds: tuple[int, ...]) -> Scores:
    """Return what is added to the scores: the relative term, and -inf where the mask forbids."""
    place = torch.arange(setting.tokens)
    distance = place[:, None] - place  # [T, T], query less key
    bias = torch.zeros(1, 1, setting.tokens, setting.tokens, dtype=torch.float64)
    if setting.positions == "relative":
        table = _normal("relative", seeds, setting.heads, 2 * setting.tokens - 1)
        bias = table[:, :, distance + setting.tokens - 1]  # [S, H, T, T]
    forbidden = {
        "full": torch.zeros_like(distance, dtype=torch.bool),
        "causal": distance < 0,
        "window": distance.abs() > WINDOW,
    }
    return bias.masked_fill(forbidden[setting.mask], -torch.inf)
