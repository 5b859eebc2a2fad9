"""Convex hull: which of ten points of the plane are vertices of the hull of all ten.

Shapes: S training seeds, B examples, T points of one example.

Source: Dong et al. 2021, section 4.1 and figure 4.
"""

from collections.abc import Sequence

import numpy as np
import torch
from scipy.spatial import ConvexHull
from torch import Tensor

from rankcollapse.tasks import SPLITS, Examples, TaskError, streams
from rankcollapse.vocabulary import require_known

LENGTH = 10
CLASSES = 2
TRAIN = 10_000
HELD_OUT = 300
SIDE = 10.0
SHIFT_STD = 3.3

_FLAT = 1e-12  # width over length of a cloud, up to which it is a line


def examples(seeds: Sequence[int], count: int, split: str) -> Examples:
    """Draw clouds of points, uniform in a square that is shifted at random for each cloud.

    Args:
        seeds: of the trainings; each has its own clouds.
        count: B.
        split: "train" or "held-out"; each has a random stream of its own.

    Returns:
        Coordinates [S, 10 B, 2]; a point's label is 1 if it is a vertex of its cloud's hull,
        decided before the coordinates are rounded to float32.

    Raises:
        TaskError: there are no seeds.
        ValueError: the split is not known, or there are no examples.
    """
    require_known("split", split, SPLITS)
    inputs, labels = [], []
    for random in streams(seeds, "convex_hull", split):
        clouds = random.uniform(0, SIDE, (count, LENGTH, 2))
        clouds += random.normal(0, SHIFT_STD, (count, 1, 2))
        inputs.append(clouds.reshape(-1, 2))
        labels.append(np.array([hull_labels(cloud) for cloud in clouds], np.int64).ravel())
    coordinates = torch.from_numpy(np.stack(inputs).astype(np.float32))
    return Examples(coordinates, torch.from_numpy(np.stack(labels)), (LENGTH,) * count)


def hull_labels(points: np.ndarray) -> np.ndarray:
    """Return which points are vertices of the convex hull of all.

    A point within an edge is none. Of several points at one place, all are or none is. Points on
    a line, to 1e-12 of its length, have its two ends as vertices; a single point is one.

    Args:
        points: [T, 2].

    Returns:
        1 for a vertex and 0 for another point [T], int64.

    Raises:
        TaskError: a coordinate is not finite, or several points are all at one place.
        ValueError: the shape is another.
    """
    points = np.asarray(points, dtype=np.float64)
    if points.ndim != 2 or points.shape[1] != 2 or not len(points):
        raise ValueError(f"points have shape {points.shape}; give [T, 2], T at least 1")
    broken = np.flatnonzero(~np.isfinite(points).all(1))
    if len(broken):
        x, y = points[broken[0]].tolist()
        raise TaskError(
            f"point {broken[0]} of {len(points)} is ({x}, {y}); give finite coordinates"
        )
    places, place = np.unique(points, axis=0, return_inverse=True)  # [P, 2], [T]
    if len(places) == 1 < len(points):
        x, y = places[0].tolist()
        raise TaskError(
            f"all {len(points)} points are ({x}, {y}) and have no hull; give two that differ"
        )
    labels = np.zeros(len(places), np.int64)
    labels[_vertices(places)] = 1
    return labels[place]


def _vertices(places: np.ndarray) -> np.ndarray:
    """Return the indices of the vertices among different points."""
    first = _farthest(places, places[0])
    second = _farthest(places, places[first])
    offsets = places - places[first]
    length = offsets[second]
    areas = length[0] * offsets[:, 1] - length[1] * offsets[:, 0]
    # Qhull fails on a line; on what is not quite one, it needs the origin near the points.
    if np.abs(areas).max() <= _FLAT * (length**2).sum():
        return np.array([first, second])
    return ConvexHull(offsets).vertices


def _farthest(places: np.ndarray, origin: np.ndarray) -> int:
    return int(((places - origin) ** 2).sum(1).argmax())


def trivial(train: Examples, test: Examples) -> Tensor:
    """Return how well the more frequent label of `train` predicts those of `test`.

    Returns:
        The share of right tokens of each seed [S], float64.
    """
    majority = 2 * train.labels.sum(1, keepdim=True) > train.labels.shape[1]  # [S, 1]
    return (test.labels == majority).double().mean(1)
