from dataclasses import replace

import pytest
import torch

from rankcollapse import training
from rankcollapse.experiments import (
    SORTING_EPOCHS_AS_DESCRIBED,
    ExperimentError,
    experiment,
    first,
    reading_examples,
    run,
    training_examples,
)
from rankcollapse.san import Network, NetworkError, initialise
from rankcollapse.tasks import convex_hull, memorization, sorting
from rankcollapse.training import Recipe
from rankcollapse.training_checkpoint import TrainingError

TEXTS = [[0, 1, 2], [3, 1], [2, 2, 0, 4], [1, 4]]
TINY = {"depth": 2, "width": 12, "batch": 8, "epochs": 2}


@pytest.fixture(autouse=True)
def few_examples(monkeypatch):
    for task in (sorting, convex_hull):
        monkeypatch.setattr(task, "TRAIN", 48)
        monkeypatch.setattr(task, "HELD_OUT", 12)


def size(chosen):
    return sum(value[0].numel() for value in initialise(chosen.network, [0]).values())


def test_sorting_is_as_published():
    chosen = experiment("sorting", seeds=[0])
    assert chosen.recipe == Recipe(epochs=65, batch=30, learning_rate=1e-5)
    assert (chosen.network.heads, chosen.network.depth, chosen.network.width) == (2, 6, 48)
    # Published: 512 positions, of which eight occur, and a pooler whose output nobody uses.
    assert size(chosen) == 87_370 - (512 - 8) * 48 - (48 * 48 + 48)


def test_the_convex_hull_is_as_published():
    chosen = experiment("convex_hull", seeds=[0])
    assert chosen.recipe == Recipe(
        epochs=70, batch=30, learning_rate=1e-5, weight_decay=1e-3, schedule="milestones"
    )
    assert chosen.network == Network(heads=3, depth=6, width=84, classes=2, embedding_mlp=True)
    assert size(chosen) == 187_238 - (84 * 84 + 84)  # less the pooler


def test_memorisation_is_as_published():
    chosen = experiment("memorization", seeds=[0], vocabulary=300)
    assert chosen.recipe == Recipe(
        epochs=50, batch=8, learning_rate=3e-4, schedule="linear", clip=1.0, shuffle=True
    )
    assert (chosen.network.heads, chosen.network.depth, chosen.network.width) == (2, 6, 250)
    assert chosen.network.positions == 0
    # Published: all 30,522 word pieces of the tokenizer, and the pooler.
    assert size(chosen) == 10_022_002 - (30_522 - 300) * 250 - (250 * 250 + 250)


def test_as_described_memorisation_has_no_mlp_and_sorting_learns_to_the_end():
    for task in ("sorting", "convex_hull", "memorization"):
        published = experiment(task, seeds=[0])
        described = experiment(task, seeds=[0], reading="as-described")
        assert published.network.mlp == (task == "memorization")
        assert described.network == replace(published.network, mlp=False)
        epochs = SORTING_EPOCHS_AS_DESCRIBED if task == "sorting" else published.recipe.epochs
        assert described.recipe == replace(published.recipe, epochs=epochs)
    assert SORTING_EPOCHS_AS_DESCRIBED == 650


def test_changes_are_of_the_network_or_the_recipe_and_none_is_no_change():
    chosen = experiment(
        "sorting", seeds=[3, 1], heads=4, depth=None, epochs=7, learning_rate=1e-3, width=None
    )
    default = experiment("sorting", seeds=[3, 1])
    assert chosen.seeds == (3, 1)
    assert chosen.network == replace(default.network, heads=4)
    assert chosen.recipe == replace(default.recipe, epochs=7, learning_rate=1e-3)


@pytest.mark.parametrize(
    ("changes", "nearest"),
    [
        ({"task": "sortin"}, "sorting"),
        ({"reading": "as-publish"}, "as-published"),
        ({"training": "layerdrop"}, "layer_drop"),
        ({"epoch": 3}, "epochs"),
    ],
)
def test_what_is_not_known_is_refused_with_the_nearest(changes, nearest):
    named = {"task": "sorting", "seeds": [0]} | changes
    with pytest.raises(ValueError, match=rf"^unknown .* did you mean '{nearest}'\?$"):
        experiment(named.pop("task"), **named)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"depth": 0}, NetworkError, "depth is 0"),
        ({"heads": 5}, NetworkError, "5 heads do not divide the width 48"),
        ({"epochs": 0}, TrainingError, "epochs is 0"),
    ],
)
def test_what_cannot_be_built_or_trained_is_refused(changes, error, message):
    with pytest.raises(error, match=message):
        experiment("sorting", seeds=[0], **changes)


@pytest.mark.parametrize("task", ["sorting", "convex_hull"])
def test_networks_are_judged_on_examples_that_they_have_not_seen(task):
    chosen = experiment(task, seeds=[0, 1])
    learned, held_out = training_examples(chosen, None), reading_examples(chosen, None)
    assert (len(learned.lengths), len(held_out.lengths)) == (48, 12)
    tokens = held_out.labels.shape[1]
    assert not torch.equal(learned.inputs[:, :tokens], held_out.inputs)
    assert not torch.equal(held_out.inputs[0], held_out.inputs[1])


def test_memorisation_is_judged_on_the_first_texts_learned(monkeypatch):
    monkeypatch.setattr(memorization, "READ", 3)
    chosen = experiment("memorization", seeds=[0, 1], vocabulary=5)
    learned, read = training_examples(chosen, TEXTS), reading_examples(chosen, TEXTS)
    assert (learned.lengths, read.lengths) == ((3, 2, 4, 2), (3, 2, 4))
    assert torch.equal(learned.labels[:, :9], read.labels)
    with pytest.raises(ValueError, match="memorization needs texts"):
        training_examples(chosen, None)


def test_the_first_of_few_examples_are_all():
    examples = memorization.examples([0], TEXTS)
    assert first(examples, 9).lengths == examples.lengths
    assert first(examples, 1).inputs.tolist() == [[0, 1, 2]]


@pytest.mark.parametrize(
    ("network", "message"),
    [
        ({"classes": 1}, "there is a label 1; the network's classes are 0 to 0"),
        ({"vocabulary": 4}, "there is a token id 4; the network's vocabulary are 0 to 3"),
    ],
)
def test_a_label_or_token_that_the_network_lacks_is_refused(network, message):
    chosen = experiment("memorization", seeds=[0, 1], vocabulary=5, **TINY)
    chosen = replace(chosen, network=replace(chosen.network, **network))
    with pytest.raises(ExperimentError, match=f"^{message}$"):
        run(chosen, TEXTS)


@pytest.mark.parametrize("training", ["residual", "layer_drop", "pure"])
@pytest.mark.parametrize("task", ["sorting", "convex_hull", "memorization"])
def test_every_training_learns(task, training):
    changes = TINY | {"epochs": 20, "learning_rate": 1e-2}
    if task == "memorization":
        changes |= {"epochs": 60, "vocabulary": 5}  # one step each
    parameters, history = run(experiment(task, seeds=[0, 1], training=training, **changes), TEXTS)
    assert {len(value) for value in parameters.values()} == {2}
    quarter = changes["epochs"] // 4
    for seed in (0, 1):
        losses = [loss[seed] for loss in history.loss]
        ratio = sum(losses[-quarter:]) / sum(losses[:quarter])
        assert ratio < (0.97 if task == "sorting" else 1)
    assert all(0 <= accuracy <= 1 for epoch in history.accuracy for accuracy in epoch)


def sent_along_paths(monkeypatch, **changes):
    """Return whether each step of each epoch went along a path."""
    from rankcollapse import experiments

    kinds = []

    def noted(kind, name):
        real = getattr(experiments, name)

        def call(*arguments, **named):
            kinds.append(kind)
            return real(*arguments, **named)

        monkeypatch.setattr(experiments, name, call)

    noted(True, "walk")
    noted(False, "forward")
    run(experiment("sorting", seeds=[0], training="layer_drop", **(TINY | changes)))
    return kinds


@pytest.mark.parametrize(("batch", "steps"), [(8, 6), (10, 5)])
def test_layer_drop_sends_each_batch_along_a_path_every_other_epoch(monkeypatch, batch, steps):
    kinds = sent_along_paths(monkeypatch, batch=batch, epochs=4)
    epochs = [kinds[start : start + steps] for start in range(0, 4 * steps, steps)]
    assert len(kinds) == 4 * steps
    for step in zip(*epochs, strict=True):
        assert sorted(step) == [False, False, True, True]
    assert kinds[:4] == [False, True, False, True]


def test_a_pure_network_is_another_one(monkeypatch):
    residual, pure = (
        run(experiment("sorting", seeds=[0], training=kind, **TINY))[1]
        for kind in ("residual", "pure")
    )
    assert residual.loss != pure.loss


def test_going_on_with_another_experiment_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(training, "CHECKPOINT_SECONDS", 0)
    run(experiment("sorting", seeds=[0], **TINY), checkpoints=tmp_path / "training")
    for change, message in (
        ({"training": "pure"}, "training residual, now pure"),
        ({"reading": "as-described"}, "reading as-published, now as-described"),
        ({"heads": 3}, "heads 2, now 3"),
    ):
        other = experiment("sorting", seeds=[0], **(TINY | change))
        with pytest.raises(TrainingError, match=message):
            run(other, checkpoints=tmp_path / "training")
