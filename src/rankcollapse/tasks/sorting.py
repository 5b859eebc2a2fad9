"""Sorting: eight digits in, the same digits in ascending order out.

Shapes: S training seeds, B examples, T = 8 tokens, C = 10 classes.

Source: Dong et al. 2021, section 4.1 and figure 4.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from rankcollapse.tasks import SPLITS, Examples, streams
from rankcollapse.vocabulary import require_known

LENGTH = 8
CLASSES = 10  # the digits: also the token ids
TRAIN = 1000
HELD_OUT = 200


def examples(seeds: Sequence[int], count: int, split: str) -> Examples:
    """Draw sequences of digits, independent and uniform; repetitions occur.

    Args:
        seeds: of the trainings; each has its own sequences.
        count: B.
        split: "train" or "held-out"; each has a random stream of its own.

    Returns:
        Ids [S, 8 B]; the label of position j of a sequence is its j-th smallest digit.

    Raises:
        TaskError: there are no seeds.
        ValueError: the split is not known, or there are no examples.
    """
    require_known("split", split, SPLITS)
    drawn = [
        random.integers(CLASSES, size=(count, LENGTH))
        for random in streams(seeds, "sorting", split)
    ]
    digits = np.stack(drawn)  # [S, B, T]
    ordered = np.sort(digits, axis=-1)
    packed = [torch.from_numpy(array.reshape(len(array), -1)) for array in (digits, ordered)]
    return Examples(packed[0], packed[1], (LENGTH,) * count)


def trivial(train: Examples, test: Examples) -> Tensor:
    """Return how well the position alone tells the label.

    Args:
        train: gives the most frequent label of each position; of equals, the smallest.
        test: where these are compared to the labels.

    Returns:
        The share of right tokens of each seed [S], float64.
    """
    votes = (_by_position(train)[..., None] == np.arange(CLASSES)).sum(1)  # [S, T, C]
    guess = votes.argmax(-1)  # [S, T]
    return torch.from_numpy((_by_position(test) == guess[:, None]).mean((1, 2)))


def _by_position(examples: Examples) -> np.ndarray:
    return examples.labels.numpy().reshape(len(examples.labels), -1, LENGTH)  # [S, B, T]
