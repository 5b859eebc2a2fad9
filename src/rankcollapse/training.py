"""Train networks of one shape with many seeds in one pass.

Each seed has its own data, initialisation and dropout, from its own random streams; the order of
the examples and the random paths are the same for all. So what a seed gives does not depend on
which seeds are trained beside it.

Shapes: S seeds, N tokens.
"""

import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from rankcollapse.errors import RankCollapseError
from rankcollapse.files import atomic_directory
from rankcollapse.san import Dropout, Parameters
from rankcollapse.tasks import stream
from rankcollapse.vocabulary import require_known

DROPOUT = 0.1
CHECKPOINT_SECONDS = 60.0
MILESTONES = (15, 30, 40, 50, 60)  # epochs, of the convex hull's schedule
DECAY = 0.91
SCHEDULES = ("constant", "milestones", "linear")

_KEEP = round(DROPOUT * 2**16)


class TrainingError(RankCollapseError):
    """A training diverged, or cannot go on from what is on the disk."""


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


class Noise:
    """Dropout masks, each seed's from its own stream.

    A mask is 0 with probability 0.1 (6554 of 65536) and 1 / 0.9 otherwise.
    """

    def __init__(self, seeds: Sequence[int]) -> None:
        self._streams = [stream(seed, "dropout") for seed in seeds]
        self._masks = torch.empty(0)
        self._used = 0

    def prepare(self, places: int) -> Dropout:
        """Draw what a step needs, and return what hands it out."""
        self._masks, self._used = torch.empty(len(self._streams), places), 0
        for mask, random in zip(self._masks.numpy(), self._streams, strict=True):
            words = random.integers(0, 2**64, size=-(-places // 4), dtype=np.uint64)
            kept = words.view(np.uint16)[:places] >= _KEEP
            np.multiply(kept, np.float32(1 / (1 - _KEEP / 2**16)), out=mask)
        return self._next

    def _next(self, shape: torch.Size) -> Tensor:
        start = self._used
        self._used += math.prod(shape[1:])
        return self._masks[:, start : self._used].view(shape)

    def state(self) -> list[Any]:
        """Return the streams' states, for JSON."""
        return [_as_json(random.bit_generator.state) for random in self._streams]

    def restore(self, states: list[Any]) -> None:
        """Go on from what `state` returned."""
        for random, state in zip(self._streams, states, strict=True):
            inner = {"state": np.array(state["state"]["state"], dtype=np.uint64)}
            random.bit_generator.state = {**state, "state": inner}


def _as_json(state: Any) -> Any:  # noqa: ANN401
    return {**state, "state": {"state": [int(word) for word in state["state"]["state"]]}}


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
    settings: dict[str, Any],
    folder: Path | None = None,
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
        settings: what the result depends on; a checkpoint of other settings is refused.
        after_epoch: looks at the parameters, and says whether the training may end.
        folder: where a training of more than a minute leaves checkpoints, and goes on from them.

    Returns:
        The trained parameters, and loss and accuracy by epoch.

    Raises:
        TrainingError: the loss or a parameter is not finite (the last checkpoint stays), or the
            checkpoint in `folder` is damaged or of other settings.
    """
    run = _Run(parameters, recipe, seeds, {**settings, "seeds": list(seeds), **asdict(recipe)})
    if folder is not None and folder.exists():
        run.resume(folder)
    steps = -(-examples // recipe.batch)
    clock = _Clock(label, recipe.epochs, len(run.history.loss))
    for epoch in range(len(run.history.loss), recipe.epochs):
        run.epoch(epoch, steps, _order(examples, recipe, epoch), loss)
        clock.tell(epoch, run.history)
        if after_epoch is not None and after_epoch(run.parameters):
            break
        if folder is not None and clock.due() and epoch + 1 < recipe.epochs:
            run.save(folder)
    return {name: value.detach() for name, value in run.parameters.items()}, run.history


def _order(examples: int, recipe: Recipe, epoch: int) -> Iterator[Tensor]:
    order = torch.arange(examples)
    if recipe.shuffle:
        order = torch.from_numpy(stream(0, "order", str(epoch)).permutation(examples))
    yield from torch.split(order, recipe.batch)


class _Run:
    """The state of a training."""

    def __init__(
        self, parameters: Parameters, recipe: Recipe, seeds: Sequence[int], settings: dict[str, Any]
    ) -> None:
        self.parameters = {name: p.clone().requires_grad_() for name, p in parameters.items()}
        self.recipe, self.settings = recipe, json.loads(json.dumps(settings))
        self.seeds = list(seeds)
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

    def save(self, folder: Path) -> None:
        """Write a checkpoint, whole or not at all."""
        tensors = {name: value.detach() for name, value in self.parameters.items()}
        for name, value in self.parameters.items():
            for key, state in self.optimiser.state[value].items():
                tensors[f"{key}/{name}"] = state
        progress = {
            "settings": self.settings,
            "history": asdict(self.history),
            "noise": self.noise.state(),
        }
        with atomic_directory(folder) as temporary:
            save_file(tensors, temporary / "state.safetensors")
            (temporary / "progress.json").write_text(json.dumps(progress), encoding="utf-8")

    def resume(self, folder: Path) -> None:
        """Go on from a checkpoint."""
        try:
            progress = json.loads((folder / "progress.json").read_text(encoding="utf-8"))
            tensors = load_file(folder / "state.safetensors")
            settings = dict(progress["settings"])
        except (*_DAMAGES, OSError, SafetensorError) as error:
            raise _damaged(folder, error) from None
        keys = sorted(settings.keys() | self.settings.keys())
        if other := [key for key in keys if settings.get(key) != self.settings.get(key)]:
            shown = ", ".join(
                f"{key} {settings.get(key)}, now {self.settings.get(key)}" for key in other
            )
            raise TrainingError(
                f"{folder}: is the checkpoint of a training with other settings ({shown}); "
                "delete it to start again"
            )
        try:
            self._restore(progress, tensors)
        except (*_DAMAGES, RuntimeError) as error:  # torch: another shape
            raise _damaged(folder, error) from None

    def _restore(self, progress: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        with torch.no_grad():
            for name, value in self.parameters.items():
                value.copy_(tensors[name])
                self.optimiser.state[value] = {
                    key: tensors[f"{key}/{name}"] for key in ("step", "exp_avg", "exp_avg_sq")
                }
        self.history = History(**progress["history"])
        self.noise.restore(progress["noise"])


_DAMAGES = (ValueError, LookupError, TypeError)


def _damaged(folder: Path, error: Exception) -> TrainingError:
    reason = f"{type(error).__name__}: {error}".splitlines()[0]
    return TrainingError(
        f"{folder}: no checkpoint to go on from ({reason}); delete it to start again"
    )


class _Clock:
    """Says how far a training is, and when a checkpoint is due."""

    def __init__(self, label: str, epochs: int, done: int) -> None:
        self.label, self.epochs, self.done = label, epochs, done
        self.start = self.told = self.saved = time.monotonic()

    def tell(self, epoch: int, history: History) -> None:
        """Print a line at the end of an epoch, at most every ten seconds."""
        now = time.monotonic()
        last = epoch + 1 == self.epochs
        if now - self.told < 10 and not last:
            return
        self.told = now
        left = (now - self.start) / (epoch + 1 - self.done) * (self.epochs - epoch - 1)
        print(
            f"{self.label}: epoch {epoch + 1} of {self.epochs}, loss {_mean(history.loss[-1]):.4f},"
            f" accuracy {_mean(history.accuracy[-1]):.3f}, {left / 60:.1f} min left",
            file=sys.stderr,
            flush=True,
        )

    def due(self) -> bool:
        """Return whether a checkpoint should be written now."""
        now = time.monotonic()
        if now - self.saved < CHECKPOINT_SECONDS:
            return False
        self.saved = now
        return True


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
