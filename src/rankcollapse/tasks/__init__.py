"""The tasks of the trained experiments: their data, and what needs no network to reach.

Shapes: S training seeds, N tokens of all examples one after the other, T tokens of one example,
B examples.

Source: Dong et al. 2021, section 4.
"""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rankcollapse.errors import RankCollapseError

SPLITS = ("train", "held-out")


class TaskError(RankCollapseError):
    """A task's data cannot be made from what was given."""


@dataclass(frozen=True)
class Examples:
    """Examples of S training seeds, packed: there is no padding.

    Attributes:
        inputs: token ids [S, N], int64, or points of the plane [S, N, 2], float32.
        labels: [S, N], int64.
        lengths: tokens of each example, the same for every seed; they sum to N.
    """

    inputs: Tensor
    labels: Tensor
    lengths: tuple[int, ...]

    def __post_init__(self) -> None:
        """Raise ValueError unless the parts fit together."""
        tokens, labels = sum(self.lengths), tuple(self.labels.shape)
        if not self.lengths or min(self.lengths) < 1:
            raise ValueError("give at least one example, each of at least one token")
        if len(labels) != 2 or labels[0] < 1 or labels[1] != tokens:
            raise ValueError(f"labels have shape {labels}; the lengths ask for [seeds, {tokens}]")
        if tuple(self.inputs.shape) not in (labels, (*labels, 2)):
            raise ValueError(
                f"inputs have shape {tuple(self.inputs.shape)}; the labels ask for {labels} ids "
                f"or {(*labels, 2)} coordinates"
            )
        expected = torch.int64 if self.inputs.ndim == 2 else torch.float32
        if self.labels.dtype != torch.int64 or self.inputs.dtype != expected:
            raise ValueError(
                f"inputs are {self.inputs.dtype}, labels {self.labels.dtype}; "
                "ids and labels must be torch.int64, coordinates torch.float32"
            )


def stream(seed: int, *names: str) -> np.random.Generator:
    """Return the random stream of that name of a training seed.

    Streams of other names or seeds share no numbers with it: data, initialisation and dropout of
    a seed depend neither on one another nor on which other seeds there are.

    Raises:
        ValueError: the seed is negative.
    """
    name = zlib.crc32("/".join(names).encode())
    return np.random.Generator(np.random.SFC64(np.random.SeedSequence([seed, name])))


def streams(seeds: Sequence[int], *names: str) -> list[np.random.Generator]:
    """Return the stream of that name of each seed.

    Raises:
        TaskError: there are no seeds.
    """
    if not seeds:
        raise TaskError("there are no training seeds; give at least one")
    return [stream(seed, *names) for seed in seeds]
