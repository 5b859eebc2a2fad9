"""The self-attention network of the trained experiments, for many seeds at once.

Post-norm blocks of BERT without an MLP (or with one), computed for S networks of one shape in one
pass: parameters, tokens and masks have a leading axis of seeds, and no number crosses it.

Shapes: S seeds, N tokens of all examples one after the other, T tokens of one example, D features,
A heads, d = D / A, L layers, C classes, V token ids, P positions.

Source: Dong et al. 2021, section 4.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from rankcollapse.block import EPS, Group, Masks, attention_block, groups_of
from rankcollapse.errors import RankCollapseError
from rankcollapse.products import linear as product
from rankcollapse.tasks import stream

INITIAL_STD = 0.02

Parameters = dict[str, Tensor]
# Returns the mask of the next place that has dropout, [S, ...].
Dropout = Callable[[torch.Size], Tensor]


class NetworkError(RankCollapseError):
    """A network cannot be built."""


@dataclass(frozen=True)
class Network:
    """The shape of a network.

    Attributes:
        heads: A.
        depth: L.
        width: D.
        classes: C, or the coordinates of an output point.
        vocabulary: V, or 0 for inputs that are points of the plane.
        positions: P learned absolute positions, or 0 for none.
        embedding_mlp: whether the embedding of points has a GELU and a second linear map.
        mlp: whether each block has an MLP (D, D, D).
    """

    heads: int
    depth: int
    width: int
    classes: int
    vocabulary: int = 0
    positions: int = 0
    embedding_mlp: bool = False
    mlp: bool = False

    def __post_init__(self) -> None:
        """Raise NetworkError for a network that cannot be built."""
        for name in ("heads", "depth", "width", "classes"):
            if getattr(self, name) < 1:
                raise NetworkError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.width % self.heads:
            raise NetworkError(
                f"{self.heads} heads do not divide the width {self.width}; "
                f"take a width that is a multiple of {self.heads}"
            )

    @property
    def head_width(self) -> int:
        """Return d."""
        return self.width // self.heads


def initialise(network: Network, seeds: Sequence[int]) -> Parameters:
    """Draw the parameters of networks, each from its own seed.

    Weights are N(0, 0.02^2), biases 0, gains 1; value and output projection, raw parameters in
    the published code, are U(-1/sqrt(D), 1/sqrt(D)) and so four times as large as query and key.

    Returns:
        Float32 tensors [S, ...]; matrices [S, in, out] multiply rows from the right; `qkv` holds
        query, key and value side by side, head j in columns j d to (j + 1) d of each.

    Raises:
        NetworkError: there are no seeds, or a seed occurs twice.
    """
    if not seeds or len(set(seeds)) < len(seeds):
        raise NetworkError(f"seeds are {list(seeds)}; give at least one, each once")
    drawn = [_initialise(network, stream(seed, "initialisation")) for seed in seeds]
    return {name: torch.stack([one[name] for one in drawn]) for name in drawn[0]}


def _initialise(network: Network, random: np.random.Generator) -> Parameters:
    width = network.width

    def normal(*shape: int) -> Tensor:
        return torch.from_numpy(random.standard_normal(shape, np.float32)) * INITIAL_STD

    def uniform(*shape: int) -> Tensor:
        drawn = torch.from_numpy(random.random(shape, np.float32))
        return (2 * drawn - 1) / sqrt(width)

    parameters: Parameters = {}
    if network.vocabulary:
        parameters["embed.word"] = normal(network.vocabulary, width)
        if network.positions:
            parameters["embed.position"] = normal(network.positions, width)
    incoming = width if network.vocabulary else 2
    parameters |= _linear("embed.linear", normal(incoming, width))
    if network.embedding_mlp:
        parameters |= _linear("embed.hidden", normal(width, width))
    parameters |= _norm("embed.norm", width)
    for layer in range(network.depth):
        name = f"layer{layer}"
        query_key, value = normal(width, 2 * width), uniform(width, width)
        parameters |= _linear(f"{name}.qkv", torch.cat([query_key, value], dim=1))
        parameters |= _linear(f"{name}.out", uniform(width, width))
        parameters |= _norm(f"{name}.norm", width)
        if network.mlp:
            parameters |= _linear(f"{name}.mlp_in", normal(width, width))
            parameters |= _linear(f"{name}.mlp_out", normal(width, width))
            parameters |= _norm(f"{name}.mlp_norm", width)
    parameters |= _linear("classifier", normal(width, network.classes))
    return parameters


def _linear(name: str, weight: Tensor) -> Parameters:
    return {f"{name}.weight": weight, f"{name}.bias": torch.zeros(weight.shape[1])}


def _norm(name: str, width: int) -> Parameters:
    return {f"{name}.gain": torch.ones(width), f"{name}.bias": torch.zeros(width)}


def linear(parameters: Parameters, name: str, x: Tensor) -> Tensor:
    """Return x W + b of each seed, [S, N, in] -> [S, N, out]."""
    return product(x, parameters[f"{name}.weight"], parameters[f"{name}.bias"])


def normalise(x: Tensor) -> Tensor:
    """Return each token with mean 0 and variance 1."""
    return functional.layer_norm(x, x.shape[-1:], eps=EPS)


def affine_norm(parameters: Parameters, name: str, x: Tensor) -> Tensor:
    """Return the layer normalisation with the trained gain and bias of each seed."""
    gain, bias = parameters[f"{name}.gain"], parameters[f"{name}.bias"]
    return torch.addcmul(bias.unsqueeze(1), normalise(x), gain.unsqueeze(1))


def embed(
    network: Network, parameters: Parameters, inputs: Tensor, lengths: Sequence[int]
) -> Tensor:
    """Return what enters the first block, without dropout.

    Args:
        network: the shape.
        parameters: those of S seeds.
        inputs: token ids [S, N], or points [S, N, 2].
        lengths: tokens of each example.

    Returns:
        [S, N, D].
    """
    if network.vocabulary:
        x = _rows(parameters["embed.word"], inputs)
        if network.positions:
            where = torch.cat([torch.arange(length) for length in lengths])
            x = x + parameters["embed.position"][:, where]
    else:
        x = inputs
    x = linear(parameters, "embed.linear", x)
    if network.embedding_mlp:
        x = linear(parameters, "embed.hidden", functional.gelu(x))
    return affine_norm(parameters, "embed.norm", x)


def _rows(table: Tensor, ids: Tensor) -> Tensor:
    """Return rows [S, N, D] of tables [S, V, D]."""
    offsets = torch.arange(len(table)).unsqueeze(1) * table.shape[1]  # [S, 1]
    return functional.embedding(ids + offsets, table.flatten(0, 1))


def forward(
    network: Network,
    parameters: Parameters,
    inputs: Tensor,
    lengths: Sequence[int],
    *,
    residual: bool = True,
    dropout: Dropout | None = None,
) -> list[Tensor]:
    """Return the states of the whole network: the embedding, then one after each block.

    Args:
        network: the shape.
        parameters: those of S seeds.
        inputs: token ids [S, N], or points [S, N, 2].
        lengths: tokens of each example.
        residual: whether attention has its skip connection.
        dropout: None to leave nothing out.

    Returns:
        L + 1 tensors [S, N, D].
    """
    groups = groups_of(lengths)
    x = embed(network, parameters, inputs, lengths)
    states = [x if dropout is None else x * dropout(x.shape)]
    for layer in range(network.depth):
        masks = None if dropout is None else _masks(network, states[-1].shape, groups, dropout)
        x = attention_block(
            states[-1],
            [parameters[f"layer{layer}.{name}"] for name in _BLOCK],
            network.heads,
            groups,
            residual=residual,
            masks=masks,
        )
        states.append(mlp(network, parameters, layer, x, dropout))
    return states


_BLOCK = ("qkv.weight", "qkv.bias", "out.weight", "out.bias", "norm.gain", "norm.bias")


def mlp(
    network: Network,
    parameters: Parameters,
    layer: int,
    x: Tensor,
    dropout: Dropout | None = None,
) -> Tensor:
    """Return x after the MLP of a block, with its skip and normalisation; x if there is none."""
    if not network.mlp:
        return x
    inner = functional.gelu(linear(parameters, f"layer{layer}.mlp_in", x))
    y = linear(parameters, f"layer{layer}.mlp_out", inner)
    if dropout is not None:
        y = y * dropout(y.shape)
    return affine_norm(parameters, f"layer{layer}.mlp_norm", y + x)


def classify(parameters: Parameters, x: Tensor, dropout: Dropout | None = None) -> Tensor:
    """Return the logits [S, N, C] of states [S, N, D]."""
    return linear(parameters, "classifier", x if dropout is None else x * dropout(x.shape))


def dropout_places(network: Network, lengths: Sequence[int]) -> int:
    """Return how many numbers of one seed dropout may set to zero in one pass of `forward`."""
    tokens = sum(lengths) * network.width
    attention = network.heads * sum(length**2 for length in lengths)
    blocks = network.depth * (attention + tokens * (2 if network.mlp else 1))
    return tokens + blocks + tokens


def _masks(network: Network, shape: torch.Size, groups: Sequence[Group], dropout: Dropout) -> Masks:
    attention = []
    for group in groups:
        matrices = group.examples * network.heads
        drawn = dropout(torch.Size((shape[0], matrices, group.tokens, group.tokens)))
        attention.append(drawn.flatten(0, 1))
    return Masks(attention, dropout(shape))
