from dataclasses import replace

import pytest
import torch

from rankcollapse import circle_runs
from rankcollapse.circle_runs import RECIPES, STEPS, Circle, run_cell, run_circle
from rankcollapse.san import NetworkError, classify, forward, initialise
from rankcollapse.task_tables import CIRCLE_COLUMNS, TRAJECTORY_COLUMNS
from rankcollapse.tasks import circle
from rankcollapse.training import Recipe, Step

SHORT = Recipe(epochs=1, batch=100, learning_rate=1e-3)
SEEDS = [4, 0]


class Undropped:
    """Dropout that leaves nothing out."""

    def prepare(self, _places):
        return torch.ones


@pytest.fixture(scope="module")
def run():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(circle_runs, "WIDTHS", (8, 16))
        patch.setattr(circle_runs, "STEPS", 50)
        return run_circle("as-published", SEEDS, shown=0, recipe=SHORT)


def test_every_cell_has_a_row_for_each_seed(run):
    ends, _ = run
    assert list(ends.columns) == CIRCLE_COLUMNS
    assert ends[["variant", "width", "seed"]].values.tolist() == [
        [variant, width, seed]
        for variant in ("san", "san_skip", "san_mlp")
        for width in (8, 16)
        for seed in SEEDS
    ]
    assert set(ends["reading"]) == {"as-published"}
    assert (ends["collapsed"] == (ends["final_distance"] < 0.05)).all()
    assert (ends["one_step_error"] > 0).all()
    assert ends["one_step_error"].nunique() == len(ends)


def test_the_trajectories_are_those_of_the_seed_shown(run):
    ends, steps = run
    assert list(steps.columns) == TRAJECTORY_COLUMNS
    assert len(steps) == 3 * 2 * 50 * 2
    assert set(steps["seed"]) == {0}
    for (variant, width), cell in steps.groupby(["variant", "width"]):
        assert cell["step"].tolist() == [step for step in range(50) for _ in (0, 1)]
        assert cell["point"].tolist() == [0, 1] * 50
        points = torch.tensor(cell[["x", "y"]].values).view(50, 2, 2)
        assert torch.equal(points[0].float(), circle.items()[0][0])
        row = ends[(ends["variant"] == variant) & (ends["width"] == width) & (ends["seed"] == 0)]
        distance = (points[-1, 0] - points[-1, 1]).norm().item()
        assert row["final_distance"].item() == pytest.approx(distance, rel=1e-4)


def test_the_first_points_drawn_are_almost_opposite(run):
    _, steps = run
    first = steps[steps["step"] == 0][["x", "y"]].values[:2]
    assert first == pytest.approx(torch.tensor([[0.3, 0], [-0.3, 0.0019]]).numpy(), abs=2e-5)


def test_the_seed_shown_must_be_one_of_the_runs():
    with pytest.raises(ValueError, match=r"^seed 7 is to be shown, but the seeds are \[4, 0\]$"):
        run_circle("as-published", SEEDS, shown=7, recipe=SHORT)


def test_a_reading_that_is_not_known_is_refused():
    with pytest.raises(ValueError, match="did you mean 'as-described'"):
        run_circle("as-describe", SEEDS, shown=0, recipe=SHORT)


def test_a_seed_twice_is_refused():
    with pytest.raises(NetworkError, match="each once"):
        run_circle("as-published", [1, 1], shown=1, recipe=SHORT)


def test_the_published_recipe():
    assert RECIPES["as-published"] == Recipe(epochs=70, batch=30, learning_rate=1e-5)
    assert circle_runs.WIDTHS == (32, 64, 128)
    assert STEPS == 300


@pytest.mark.parametrize(
    ("reading", "variant", "residual", "mlp", "accumulates"),
    [
        ("as-published", "san", True, False, False),
        ("as-published", "san_skip", True, False, True),
        ("as-published", "san_mlp", True, True, False),
        ("as-described", "san", False, False, False),
        ("as-described", "san_skip", True, False, False),
        ("as-described", "san_mlp", False, True, False),
    ],
)
def test_what_the_variants_are(reading, variant, residual, mlp, accumulates):
    cell = Circle(reading, variant, 8)
    network = cell.network
    assert (network.heads, network.depth, network.width, network.classes) == (2, 1, 8, 2)
    assert (cell.residual, network.mlp, cell.accumulates) == (residual, mlp, accumulates)
    parameters = initialise(network, SEEDS)
    inputs = circle.items()[0][:3].expand(2, -1, -1, -1)
    states = forward(network, parameters, inputs.flatten(1, 2), (2, 2, 2), residual=residual)
    expected = classify(parameters, states[-1]).view(2, 3, 2, 2)
    assert torch.equal(cell.predict(parameters, inputs), expected)


@pytest.mark.parametrize("variant", ["san", "san_skip"])
@pytest.mark.parametrize("reading", ["as-published", "as-described"])
def test_outputs_become_inputs_and_as_published_the_skip_adds_them_to_a_state(reading, variant):
    cell = Circle(reading, variant, 8)
    parameters = initialise(cell.network, SEEDS)
    first = circle.items()[0][:1].expand(2, -1, -1, -1)
    drawn, state = [first], first
    for _ in range(STEPS - 1):
        output = cell.predict(parameters, state)
        adds = (reading, variant) == ("as-published", "san_skip")
        state = state + output if adds else output
        drawn.append(output)
    points = circle_runs._recur(cell, parameters, circle.items()[0])
    torch.testing.assert_close(points, torch.cat(drawn, 1).transpose(0, 1), rtol=0, atol=1e-6)


@pytest.mark.parametrize("batch", [30, 100])
def test_as_published_the_skip_learns_from_the_sum_with_the_batch_before(batch):
    inputs, targets = circle.items()
    parameters = initialise(Circle("as-published", "san", 8).network, SEEDS)
    for variant in ("san", "san_skip"):
        cell = Circle("as-published", variant, 8)
        loss = circle_runs._loss(cell, batch, inputs, targets)
        for start, count in ((0, batch), (batch, batch), (480, 19)):
            chosen = torch.arange(start, start + count)
            x = inputs[chosen]
            if variant == "san_skip" and start:
                x = x + inputs[start - batch : start - batch + count]
            predicted = cell.predict(parameters, x.expand(2, -1, -1, -1))
            expected = (predicted - targets[chosen]).square().sum((1, 2, 3))
            losses, _ = loss(parameters, Step(chosen, 0, 0), Undropped())
            torch.testing.assert_close(losses, expected, rtol=1e-5, atol=1e-6)


def test_the_one_step_error_is_a_mean_distance():
    cell = Circle("as-described", "san", 8)
    inputs, targets = circle.items()
    parameters = initialise(cell.network, SEEDS)
    for name in ("classifier.weight", "classifier.bias"):
        parameters[name].zero_()
    parameters["classifier.bias"][1] = torch.tensor([0.0, 0.4])
    errors = circle_runs._Kept(cell, inputs, targets).error(parameters)
    from_above = (targets.flatten(0, 1) - torch.tensor([0.0, 0.4])).norm(dim=1).mean().item()
    assert errors.tolist() == pytest.approx([0.3, from_above], rel=1e-5)


def test_a_seed_keeps_what_it_was_when_it_first_had_learned(monkeypatch):
    monkeypatch.setattr(circle, "LEARNED", 0.31)
    monkeypatch.setattr(circle_runs, "LOOK_EVERY", 2)
    cell = Circle("as-described", "san", 8)
    kept = circle_runs._Kept(cell, *circle.items())
    parameters = initialise(cell.network, SEEDS)
    parameters["classifier.weight"].zero_()
    good, bad = [0.0, 0.0], [0.0, 0.4]  # constant predictions, 0.3 and more from the circle

    def look(epoch, *predictions):
        parameters["embed.norm.gain"] = torch.full((2, 8), float(epoch))
        parameters["classifier.bias"] = torch.tensor(predictions)
        return kept.look(parameters)

    assert not look(1, good, good)  # nobody looks
    assert not look(2, good, bad)
    assert not look(3, good, good)
    assert not look(4, bad, bad)
    assert not look(5, bad, good)
    assert look(6, bad, good)
    taken = kept.take(parameters)
    assert taken["embed.norm.gain"][:, 0].tolist() == [2, 6]
    assert taken["classifier.bias"].tolist() == [good, good]


LEARNED = 0.03
EASY = Recipe(epochs=40, batch=100, learning_rate=5e-3)


@pytest.fixture
def easy(monkeypatch):
    """Let networks have learned what a short training reaches, and count its epochs."""
    monkeypatch.setattr(circle, "LEARNED", LEARNED)
    monkeypatch.setattr(circle_runs, "LOOK_EVERY", 2)
    counts = []
    real = circle_runs._Kept.look

    def look(self, parameters):
        counts.append(self.epochs)
        return real(self, parameters)

    monkeypatch.setattr(circle_runs._Kept, "look", look)
    return counts


def test_as_described_each_seed_ends_when_it_has_learned_whoever_is_beside_it(easy):
    cell = Circle("as-described", "san_skip", 16)
    together = run_cell(cell, [0, 1, 2], EASY)
    epochs = [len(easy)]
    assert (together.error < LEARNED).all()
    for index in range(3):
        easy.clear()
        alone = run_cell(cell, [index], EASY)
        epochs.append(len(easy))
        assert alone.error.item() == pytest.approx(together.error[index].item(), abs=1e-5)
        torch.testing.assert_close(alone.points[:, 0], together.points[:, index], rtol=0, atol=1e-4)
        # Kept is what the training had reached in that epoch.
        then = run_cell(cell, [index], replace(EASY, epochs=len(easy)))
        assert then.error.item() == alone.error.item()
    assert epochs[0] == max(epochs[1:]) < EASY.epochs


def test_as_described_a_seed_that_never_learns_gives_its_last_parameters(monkeypatch):
    cell = Circle("as-described", "san", 8)
    few = replace(EASY, epochs=3)
    monkeypatch.setattr(circle_runs, "LOOK_EVERY", 2)
    looked = run_cell(cell, [0, 1], few)
    monkeypatch.setattr(circle_runs, "LOOK_EVERY", 100)
    unlooked = run_cell(cell, [0, 1], few)
    assert (looked.error > circle.LEARNED).all()
    assert torch.equal(looked.points, unlooked.points)
    assert torch.equal(looked.error, unlooked.error)
