import re
from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rankcollapse.tasks import Examples, TaskError
from rankcollapse.tasks.convex_hull import LENGTH, examples, hull_labels, trivial

quickly = settings(max_examples=300, deadline=None, derandomize=True)
grids = (
    st.integers(1, 6)
    .flatmap(
        lambda side: st.lists(
            st.tuples(st.integers(0, side), st.integers(0, side)), min_size=2, max_size=12
        )
    )
    .filter(lambda points: len(set(points)) > 1)
)


def area(a, b, c):
    return (b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0])


def between(p, a, b):
    inner = (a[0] - p[0]) * (b[0] - p[0]) + (a[1] - p[1]) * (b[1] - p[1])
    return area(a, b, p) == 0 and inner < 0


def in_triangle(p, a, b, c):
    signs = {np.sign(area(*side, p)) for side in ((a, b), (b, c), (c, a))}
    return area(a, b, c) != 0 and not {-1, 1} <= signs


def by_definition(points):
    """A vertex is no convex combination of other points: of two or, in the plane, of three."""
    different = set(points)
    labels = []
    for p in points:
        others = different - {p}
        inside = any(between(p, *pair) for pair in combinations(others, 2)) or any(
            in_triangle(p, *three) for three in combinations(others, 3)
        )
        labels.append(int(not inside))
    return labels


@quickly
@given(grids)
def test_agrees_with_the_definition_on_integer_grids(points):
    assert hull_labels(np.array(points, float)).tolist() == by_definition(points)


@quickly
@given(grids, st.floats(-10, 10), st.floats(-10, 10))
def test_agrees_after_a_shift_by_halves(points, x, y):
    shift = np.round([2 * x, 2 * y]) / 2
    assert hull_labels(points + shift).tolist() == by_definition(points)


def test_agrees_with_the_definition_on_the_task():
    for cloud in np.random.default_rng(0).uniform(-10, 10, (100, LENGTH, 2)):
        assert hull_labels(cloud).tolist() == by_definition([tuple(p) for p in cloud.tolist()])


@pytest.mark.parametrize(
    ("points", "labels"),
    [
        ([(0, 0), (2, 0), (2, 2), (0, 2), (1, 1)], [1, 1, 1, 1, 0]),
        ([(0, 0), (1, 0), (2, 0), (0, 2)], [1, 0, 1, 1]),  # (1, 0) is within an edge
        ([(0, 0), (2, 0), (0, 2), (2, 0), (2, 0)], [1, 1, 1, 1, 1]),
        ([(0, 0), (1, 0), (2, 0), (1, 0), (0, 2)], [1, 0, 1, 0, 1]),
        ([(1, 1), (3, 3), (0, 0), (2, 2), (0, 0)], [0, 1, 1, 0, 1]),
        ([(1, 0), (1, 5), (1, 2)], [1, 1, 0]),
        ([(4, 4), (0, 0)], [1, 1]),
        ([(4, 4)], [1]),
        ([(0.0, 0.0), (-0.0, 0.0), (1, 0), (0, 1)], [1, 1, 1, 1]),
    ],
)
def test_by_hand(points, labels):
    found = hull_labels(np.array(points, float))
    assert found.dtype == np.int64
    assert found.tolist() == labels


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("slope", [1 / 3, -7.1, 1e-9])
def test_a_line_up_to_rounding_has_two_ends(scale, slope):
    x = np.linspace(0, 1, 9)[np.random.default_rng(0).permutation(9)] * scale
    labels = hull_labels(np.stack([x, slope * x + scale / 7], axis=1))
    assert np.flatnonzero(labels).tolist() == sorted([x.argmin(), x.argmax()])


@pytest.mark.parametrize("height", [1e-3, 1e-8, 1e-11])
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_a_thin_triangle_is_no_line(height, scale):
    points = np.array([(0, 0), (1, 0), (0.5, height), (0.5, height / 2)]) * scale
    assert hull_labels(points).tolist() == [1, 1, 1, 0]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_coordinate_that_is_not_finite(value):
    message = re.escape(f"point 2 of 3 is (1.0, {value}); give finite coordinates")
    with pytest.raises(TaskError, match=message):
        hull_labels(np.array([(0, 0), (1, 0), (1, value)]))


def test_all_points_equal():
    with pytest.raises(TaskError, match=re.escape("all 4 points are (1.5, 2.0) and have no hull")):
        hull_labels(np.full((4, 2), (1.5, 2.0)))


@pytest.mark.parametrize("shape", [(0, 2), (4,), (4, 3), (2, 4, 2)])
def test_points_of_another_shape(shape):
    with pytest.raises(ValueError, match=re.escape(f"points have shape {shape}")):
        hull_labels(np.zeros(shape))


def test_examples_are_shifted_clouds_with_their_labels():
    drawn = examples([4], 400, "train")
    clouds = drawn.inputs[0].view(400, LENGTH, 2)
    assert drawn.inputs.dtype == torch.float32
    assert drawn.lengths == (LENGTH,) * 400
    labels = [hull_labels(cloud.numpy()) for cloud in clouds]
    assert torch.equal(drawn.labels[0], torch.from_numpy(np.concatenate(labels)))
    middle = clouds.mean(1)
    assert middle.mean().item() == pytest.approx(5, abs=0.5)
    # The shift, and the mean of ten points uniform in an interval of length 10.
    assert middle.std().item() == pytest.approx((3.3**2 + 100 / 12 / 10) ** 0.5, rel=0.1)
    spread = (clouds.amax(1) - clouds.amin(1)).flatten()
    assert spread.max() < 10.0001
    assert spread.mean().item() == pytest.approx(10 * 9 / 11, abs=0.2)


def test_a_seed_has_the_same_data_whatever_seeds_are_beside_it():
    alone, among = examples([3], 20, "train"), examples([1, 3], 20, "train")
    assert torch.equal(alone.inputs[0], among.inputs[1])
    assert torch.equal(alone.labels[0], among.labels[1])
    assert not torch.equal(among.inputs[0], among.inputs[1])


def test_the_splits_differ():
    train, held_out = (examples([0], 20, split).inputs for split in ("train", "held-out"))
    assert not set(train.flatten().tolist()) & set(held_out.flatten().tolist())


def test_an_unknown_split_lists_the_known():
    with pytest.raises(ValueError, match="'heldout': known are train, held-out"):
        examples([0], 5, "heldout")


def test_no_seeds_and_no_examples():
    with pytest.raises(TaskError, match="no training seeds; give at least one"):
        examples([], 5, "train")
    with pytest.raises(ValueError, match="at least one example"):
        examples([0], 0, "train")


def test_trivial_by_hand():
    def labelled(*rows):
        labels = torch.tensor(rows)
        return Examples(torch.zeros(*labels.shape, 2), labels, (labels.shape[1],))

    train = labelled([1, 1, 0], [1, 0, 0])
    assert trivial(train, labelled([1, 0, 0, 0], [1, 0, 0, 0])).tolist() == [0.25, 0.75]


def test_trivial_is_the_majority_of_the_task():
    # Measured with the published code: 0.596.
    accuracy = trivial(examples([0], 2000, "train"), examples([0], 300, "held-out"))
    assert accuracy.item() == pytest.approx(0.596, abs=0.03)
