"""The trained experiments: which network learns what, and how.

Shapes: S seeds, N tokens of all examples.

Source: Dong et al. 2021, section 4; hyperparameters from the published code.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from rankcollapse.errors import RankCollapseError
from rankcollapse.noise import Noise
from rankcollapse.sampled_paths import draw_paths, walk
from rankcollapse.san import (
    Network,
    Parameters,
    classify,
    dropout_places,
    embed,
    forward,
    initialise,
    normalise,
)
from rankcollapse.tasks import Examples, convex_hull, memorization, sorting, stream
from rankcollapse.training import History, Loss, Recipe, Step, train
from rankcollapse.training_checkpoint import Checkpoint
from rankcollapse.vocabulary import READINGS, TRAININGS, require_known

TASKS = ("sorting", "convex_hull", "memorization")


class ExperimentError(RankCollapseError):
    """Examples are not a network's, or a trained network is missing or damaged."""


@dataclass(frozen=True)
class Experiment:
    """What is trained.

    Attributes:
        task: "sorting", "convex_hull" or "memorization".
        reading: "as-published" or "as-described": sorting until it has learned, memorisation
            without MLPs.
        training: "residual" as published; "layer_drop": every other step, in turn for the same
            examples, sends them along one random path as evaluation does; "pure": attention
            without its skip connection.
        seeds: one network each.
        network: the shape.
        recipe: the optimiser's settings.
    """

    task: str
    reading: str
    training: str
    seeds: tuple[int, ...]
    network: Network
    recipe: Recipe


_NETWORKS = {
    "sorting": Network(heads=2, depth=6, width=48, classes=10, vocabulary=10, positions=8),
    "convex_hull": Network(heads=3, depth=6, width=84, classes=2, embedding_mlp=True),
    "memorization": Network(heads=2, depth=6, width=250, classes=2, vocabulary=1, mlp=True),
}
_RECIPES = {
    "sorting": Recipe(epochs=65, batch=30, learning_rate=1e-5),
    "convex_hull": Recipe(
        epochs=70, batch=30, learning_rate=1e-5, weight_decay=1e-3, schedule="milestones"
    ),
    "memorization": Recipe(
        epochs=50, batch=8, learning_rate=3e-4, schedule="linear", clip=1.0, shuffle=True
    ),
}
SORTING_EPOCHS_AS_DESCRIBED = 650


def experiment(
    task: str,
    *,
    seeds: Sequence[int],
    reading: str = "as-published",
    training: str = "residual",
    vocabulary: int | None = None,
    **changes: Any,  # noqa: ANN401 (of a network or a recipe)
) -> Experiment:
    """Return a task's experiment.

    Args:
        task: of `TASKS`.
        seeds: one network each.
        reading: of `READINGS`.
        training: of `TRAININGS`.
        vocabulary: word pieces of the texts to memorise.
        changes: fields of `Network` (heads, depth, width) or `Recipe` (epochs, learning_rate)
            that differ from the published ones; None for the published one.

    Raises:
        ValueError: an unknown task, reading, training or change.
        RankCollapseError: a network that cannot be built.
    """
    require_known("task", task, TASKS)
    require_known("reading", reading, READINGS)
    require_known("training", training, TRAININGS)
    network, recipe = _NETWORKS[task], _RECIPES[task]
    if reading == "as-described":
        network = replace(network, mlp=False)
        if task == "sorting":
            recipe = replace(recipe, epochs=SORTING_EPOCHS_AS_DESCRIBED)
    if vocabulary is not None:
        network = replace(network, vocabulary=vocabulary)
    for name in changes:
        require_known("change", name, [*asdict(network), *asdict(recipe)])
    given = {name: value for name, value in changes.items() if value is not None}
    of_network = {name: value for name, value in given.items() if name in asdict(network)}
    of_recipe = {name: value for name, value in given.items() if name in asdict(recipe)}
    return Experiment(
        task,
        reading,
        training,
        tuple(seeds),
        replace(network, **of_network),
        replace(recipe, **of_recipe),
    )


def training_examples(chosen: Experiment, texts: Sequence[Sequence[int]] | None) -> Examples:
    """Return what the networks of an experiment learn."""
    if chosen.task == "sorting":
        return sorting.examples(chosen.seeds, sorting.TRAIN, "train")
    if chosen.task == "convex_hull":
        return convex_hull.examples(chosen.seeds, convex_hull.TRAIN, "train")
    return memorization.examples(chosen.seeds, _texts(texts))


def reading_examples(chosen: Experiment, texts: Sequence[Sequence[int]] | None) -> Examples:
    """Return what they are judged on: held-out examples, or the first 88 texts learned."""
    if chosen.task == "sorting":
        return sorting.examples(chosen.seeds, sorting.HELD_OUT, "held-out")
    if chosen.task == "convex_hull":
        return convex_hull.examples(chosen.seeds, convex_hull.HELD_OUT, "held-out")
    return first(memorization.examples(chosen.seeds, _texts(texts)), memorization.READ)


def _texts(texts: Sequence[Sequence[int]] | None) -> Sequence[Sequence[int]]:
    if texts is None:
        raise ValueError("memorization needs texts")
    return texts


def first(examples: Examples, count: int) -> Examples:
    """Return the first examples, or all if there are fewer."""
    lengths = examples.lengths[:count]
    tokens = sum(lengths)
    return Examples(examples.inputs[:, :tokens], examples.labels[:, :tokens], lengths)


def run(
    chosen: Experiment,
    texts: Sequence[Sequence[int]] | None = None,
    *,
    checkpoints: Path | None = None,
) -> tuple[Parameters, History]:
    """Train the networks of an experiment.

    Args:
        chosen: what is trained.
        texts: token ids of the texts to memorise, from 0 without gaps.
        checkpoints: where a long training leaves its checkpoints.

    Raises:
        TrainingError: it diverged, or cannot go on from the checkpoint.
        ExperimentError: a label or a token id is not one of the network's.
    """
    examples = training_examples(chosen, texts)
    _require_fits(chosen.network, examples)
    checkpoint = None
    if checkpoints is not None:
        checkpoint = Checkpoint(checkpoints, {**_settings(chosen), "examples": _digest(examples)})
    return train(
        initialise(chosen.network, chosen.seeds),
        _loss(chosen, examples),
        chosen.recipe,
        examples=len(examples.lengths),
        seeds=chosen.seeds,
        label=f"training {chosen.task}, {chosen.training}, {len(chosen.seeds)} seeds",
        checkpoint=checkpoint,
    )


def _require_fits(network: Network, examples: Examples) -> None:
    ranges = {"label": (examples.labels, network.classes, "classes")}
    if network.vocabulary:
        ranges["token id"] = (examples.inputs, network.vocabulary, "vocabulary")
    for kind, (values, count, name) in ranges.items():
        low, high = int(values.min()), int(values.max())
        if low < 0 or high >= count:
            raise ExperimentError(
                f"there is a {kind} {low if low < 0 else high}; the network's {name} are "
                f"0 to {count - 1}"
            )


def _settings(chosen: Experiment) -> dict[str, Any]:
    """Return what the result depends on, one level deep."""
    named = {"task": chosen.task, "reading": chosen.reading, "training": chosen.training}
    return {**named, **asdict(chosen.network)}


def _digest(examples: Examples) -> str:
    digest = hashlib.sha256(repr(examples.lengths).encode())
    for values in (examples.inputs, examples.labels):
        digest.update(values.contiguous().numpy().tobytes())
    return digest.hexdigest()


def _loss(chosen: Experiment, examples: Examples) -> Loss:
    ends = torch.tensor(examples.lengths).cumsum(0)
    steps = -(-len(examples.lengths) // chosen.recipe.batch)

    def loss(parameters: Parameters, step: Step, noise: Noise) -> tuple[Tensor, Tensor]:
        lengths = [examples.lengths[index] for index in step.examples.tolist()]
        tokens = _tokens(ends, lengths, step.examples)
        inputs, labels = examples.inputs[:, tokens], examples.labels[:, tokens]
        # Of an even number of steps the same would otherwise be paths in every epoch.
        turn = step.number % steps + step.epoch
        if chosen.training == "layer_drop" and turn % 2:
            logits = _along_a_path(chosen.network, parameters, inputs, lengths, step.number)
        else:
            dropout = noise.prepare(dropout_places(chosen.network, lengths))
            residual = chosen.training != "pure"
            states = forward(
                chosen.network, parameters, inputs, lengths, residual=residual, dropout=dropout
            )
            logits = classify(parameters, states[-1], dropout)
        losses = functional.cross_entropy(logits.mT, labels, reduction="none").mean(1)
        return losses, (logits.detach().argmax(-1) == labels).float().mean(1)

    return loss


def _tokens(ends: Tensor, lengths: Sequence[int], chosen: Tensor) -> slice | Tensor:
    """Return where the tokens of some examples are; a slice if they lie side by side."""
    if torch.equal(chosen, torch.arange(int(chosen[0]), int(chosen[0]) + len(chosen))):
        return slice(int(ends[chosen[0]]) - lengths[0], int(ends[chosen[-1]]))
    parts = zip(ends[chosen].tolist(), lengths, strict=True)
    return torch.cat([torch.arange(end - length, end) for end, length in parts])


def _along_a_path(
    network: Network, parameters: Parameters, inputs: Tensor, lengths: Sequence[int], number: int
) -> Tensor:
    """Return the logits of one random path of random length, read as evaluation reads it."""
    random = stream(0, "path", str(number))
    path = draw_paths(network, int(random.integers(network.depth + 1)), 1, random)
    embedded = embed(network, parameters, inputs, lengths)
    ((_, state),) = walk(network, parameters, embedded, lengths, path, residual=False)
    return classify(parameters, normalise(state))
