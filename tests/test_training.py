import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from rankcollapse import training
from rankcollapse.experiments import experiment, run
from rankcollapse.noise import Noise
from rankcollapse.tasks import sorting
from rankcollapse.training import MILESTONES, Recipe, train
from rankcollapse.training_checkpoint import Checkpoint, TrainingError

RECIPE = Recipe(epochs=5, batch=4, learning_rate=1e-2)
DATA = torch.randn(10, 3, generator=torch.Generator().manual_seed(0))
SEEDS = (3, 8)


def start(seeds=SEEDS):
    """Return a linear map and a gain of each seed."""
    weights = [torch.randn(3, 2, generator=torch.Generator().manual_seed(s)) for s in seeds]
    return {"weight": torch.stack(weights), "gain": torch.ones(len(seeds), 2)}


def loss(parameters, step, noise):
    """Return how far the map of what dropout leaves is from the map's own input."""
    x = DATA[step.examples]
    shape = torch.Size((len(parameters["gain"]), *x.shape))
    left = x * noise.prepare(x.numel())(shape)
    y = left @ parameters["weight"] * parameters["gain"].unsqueeze(1)
    losses = (y - x[:, :2]).square().mean((1, 2))
    return losses, (losses < 1).float()


def fit(loss=loss, recipe=RECIPE, *, parameters=None, seeds=SEEDS, folder=None, **named):
    settings = named.pop("settings", {"task": "test"})
    checkpoint = Checkpoint(folder, settings) if folder else None
    return train(
        parameters or start(seeds),
        loss,
        recipe,
        examples=len(DATA),
        seeds=seeds,
        label="test",
        checkpoint=checkpoint,
        **named,
    )


def stopping(at, error=KeyboardInterrupt):
    """Return a loss that fails in its step `at`."""

    def failing(parameters, step, noise):
        if step.number == at:
            raise error
        return loss(parameters, step, noise)

    return failing


@pytest.fixture
def checkpoint(tmp_path, monkeypatch):
    """Return where a training was killed in its third epoch of five."""
    monkeypatch.setattr(training, "CHECKPOINT_SECONDS", 0)
    with pytest.raises(KeyboardInterrupt):
        fit(stopping(at=7), folder=tmp_path / "training")
    return tmp_path / "training"


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def tiny(seeds, epochs, monkeypatch, **named):
    monkeypatch.setattr(sorting, "TRAIN", 48)
    changes = {"depth": 2, "width": 8, "batch": 8, "learning_rate": 3e-3} | named
    return run(experiment("sorting", seeds=seeds, epochs=epochs, **changes))


@pytest.mark.parametrize(("epochs", "most"), [(1, 1e-6), (30, 5e-5)])
@pytest.mark.parametrize("kind", ["residual", "layer_drop", "pure"])
def test_a_seed_gives_the_same_alone_and_among_others(kind, epochs, most, monkeypatch):
    together, history = tiny([5, 0, 7], epochs, monkeypatch, training=kind)
    alone, single = tiny([0], epochs, monkeypatch, training=kind)
    for name, value in alone.items():
        difference = (together[name][1:2] - value).abs()
        if epochs > 1 and name.endswith("qkv.bias"):
            # Softmax does not see a bias of the keys: its gradient is round-off, and so is Adam's
            # way from there.
            assert float(difference[:, 8:16].max()) < 1e-2
            difference[:, 8:16] = 0
        assert float(difference.max()) < most, name
    assert [loss[1] for loss in history.loss] == pytest.approx(
        [x[0] for x in single.loss], abs=most
    )
    assert len(single.loss) == epochs
    assert len({tuple(x) for x in together["classifier.weight"].flatten(1).tolist()}) == 3


def test_training_lowers_the_loss_and_leaves_the_start_alone():
    parameters = start()
    trained, history = fit(recipe=replace(RECIPE, epochs=60), parameters=parameters)
    assert same(parameters, start())
    assert not any(value.requires_grad for value in trained.values())
    assert np.shape(history.loss) == np.shape(history.accuracy) == (60, 2)
    assert (np.array(history.loss[-1]) < np.array(history.loss[0])).all()


def test_the_history_is_the_mean_over_the_steps_of_an_epoch():
    seen = []

    def noted(*arguments):
        losses, accuracies = loss(*arguments)
        seen.append(losses.tolist())
        return losses, accuracies

    _, history = fit(noted, replace(RECIPE, epochs=2))
    assert np.shape(seen) == (6, 2)
    assert history.loss[1] == pytest.approx(np.mean(seen[3:], axis=0).tolist())


@pytest.mark.parametrize(
    "recipe",
    [RECIPE, replace(RECIPE, schedule="linear", clip=0.5, shuffle=True, weight_decay=1e-2)],
    ids=["plain", "everything"],
)
def test_a_killed_training_goes_on_to_the_same_bytes(tmp_path, monkeypatch, recipe):
    whole, history = fit(recipe=recipe)
    monkeypatch.setattr(training, "CHECKPOINT_SECONDS", 0)
    folder = tmp_path / "training"
    with pytest.raises(KeyboardInterrupt):
        fit(stopping(at=7), recipe, folder=folder)
    assert sorted(path.name for path in tmp_path.rglob("*")) == [
        "progress.json",
        "state.safetensors",
        "training",
    ]
    numbers = []

    def counted(parameters, step, noise):
        numbers.append(step.number)
        return loss(parameters, step, noise)

    resumed, again = fit(counted, recipe, folder=folder)
    assert numbers == list(range(6, 15))  # three steps an epoch, two epochs done
    assert same(resumed, whole)
    assert again == history


def test_a_network_that_was_killed_goes_on_to_the_same_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr(sorting, "TRAIN", 48)
    monkeypatch.setattr(training, "CHECKPOINT_SECONDS", 0)
    chosen = experiment("sorting", seeds=[0, 4], depth=2, width=8, epochs=4, training="layer_drop")
    whole, history = run(chosen)
    real, calls = training._Run.epoch, []

    def killed(self, epoch, *arguments):
        calls.append(epoch)
        if len(calls) == 3:
            raise KeyboardInterrupt
        real(self, epoch, *arguments)

    monkeypatch.setattr(training._Run, "epoch", killed)
    with pytest.raises(KeyboardInterrupt):
        run(chosen, checkpoints=tmp_path / "training")
    resumed, again = run(chosen, checkpoints=tmp_path / "training")
    assert calls == [0, 1, 2, 2, 3]
    assert same(resumed, whole)
    assert again == history


def test_a_short_training_leaves_no_checkpoint(tmp_path):
    fit(folder=tmp_path / "training")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"recipe": replace(RECIPE, learning_rate=0.5)}, r"learning_rate 0\.01, now 0\.5"),
        ({"recipe": replace(RECIPE, epochs=9)}, r"epochs 5, now 9"),
        ({"seeds": (3, 9)}, r"seeds \[3, 8\], now \[3, 9\]"),
        ({"settings": {"task": "other"}}, r"task test, now other"),
        ({"settings": {"task": "test", "mlp": True}}, r"mlp None, now True"),
    ],
)
def test_going_on_with_other_settings_is_refused(checkpoint, change, message):
    with pytest.raises(TrainingError, match=message) as refused:
        fit(folder=checkpoint, **change)
    assert "\n" not in str(refused.value)
    assert str(checkpoint) in str(refused.value)
    assert checkpoint.exists()


def cut(folder):
    path = folder / "state.safetensors"
    path.write_bytes(path.read_bytes()[:-9])


def edit(change):
    def damage(folder):
        path = folder / "progress.json"
        path.write_text(json.dumps(change(json.loads(path.read_text()))))

    return damage


@pytest.mark.parametrize(
    "damage",
    [
        cut,
        lambda folder: (folder / "state.safetensors").unlink(),
        lambda folder: (folder / "progress.json").write_text("{"),
        edit(lambda progress: []),
        edit(lambda progress: {**progress, "settings": 1}),
        edit(lambda progress: {k: v for k, v in progress.items() if k != "history"}),
        edit(lambda progress: {**progress, "noise": []}),
    ],
)
def test_a_damaged_checkpoint_is_refused_in_one_line(checkpoint, damage):
    damage(checkpoint)
    with pytest.raises(TrainingError, match=r"no checkpoint to go on from .* delete it") as refused:
        fit(folder=checkpoint)
    assert "\n" not in str(refused.value)
    assert str(checkpoint) in str(refused.value)


def test_divergence_names_step_and_seed_and_keeps_the_last_checkpoint(tmp_path, monkeypatch):
    monkeypatch.setattr(training, "CHECKPOINT_SECONDS", 0)

    def diverging(parameters, step, noise):
        losses, accuracies = loss(parameters, step, noise)
        return losses * torch.tensor([1, float("inf") if step.number == 7 else 1]), accuracies

    folder = tmp_path / "training"
    with pytest.raises(TrainingError, match=r"^the loss is not finite at step 7 with seed 8;"):
        fit(diverging, folder=folder)
    assert len(json.loads((folder / "progress.json").read_text())["history"]["loss"]) == 2
    resumed, _ = fit(folder=folder)
    assert same(resumed, fit()[0])


def test_a_checkpoint_is_never_of_parameters_that_are_not_finite(tmp_path, monkeypatch):
    monkeypatch.setattr(training, "CHECKPOINT_SECONDS", 0)

    def steep(parameters, step, noise):
        losses, accuracies = loss(parameters, step, noise)
        if step.number == 5:  # the last of the second epoch: its loss is finite
            zero = parameters["weight"] - parameters["weight"].detach()
            losses = losses + torch.tensor([1, 0]) * zero.sqrt().sum((1, 2))
        return losses, accuracies

    with pytest.raises(TrainingError, match=r"^the parameters are not finite at step 5 with seed"):
        fit(steep, folder=tmp_path / "training")
    progress = json.loads((tmp_path / "training/progress.json").read_text())
    assert len(progress["history"]["loss"]) == 1


@pytest.mark.parametrize("name", ["epochs", "batch"])
def test_a_training_without_a_step_is_refused(name):
    with pytest.raises(TrainingError, match=f"^{name} is 0; it must be at least 1$"):
        replace(RECIPE, **{name: 0})


def test_an_unknown_schedule_is_refused():
    with pytest.raises(ValueError, match=r"unknown schedule 'linaer': .* did you mean 'linear'"):
        replace(RECIPE, schedule="linaer")


def steady(parameters, step, _noise):
    """Return a loss of constant slope, by which Adam's steps are as long as the rate."""
    losses = parameters["weight"].sum((1, 2))
    return losses, losses.detach()


@pytest.mark.parametrize("schedule", ["constant", "linear", "milestones"])
def test_steps_are_as_long_as_the_schedule_says(schedule):
    recipe = Recipe(epochs=62, batch=5, learning_rate=1e-3, schedule=schedule)  # two steps an epoch
    trained, _ = fit(steady, recipe)
    expected = {
        "constant": 124 * 1e-3,
        "linear": 1e-3 * sum(1 - number / 124 for number in range(124)),
        "milestones": 2e-3 * (15 + 15 * 0.91 + 10 * 0.91**2 + 10 * 0.91**3 + 10 * 0.91**4)
        + 2 * 2e-3 * 0.91**5,
    }
    moved = (start()["weight"] - trained["weight"]).flatten().tolist()
    assert moved == pytest.approx([expected[schedule]] * len(moved), rel=1e-3)
    assert MILESTONES == (15, 30, 40, 50, 60)


def test_weight_decay_is_part_of_the_gradient():
    def flat(parameters, _step, _noise):
        losses = 0 * parameters["weight"].sum((1, 2))
        return losses, losses.detach()

    trained, _ = fit(flat, Recipe(epochs=1, batch=10, learning_rate=1e-3, weight_decay=0.1))
    # Of a gradient 0.1 w Adam's first step has length 1e-3, whatever w is.
    expected = start()["weight"] - 1e-3 * start()["weight"].sign()
    torch.testing.assert_close(trained["weight"], expected, rtol=0, atol=1e-6)


def test_the_gradient_is_clipped_for_each_seed_over_all_its_parameters():
    slopes = {0: ((30.0, 40.0), (0.3, 0.4)), 1: ((0.6, 0.8), (0.3, 0.4))}  # step: seed: parts

    def sloping(parameters, step, _noise):
        first, second = (torch.tensor(part) for part in zip(*slopes[step.number], strict=True))
        losses = first * parameters["weight"].sum((1, 2)) + second * parameters["gain"].sum(1)
        return losses, losses.detach()

    parameters = {"weight": torch.zeros(2, 1, 1), "gain": torch.zeros(2, 1)}
    recipe = Recipe(epochs=1, batch=5, learning_rate=1e-3, clip=1.0)
    trained, _ = fit(sloping, recipe, parameters=parameters)
    # Both gradients of a seed are the same after clipping: two steps of the whole rate.
    for value in trained.values():
        assert value.flatten().tolist() == pytest.approx([-2e-3, -2e-3], rel=1e-4)
    free, _ = fit(sloping, replace(recipe, clip=None), parameters=parameters)
    assert free["weight"].flatten()[0].item() != pytest.approx(-2e-3, rel=0.1)
    assert free["weight"].flatten()[1].item() == pytest.approx(-2e-3, rel=1e-4)


def orders(recipe):
    seen = []

    def noted(parameters, step, noise):
        seen.append((step.epoch, step.examples.tolist()))
        return loss(parameters, step, noise)

    fit(noted, recipe)
    return seen


def test_examples_come_in_order_or_shuffled_anew_each_epoch():
    in_order = [(0, [0, 1, 2, 3]), (0, [4, 5, 6, 7]), (0, [8, 9])]
    assert orders(replace(RECIPE, epochs=1)) == in_order
    shuffled = orders(replace(RECIPE, epochs=2, shuffle=True))
    first, second = ([i for at, some in shuffled if at == epoch for i in some] for epoch in (0, 1))
    assert sorted(first) == sorted(second) == list(range(10))
    assert first != second
    assert shuffled == orders(replace(RECIPE, epochs=2, shuffle=True))


def test_a_training_ends_when_it_is_told_to():
    looked = []

    def look(parameters):
        looked.append(parameters["weight"].detach().clone())
        return len(looked) == 2

    trained, history = fit(after_epoch=look)
    assert len(history.loss) == len(looked) == 2
    assert torch.equal(looked[-1], trained["weight"])


def test_dropout_keeps_nine_of_ten_and_the_mean():
    mask = Noise([0, 1]).prepare(200_000)(torch.Size((2, 200_000)))
    values = mask.unique().tolist()
    assert values[0] == 0
    assert values[1] == pytest.approx(1 / 0.9, rel=1e-4)
    assert len(values) == 2
    assert (mask > 0).double().mean(1).tolist() == pytest.approx([0.9, 0.9], abs=0.003)
    assert mask.double().mean(1).tolist() == pytest.approx([1, 1], abs=0.003)
    assert abs(float(torch.corrcoef(mask)[0, 1])) < 0.01
    assert abs(float(torch.corrcoef(torch.stack([mask[0, 1:], mask[0, :-1]]))[0, 1])) < 0.01


def test_dropout_depends_on_the_seed_and_the_step_alone():
    def masks(seeds, places=(10, 7)):
        noise = Noise(seeds)
        return [noise.prepare(count)(torch.Size((len(seeds), count))) for count in places]

    for alone, together in zip(masks([5]), masks([2, 5, 9]), strict=True):
        assert torch.equal(alone[0], together[1])
    first, second = masks([5], (64, 64))
    assert not torch.equal(first, second)
    assert not torch.equal(masks([5], (64,))[0], masks([6], (64,))[0])


def test_dropout_hands_out_what_it_drew_once():
    whole = Noise([0, 1]).prepare(24)(torch.Size((2, 24)))
    dropout = Noise([0, 1]).prepare(24)
    first, second = dropout(torch.Size((2, 3, 4))), dropout(torch.Size((2, 12)))
    assert torch.equal(torch.cat([first.flatten(1), second], 1), whole)


def test_dropout_goes_on_from_where_it_was():
    noise, other = Noise([0, 1]), Noise([0, 1])
    noise.prepare(33)
    other.restore(json.loads(json.dumps(noise.state())))
    shape = torch.Size((2, 50))
    assert torch.equal(noise.prepare(50)(shape), other.prepare(50)(shape))


def test_progress_is_told_at_the_end(capsys):
    fit()
    told = capsys.readouterr().err
    assert told.startswith("test: epoch 5 of 5, loss ")
    assert told.endswith(", 0.0 min left\n")
