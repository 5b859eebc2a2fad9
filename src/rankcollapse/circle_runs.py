"""Figure 3: one block, trained to step two points along a circle, then applied again and again.

As published, every variant keeps the block's skip and normalisation: "SAN" is not pure attention.
"SAN + skip" is the same network, trained on the sum of its input and that of the batch before, and
run on a state to which each output is added; drawn is the output, not the state.
As described, "SAN" has no skip, "SAN + skip" has one, "SAN + MLP" has an MLP and no skip around
attention. There is no dropout, whose noise is larger than the step to be learned, and training goes
on until the mean one-step error is below half that step: staying in place has an error of one step.

Shapes: S seeds, E items, two points of two coordinates each.

Source: Dong et al. 2021, section 4.2 and figure 3.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import pandas as pd
import torch
from torch import Tensor

from rankcollapse.noise import Noise
from rankcollapse.san import (
    Network,
    Parameters,
    classify,
    dropout_places,
    forward,
    initialise,
)
from rankcollapse.task_tables import CIRCLE_COLUMNS, TRAJECTORY_COLUMNS
from rankcollapse.tasks import circle
from rankcollapse.training import Loss, Recipe, Step, train
from rankcollapse.vocabulary import READINGS, require_known

WIDTHS = (32, 64, 128)
VARIANTS = ("san", "san_skip", "san_mlp")
STEPS = 300
RECIPES = {
    "as-published": Recipe(epochs=70, batch=30, learning_rate=1e-5),
    # Settings of our own: the published ones do not get there.
    "as-described": Recipe(epochs=300, batch=100, learning_rate=1e-3, schedule="linear"),
}
LOOK_EVERY = 5  # epochs, for the one-step error


class Ends(NamedTuple):
    """Runs of one variant and width: points [step, S, 2, 2] and one-step error [S]."""

    points: Tensor
    error: Tensor


@dataclass(frozen=True)
class Circle:
    """One cell of figure 3."""

    reading: str
    variant: str
    width: int

    @property
    def network(self) -> Network:
        """Return the shape of its network."""
        mlp = self.variant == "san_mlp"
        return Network(heads=2, depth=1, width=self.width, classes=2, mlp=mlp)

    @property
    def residual(self) -> bool:
        """Return whether attention has its skip connection."""
        return self.reading == "as-published" or self.variant == "san_skip"

    @property
    def accumulates(self) -> bool:
        """Return whether outputs are added to a state, as published for "SAN + skip"."""
        return self.reading == "as-published" and self.variant == "san_skip"

    def predict(self, parameters: Parameters, inputs: Tensor) -> Tensor:
        """Return the next points, [S, E, 2, 2], without dropout."""
        lengths = (2,) * inputs.shape[1]
        tokens = inputs.flatten(1, 2)
        states = forward(self.network, parameters, tokens, lengths, residual=self.residual)
        return classify(parameters, states[-1]).view(inputs.shape)


def run_circle(
    reading: str, seeds: Sequence[int], *, shown: int, recipe: Recipe | None = None
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Train and run every variant at every width.

    Args:
        reading: of `READINGS`.
        seeds: one network each.
        shown: the seed whose trajectories are kept, fixed before looking.
        recipe: another than the reading's, for a quick look.

    Returns:
        The columns of `CIRCLE_COLUMNS`, a row for each seed; those of `TRAJECTORY_COLUMNS`.

    Raises:
        ValueError: the reading is not known, or `shown` is no seed of the runs.
        TrainingError: a training diverged.
    """
    require_known("reading", reading, READINGS)
    if shown not in seeds:
        raise ValueError(f"seed {shown} is to be shown, but the seeds are {list(seeds)}")
    rows: list[tuple[object, ...]] = []
    steps: list[tuple[object, ...]] = []
    for variant in VARIANTS:
        for width in WIDTHS:
            cell = Circle(reading, variant, width)
            ends = run_cell(cell, seeds, recipe or RECIPES[reading])
            rows += _rows(cell, seeds, ends)
            steps += _steps(cell, shown, ends.points[:, list(seeds).index(shown)])
    return (
        pd.DataFrame(rows, columns=CIRCLE_COLUMNS),
        pd.DataFrame(steps, columns=TRAJECTORY_COLUMNS),
    )


def run_cell(cell: Circle, seeds: Sequence[int], recipe: Recipe) -> Ends:
    """Train one cell of the figure, and apply the trained networks to their own outputs."""
    inputs, targets = circle.items()
    kept = _Kept(cell, inputs, targets)
    parameters, _ = train(
        initialise(cell.network, seeds),
        _loss(cell, recipe.batch, inputs, targets),
        recipe,
        examples=len(inputs),
        seeds=seeds,
        label=f"circle, {cell.reading}, {cell.variant}, width {cell.width}, {len(seeds)} seeds",
        after_epoch=kept.look if cell.reading == "as-described" else None,
    )
    parameters = kept.take(parameters)
    with torch.no_grad():
        return Ends(_recur(cell, parameters, inputs), kept.error(parameters))


def _loss(cell: Circle, batch: int, inputs: Tensor, targets: Tensor) -> Loss:
    def loss(parameters: Parameters, step: Step, noise: Noise) -> tuple[Tensor, Tensor]:
        points = inputs[step.examples]
        if cell.accumulates and step.examples[0] > 0:
            points = points + inputs[step.examples - batch]
        seeds = len(parameters["classifier.bias"])
        lengths = (2,) * len(points)
        places = dropout_places(cell.network, lengths)
        dropout = noise.prepare(places) if cell.reading == "as-published" else None
        states = forward(
            cell.network,
            parameters,
            points.flatten(0, 1).expand(seeds, -1, -1),
            lengths,
            residual=cell.residual,
            dropout=dropout,
        )
        predicted = classify(parameters, states[-1], dropout)
        errors = predicted - targets[step.examples].flatten(0, 1)
        return errors.square().sum((1, 2)), torch.zeros(seeds)

    return loss


class _Kept:
    """The parameters of each seed when its one-step error first fell below half the step."""

    def __init__(self, cell: Circle, inputs: Tensor, targets: Tensor) -> None:
        self.cell, self.inputs, self.targets = cell, inputs, targets
        self.parameters: Parameters | None = None
        self.learned: Tensor | None = None
        self.epochs = 0

    def error(self, parameters: Parameters) -> Tensor:
        """Return the mean distance between prediction and target over all items, [S]."""
        seeds = len(parameters["classifier.bias"])
        predicted = self.cell.predict(parameters, self.inputs.expand(seeds, -1, -1, -1))
        distances: Tensor = torch.linalg.vector_norm(predicted - self.targets, dim=-1)
        return distances.mean((1, 2))

    def look(self, parameters: Parameters) -> bool:
        """Keep the seeds that have learned; return whether all have."""
        self.epochs += 1
        if self.epochs % LOOK_EVERY:
            return False
        with torch.no_grad():
            below = self.error(parameters) < circle.LEARNED
            if self.parameters is None or self.learned is None:
                self.parameters = {name: p.detach().clone() for name, p in parameters.items()}
                self.learned = torch.zeros(len(below), dtype=torch.bool)
            for name, value in parameters.items():
                self.parameters[name][~self.learned] = value[~self.learned]
            self.learned |= below
        return bool(self.learned.all())

    def take(self, last: Parameters) -> Parameters:
        """Return the kept parameters, and the last ones of seeds that never learned."""
        if self.parameters is None or self.learned is None:
            return last
        for name, value in last.items():
            self.parameters[name][~self.learned] = value[~self.learned]
        return self.parameters


def _recur(cell: Circle, parameters: Parameters, inputs: Tensor) -> Tensor:
    """Return what is drawn at each step, [step, S, 2, 2], from the first item on."""
    seeds = len(parameters["classifier.bias"])
    state = inputs[:1].expand(seeds, -1, -1, -1)
    drawn = [state[:, 0]]
    for _ in range(STEPS - 1):
        output = cell.predict(parameters, state)
        state = state + output if cell.accumulates else output
        drawn.append(output[:, 0])
    return torch.stack(drawn)


def _rows(cell: Circle, seeds: Sequence[int], ends: Ends) -> Iterator[tuple[object, ...]]:
    distances = (ends.points[-1, :, 0] - ends.points[-1, :, 1]).norm(dim=-1)
    for seed, distance, error in zip(seeds, distances.tolist(), ends.error.tolist(), strict=True):
        named = (cell.reading, cell.variant, cell.width, seed)
        yield (*named, distance, circle.collapsed(distance), error)


def _steps(cell: Circle, seed: int, points: Tensor) -> Iterator[tuple[object, ...]]:
    for step, both in enumerate(points.tolist()):
        for point, (x, y) in enumerate(both):
            yield (cell.reading, cell.variant, cell.width, seed, step, point, x, y)
