"""Circle: two points step along a circle, each to its next point.

Source: Dong et al. 2021, section 4.2 and figure 3.
"""

import math

import torch
from torch import Tensor

COUNT = 1000
RADIUS = 0.3
APART = 499  # points between the two of an item: half a circle, less one
STEP = 2 * RADIUS * math.sin(math.pi / COUNT)  # from a point to the next
LEARNED = STEP / 2  # largest one-step error; staying in place has one of a whole step
COLLAPSED = 0.05


def points(count: int = COUNT, radius: float = RADIUS) -> Tensor:
    """Return points at equal angles on a circle around 0, counter-clockwise from (radius, 0).

    Returns:
        [count, 2], float32.
    """
    angle = 2 * math.pi * torch.arange(count, dtype=torch.float64) / count
    return (radius * torch.stack([angle.cos(), angle.sin()], dim=1)).float()


def items() -> tuple[Tensor, Tensor]:
    """Return pairs of almost opposite points, and where both are one step later.

    Item i has point i, on the upper half of the circle, and point i + 499, on the lower.

    Returns:
        Inputs and targets, each [499, 2, 2]: item, point, coordinate.
    """
    circle = points()
    pairs = torch.stack([circle[: APART + 1], circle[APART : 2 * APART + 1]], dim=1)
    return pairs[:-1], pairs[1:]


def collapsed(final_distance: float, threshold: float = COLLAPSED) -> bool:
    """Return whether two points that began opposite each other have met.

    Args:
        final_distance: between them after the last step, in units of the plane.
        threshold: they have met if they are nearer than this.
    """
    return final_distance < threshold
