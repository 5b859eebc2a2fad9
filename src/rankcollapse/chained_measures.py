"""How close a stochastic matrix is to rank one, and how much of a difference gets through it.

Shapes: T tokens.
"""

import numpy as np
import torch
from jaxtyping import Float, Float64
from numpy.typing import NDArray
from scipy.spatial.distance import pdist
from torch import Tensor
from torch.nn.functional import normalize

from rankcollapse.measures import composite_norm

Matrices = Float[Tensor, "matrix token token"]
Values = Float64[Tensor, " matrix"]

_SETTLED = 1e-13  # change of a unit vector in one step
_STEPS = 16
_SLACK = 1e-9  # relative, far above the rounding of a distance of two rows


def rank_one_distance(matrices: Matrices) -> Values:
    """Return ||P - rank1(P)|| / ||P|| in the composite norm, rank1(P) being the nearest by SVD.

    The leading singular vectors are found by multiplying with P and its transpose in turn, until a
    step moves them by 1e-13 or less. They start from the column sums, which, as the leading vector
    of a non-negative matrix, have no negative entry, so they cannot miss it. Matrices that need
    more than 16 steps get a full SVD. This takes a quarter of the time of SVDs, and near rank one
    it is more exact: the vectors of an SVD leave about 5e-15, more than the floor of 16 eps.

    Args:
        matrices: non-negative, none of zeros, [*, T, T]. If the largest singular value is not
            simple, there are several nearest matrices, and the column sums decide.

    Returns:
        The distances [*], right to 1e-9 of their value or 16 eps, whichever is larger.

    Source: Dong et al. 2021, reference notebook.
    """
    x = matrices.double()
    right = normalize(x.sum(-2), dim=-1)[..., None]  # [*, T, 1]
    for _ in range(_STEPS):
        left = normalize(x @ right, dim=-2)
        back = x.mT @ left
        scale = torch.linalg.vector_norm(back, dim=-2, keepdim=True)
        change = torch.linalg.vector_norm(back / scale - right, dim=-2)[..., 0]  # [*]
        right = back / scale
        if (change <= _SETTLED).all():
            break
    nearest = scale * left * right.mT
    unsettled = change > _SETTLED
    if unsettled.any():
        u, s, v = torch.linalg.svd(x[unsettled])
        nearest[unsettled] = s[:, :1, None] * u[:, :, :1] * v[:, :1]
    return composite_norm(x - nearest) / composite_norm(x)


def dobrushin(matrices: Matrices) -> Values:
    """Return tau(P) = max over two rows of half the 1-norm of their difference.

    No more than this share of the largest difference of two tokens gets through P.

    Args:
        matrices: [*, T, T].

    Returns:
        The coefficients [*], 0 (rank one) to 1 if the rows are distributions.
    """
    coefficients = [_half_diameter(x) for x in matrices.double().numpy()]
    return torch.tensor(coefficients, dtype=torch.float64)


def _half_diameter(rows: NDArray[np.float64]) -> float:
    """Return half the largest distance of two rows.

    Compared are only those that, by their distances to the mean row, may be further apart than a
    far pair found in two sweeps.
    """
    radius = np.abs(rows - rows.mean(axis=0)).sum(axis=1)
    end = radius.argmax()
    for _ in range(2):
        distance = np.abs(rows - rows[end]).sum(axis=1)
        end = distance.argmax()
    found = float(distance.max())
    rivals = rows[radius + radius.max() >= (1 - _SLACK) * found]
    return max(found, float(pdist(rivals, "cityblock").max(initial=0.0))) / 2
