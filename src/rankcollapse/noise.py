"""Dropout of many networks in one pass, each seed's from its own random stream.

Shapes: S seeds.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rankcollapse.san import Dropout
from rankcollapse.tasks import stream

DROPOUT = 0.1

_KEEP = round(DROPOUT * 2**16)


class Noise:
    """Dropout masks, each seed's from its own stream.

    A mask is 0 with probability 0.1 (6554 of 65536) and 1 / 0.9 otherwise.
    """

    def __init__(self, seeds: Sequence[int]) -> None:
        self._streams = [stream(seed, "dropout") for seed in seeds]
        self._masks = torch.empty(0)
        self._used = 0

    def prepare(self, places: int) -> Dropout:
        """Draw what a step needs, and return what hands it out."""
        self._masks, self._used = torch.empty(len(self._streams), places), 0
        for mask, random in zip(self._masks.numpy(), self._streams, strict=True):
            words = random.integers(0, 2**64, size=-(-places // 4), dtype=np.uint64)
            kept = words.view(np.uint16)[:places] >= _KEEP
            np.multiply(kept, np.float32(1 / (1 - _KEEP / 2**16)), out=mask)
        return self._next

    def _next(self, shape: torch.Size) -> Tensor:
        start = self._used
        self._used += math.prod(shape[1:])
        return self._masks[:, start : self._used].view(shape)

    def state(self) -> list[Any]:
        """Return the streams' states, for JSON."""
        return [_as_json(random.bit_generator.state) for random in self._streams]

    def restore(self, states: list[Any]) -> None:
        """Go on from what `state` returned."""
        for random, state in zip(self._streams, states, strict=True):
            inner = {"state": np.array(state["state"]["state"], dtype=np.uint64)}
            random.bit_generator.state = {**state, "state": inner}


def _as_json(state: Any) -> Any:  # noqa: ANN401
    return {**state, "state": {"state": [int(word) for word in state["state"]["state"]]}}
