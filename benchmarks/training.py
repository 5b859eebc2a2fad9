"""What training and path evaluation cost: CPU seconds of a trained model, on one thread.

Some epochs of each training are timed, less one epoch with its start, and scaled to all of them,
because the data and the first steps are paid once. Beside the seconds stand their
multiples of what the products alone would take at the rate of `torch.mm`, measured in between.
"""

import resource
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from typing import Any

import torch
from figure import Figure

from rankcollapse import experiments
from rankcollapse.controls import path_scores
from rankcollapse.experiments import Experiment
from rankcollapse.san import Network, initialise


@dataclass(frozen=True)
class Training:
    """A training of the published size, and what it may cost.

    Attributes:
        name: as the table says it.
        task: of `experiments.TASKS`.
        seeds: trained in one pass.
        epochs: of the whole training.
        timed: epochs that are timed.
        limit: CPU seconds of one model.
        aim: the same, as a wish.
        paths: CPU seconds for 20 paths of each length.
        tokens: in one step, on average.
        steps: of the whole training.
    """

    name: str
    task: str
    seeds: int
    epochs: int
    timed: int
    limit: float
    aim: float | None
    paths: float | None
    tokens: int
    steps: int


TRAININGS = (
    Training("sorting, 8 seeds", "sorting", 8, 65, 8, 10.0, None, 0.5, 240, 2210),
    Training("convex hull, 1 seed", "convex_hull", 1, 70, 2, 320.0, 220.0, None, 300, 23380),
    Training("convex hull, 8 seeds", "convex_hull", 8, 70, 1, 320.0, 220.0, None, 300, 23380),
    Training("memorisation, 1 seed", "memorization", 1, 50, 1, 500.0, None, 32.0, 547, 3150),
)
# As the published texts: 500 of 68 word pieces on average.
VOCABULARY, TEXTS, PIECES = 3337, 500, 68


def run_training(*, quick: bool) -> list[Figure]:
    """Time the trainings, and the evaluation of paths, and return them beside their limits."""
    figures = []
    for training in TRAININGS[:1] if quick else TRAININGS:
        # A process of its own: what one training took would hide what the next one takes.
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            figures += pool.submit(_figures, training, quick=quick).result()
    return figures


def _figures(training: Training, *, quick: bool) -> list[Figure]:
    torch.set_num_threads(1)
    rate, imports = _rate(), _megabytes()
    chosen, texts = _experiment(training, quick=quick)
    start, _ = _timed(lambda: experiments.run(_for_epochs(chosen, 1), texts))
    seconds, (parameters, _) = _timed(lambda: experiments.run(chosen, texts))
    seconds = max(seconds - start, 0.0)
    scale = training.epochs / (chosen.recipe.epochs - 1) / len(chosen.seeds)
    ideal = _flops(chosen.network, training) / rate
    figures = [
        Figure(
            part="training",
            name=training.name,
            value=seconds * scale,
            unit="s a model",
            limit=training.limit,
            aim=training.aim,
            note=f"{seconds * scale / ideal:.1f} times its products at {rate / 1e9:.0f} GFLOP/s",
        ),
        Figure(
            part="training",
            name=f"{training.name}: memory beyond imports",
            value=_megabytes() - imports,
            unit="MB",
            limit=490.0,
        ),
    ]
    if training.paths is not None:
        seconds, _ = _timed(lambda: path_scores(chosen, parameters, texts, size=20))
        figures.append(
            Figure(
                part="training",
                name=f"{training.task}: 20 paths of each length",
                value=seconds / len(chosen.seeds),
                unit="s a model",
                limit=training.paths,
            )
        )
    return figures


def _experiment(training: Training, *, quick: bool) -> tuple[Experiment, list[list[int]] | None]:
    texts = None
    if training.task == "memorization":
        generator = torch.Generator().manual_seed(0)
        drawn = torch.randint(VOCABULARY, (TEXTS, PIECES), generator=generator)
        drawn[0, 0], drawn[0, 1] = 0, VOCABULARY - 1
        texts = drawn.tolist()
    chosen = experiments.experiment(
        training.task,
        seeds=range(training.seeds),
        epochs=2 if quick else training.timed + 1,
        vocabulary=VOCABULARY if texts else None,
    )
    return (replace(chosen, seeds=(0,)) if quick else chosen), texts


def _for_epochs(chosen: Experiment, epochs: int) -> Experiment:
    return replace(chosen, recipe=replace(chosen.recipe, epochs=epochs))


def _megabytes() -> float:
    """Return the largest memory that this process has had."""
    kilo = 1e6 if sys.platform == "darwin" else 1e3
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / kilo


def _timed(work: Callable[[], Any]) -> tuple[float, Any]:
    start = time.process_time()
    result = work()
    return time.process_time() - start, result


def _rate() -> float:
    """Return the rate of float32 products of a middle size, in FLOP/s."""
    a, b = torch.randn(512, 512), torch.randn(512, 512)
    torch.mm(a, b)
    seconds, _ = _timed(lambda: [torch.mm(a, b) for _ in range(50)])
    return 50 * 2 * 512**3 / seconds


def _flops(network: Network, training: Training) -> float:
    """Return what the products with weights cost, forward and backward."""
    weights = sum(
        value[0].numel()
        for name, value in initialise(network, [0]).items()
        if name.endswith("weight")
    )
    return 3 * 2 * weights * training.tokens * training.steps
