"""A classifier fitted anew to what paths give: lost rank cannot be read back, a shift can.

Each feature is standardised first: what cannot be read is lost below float32 round-off.

Shapes: S seeds, N tokens of all examples, D features.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from rankcollapse.bench import SIZES, Bench
from rankcollapse.experiments import first, training_examples
from rankcollapse.san import normalise
from rankcollapse.tasks import stream

EXAMPLES = 400  # of the training examples that the classifier is fitted to


def fitting_bench(bench: Bench, texts: Sequence[Sequence[int]] | None) -> Bench:
    """Return the same networks with the examples that a classifier is fitted to.

    Memorisation has no held-out examples: it is fitted to those that it is judged on.

    Args:
        bench: the networks, with the examples that they are judged on.
        texts: token ids of the texts to memorise.
    """
    if bench.chosen.task == "memorization":
        return bench
    examples = first(training_examples(bench.chosen, texts), EXAMPLES)
    return Bench(bench.chosen, bench.parameters, examples)


def reread(bench: Bench, fitting: Bench, length: int) -> Iterator[dict[str, Any]]:
    """Fit the classifier anew to what a set of paths of one length gives, and judge it.

    Where it is fitted to what it is judged on, the same with shuffled labels stands beside it.

    Args:
        bench: the networks, with the examples that they are judged on.
        fitting: the networks, with the examples to fit to.
        length: of the paths, the largest set of `SIZES`, first draw.

    Yields:
        A row for each seed.
    """
    read, fit = _states(bench, length), _states(fitting, length)
    labels = bench.examples.labels
    score = bench.judge(read, _right(fit, fitting.examples.labels, read, labels))
    yield from bench.rows("reread", score, paths=str(max(SIZES)), length=length)
    if fitting is bench:
        shuffled = _shuffled(labels, bench.chosen.seeds)
        score = bench.judge(read, _right(fit, shuffled, read, shuffled))
        yield from bench.rows("reread", score, paths="shuffled", length=length)


def _states(bench: Bench, length: int) -> Tensor:
    size = max(SIZES)
    sets = {size: bench.sets(length, [size])[size][:1]}
    return normalise(bench.sums(sets, residual=False)[size][0])


def _shuffled(labels: Tensor, seeds: Sequence[int]) -> Tensor:
    return torch.stack(
        [
            of_seed[torch.from_numpy(stream(seed, "shuffled labels").permutation(len(of_seed)))]
            for seed, of_seed in zip(seeds, labels, strict=True)
        ]
    )


def _right(fit: Tensor, labels: Tensor, read: Tensor, truth: Tensor) -> Tensor:
    """Return where a logistic regression of each seed, fitted to `fit`, reads rightly: [S, N]."""
    from sklearn.linear_model import LogisticRegression

    right = []
    for x, y, z, t in zip(fit, labels, read, truth, strict=True):
        mean, scale = x.mean(0), x.std(0).clamp(min=1e-12)
        model = LogisticRegression(max_iter=1000, tol=1e-3)
        model.fit(((x - mean) / scale).numpy(), y.numpy())
        predicted = torch.from_numpy(model.predict(((z - mean) / scale).numpy()))
        right.append(predicted == t)
    return torch.stack(right)
