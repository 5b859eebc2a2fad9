"""Train networks of one shape with many seeds in one pass.

Each seed has its own data, initialisation and dropout, from its own random streams; the order of
the examples and the random paths are the same for all. So what a seed gives does not depend on
which seeds are trained beside it.

Shapes: S seeds, N tokens.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from rankcollapse.noise import Noise
from rankcollapse.san import Parameters
from rankcollapse.tasks import stream
from rankcollapse.training_checkpoint import DAMAGES, Checkpoint, TrainingError
from rankcollapse.training_clock import shown
from rankcollapse.vocabulary import require_known

CHECKPOINT_SECONDS = 60.0
MILESTONES = (15, 30, 40, 50, 60)  # epochs, of the convex hull's schedule
DECAY = 0.91
SCHEDULES = ("constant", "milestones", "linear")


@dataclass(frozen=True)
class Recipe:
    """How a network is trained.

    Attributes:
        epochs: passes over the examples.
        batch: examples in a step; the last step of an epoch takes what is left.
        learning_rate: of Adam, betas (0.9, 0.999), eps 1e-8.
        weight_decay: added to the gradient as weight_decay x parameter.
        schedule: "constant"; "milestones", the rate times 0.91 at five epochs; "linear", down to 0.
        clip: largest norm of the gradient of all parameters, or None.
        shuffle: whether the examples come in another order each epoch.
    """

    epochs: int
    batch: int
    learning_rate: float
    weight_decay: float = 0.0
    schedule: str = "constant"
    clip: float | None = None
    shuffle: bool = False

    def __post_init__(self) -> None:
        """Raise TrainingError for a training without a step, ValueError for no known schedule."""
        for name in ("epochs", "batch"):
            if getattr(self, name) < 1:
                raise TrainingError(f"{name} is {getattr(self, name)}; it must be at least 1")
        require_known("schedule", self.schedule, SCHEDULES)

    def rate(self, epoch: int, share: float) -> float:
        """Return the learning rate in an epoch, after a share of all steps."""
        if self.schedule == "milestones":
            return self.learning_rate * DECAY ** sum(epoch >= at for at in MILESTONES)
        if self.schedule == "linear":
            return self.learning_rate * (1 - share)
        return self.learning_rate


@dataclass
class History:
    """Mean loss and accuracy of each seed over the steps of each epoch, [epoch][S]."""

    loss: list[list[float]] = field(default_factory=list)
    accuracy: list[list[float]] = field(default_factory=list)


@dataclass(frozen=True)
class Step:
    """What one step is about: the examples in it, the epoch, and the number of the step."""

    examples: Tensor  # their indices
    epoch: int
    number: int


# Returns the loss [S] and the accuracy [S] of a step.
Loss = Callable[[Parameters, Step, Noise], tuple[Tensor, Tensor]]


def train(
    parameters: Parameters,
    loss: Loss,
    recipe: Recipe,
    *,
    examples: int,
    seeds: Sequence[int],
    label: str,
    checkpoint: Checkpoint | None = None,
    after_epoch: Callable[[Parameters], bool] | None = None,
) -> tuple[Parameters, History]:
    """Train S networks in one pass, each with its own data, start and dropout.

    Args:
        parameters: at the start, [S, ...].
        loss: computes a step.
        recipe: the optimiser's settings.
        examples: how many there are.
        seeds: of the S networks.
        label: what is trained, for the lines of progress.
        checkpoint: where a training of more than a minute leaves its state, and goes on from it;
            its settings are those that recipe and seeds do not tell.
        after_epoch: looks at the parameters, and says whether the training may end.

    Returns:
        The trained parameters, and loss and accuracy by epoch.

    Raises:
        TrainingError: the loss or a parameter is not finite (the last checkpoint stays), or the
            checkpoint is damaged or of other settings.
    """
    run = _Run(parameters, recipe, seeds)
    if checkpoint is not None:
        settings = {**checkpoint.settings, "seeds": list(seeds), **asdict(recipe)}
        checkpoint = replace(checkpoint, settings=settings)
        run.resume(checkpoint)
    steps = -(-examples // recipe.batch)
    done, saved = len(run.history.loss), time.monotonic()
    with shown(label, recipe.epochs, done=done) as tell:
        for epoch in range(done, recipe.epochs):
            run.epoch(epoch, steps, _order(examples, recipe, epoch), loss)
            tell(epoch + 1, run.mean("loss"), run.mean("accuracy"))
            if after_epoch is not None and after_epoch(run.parameters):
                break
            due = time.monotonic() - saved >= CHECKPOINT_SECONDS
            if checkpoint is not None and due and epoch + 1 < recipe.epochs:
                checkpoint.write(*run.state())
                saved = time.monotonic()
    return {name: value.detach() for name, value in run.parameters.items()}, run.history


def _order(examples: int, recipe: Recipe, epoch: int) -> Iterator[Tensor]:
    order = torch.arange(examples)
    if recipe.shuffle:
        order = torch.from_numpy(stream(0, "order", str(epoch)).permutation(examples))
    yield from torch.split(order, recipe.batch)


class _Run:
    """The state of a training."""

    def __init__(self, parameters: Parameters, recipe: Recipe, seeds: Sequence[int]) -> None:
        self.parameters = {name: p.clone().requires_grad_() for name, p in parameters.items()}
        self.recipe, self.seeds = recipe, list(seeds)
        self.noise, self.history = Noise(seeds), History()
        self.optimiser = torch.optim.Adam(
            list(self.parameters.values()),
            lr=recipe.learning_rate,
            weight_decay=recipe.weight_decay,
            fused=True,
        )

    def epoch(self, epoch: int, steps: int, order: Iterator[Tensor], loss: Loss) -> None:
        """Make the steps of one epoch."""
        sums = torch.zeros(2, len(self.seeds), dtype=torch.float64)
        for index, examples in enumerate(order):
            number = epoch * steps + index
            share = number / (self.recipe.epochs * steps)
            self.optimiser.param_groups[0]["lr"] = self.recipe.rate(epoch, share)
            self.optimiser.zero_grad()
            losses, accuracies = loss(self.parameters, Step(examples, epoch, number), self.noise)
            self._require_finite("loss is", losses, number)
            losses.sum().backward()  # type: ignore[no-untyped-call]
            if self.recipe.clip is not None:
                self._clip(self.recipe.clip)
            self.optimiser.step()
            sums += torch.stack([losses.detach(), accuracies]).double()
        for value in self.parameters.values():
            self._require_finite("parameters are", value.flatten(1).sum(1), number)
        means = (sums / steps).tolist()
        self.history.loss.append(means[0])
        self.history.accuracy.append(means[1])

    def _require_finite(self, what: str, values: Tensor, step: int) -> None:
        finite = torch.isfinite(values).tolist()
        if not all(finite):
            wrong = [seed for seed, good in zip(self.seeds, finite, strict=True) if not good]
            raise TrainingError(
                f"the {what} not finite at step {step} with seed {', '.join(map(str, wrong))}; "
                "lower the learning rate; the last checkpoint is kept"
            )

    def _clip(self, most: float) -> None:
        """Scale each seed's gradient to a norm of at most `most`."""
        gradients = [p.grad for p in self.parameters.values() if p.grad is not None]
        norms = torch.stack([g.flatten(1).norm(dim=1) for g in gradients]).norm(dim=0)  # [S]
        scale = (most / (norms + 1e-6)).clamp(max=1)
        for gradient in gradients:
            gradient *= scale.view(-1, *[1] * (gradient.dim() - 1))

    def mean(self, name: str) -> float:
        """Return the mean over the seeds of the last epoch's "loss" or "accuracy"."""
        values: list[float] = getattr(self.history, name)[-1]
        return sum(values) / len(values)

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return what a checkpoint holds."""
        tensors = {name: value.detach() for name, value in self.parameters.items()}
        for name, value in self.parameters.items():
            for key, state in self.optimiser.state[value].items():
                tensors[f"{key}/{name}"] = state
        return tensors, {"history": asdict(self.history), "noise": self.noise.state()}

    def resume(self, checkpoint: Checkpoint) -> None:
        """Go on from a checkpoint, if there is one."""
        if (found := checkpoint.read()) is None:
            return
        try:
            self._restore(*found)
        except (*DAMAGES, RuntimeError) as error:  # torch: another shape
            raise checkpoint.damaged(error) from None

    def _restore(self, tensors: dict[str, Tensor], progress: dict[str, Any]) -> None:
        with torch.no_grad():
            for name, value in self.parameters.items():
                value.copy_(tensors[name])
                self.optimiser.state[value] = {
                    key: tensors[f"{key}/{name}"] for key in ("step", "exp_avg", "exp_avg_sq")
                }
        self.history = History(**progress["history"])
        self.noise.restore(progress["noise"])
