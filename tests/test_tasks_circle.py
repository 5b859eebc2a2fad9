import math

import pytest
import torch

from rankcollapse.tasks.circle import COUNT, RADIUS, STEP, collapsed, items, points


def test_points_go_round_the_circle():
    assert points(4, 2.0).numpy() == pytest.approx(
        torch.tensor([[2.0, 0], [0, 2], [-2, 0], [0, -2]]).numpy(), abs=1e-6
    )
    circle = points()
    assert circle.shape == (1000, 2)
    assert circle.dtype == torch.float32
    assert circle.norm(dim=1).numpy() == pytest.approx(0.3, abs=1e-7)


def test_a_step_is_the_distance_of_neighbours():
    assert pytest.approx(0.001885, abs=1e-6) == STEP
    circle = points().double()
    distance = (circle - circle.roll(1, 0)).norm(dim=1)
    assert distance.numpy() == pytest.approx(STEP, abs=1e-7)


def test_the_first_item_is_almost_antipodal():
    inputs, _ = items()
    assert inputs[0].numpy() == pytest.approx(
        torch.tensor([[0.3, 0.0], [-0.3, 0.0019]]).numpy(), abs=2e-5
    )


def test_targets_are_one_step_on():
    inputs, targets = items()
    circle = points()
    assert inputs.shape == targets.shape == (499, 2, 2)
    for item in (0, 1, 250, 498):
        assert torch.equal(inputs[item], circle[[item, item + 499]])
        assert torch.equal(targets[item], circle[[item + 1, item + 500]])
    turn = torch.atan2(targets[..., 1], targets[..., 0]) - torch.atan2(
        inputs[..., 1], inputs[..., 0]
    )
    assert (turn % (2 * math.pi)).numpy() == pytest.approx(2 * math.pi / COUNT, abs=1e-5)


def test_one_token_has_the_upper_half_the_other_the_lower():
    inputs, _ = items()
    assert (inputs[:, 0, 1] >= 0).all()
    assert (inputs[2:, 1, 1] < 0).all()


def test_collapse_is_being_nearer_than_the_threshold():
    assert collapsed(0.049)
    assert not collapsed(0.05)
    assert not collapsed(2 * RADIUS)
    assert collapsed(0.09, threshold=0.1)
    assert not collapsed(math.nan)
