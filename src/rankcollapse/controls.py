"""Accuracy by path length of trained networks, under each control.

Beside every accuracy stands the composite ratio (column mean) of the states that were classified.
The sets of paths are the same for every training seed: an interval over seeds leaves their spread
out, `std_draws` is for that. Re-reading standardises each feature: what it cannot read is lost
below float32 round-off. Of a network trained without residuals only the paths of full length are
a part; shorter ones are evaluated all the same.

Shapes: S seeds, N tokens of all examples, E examples, D features, L blocks.
"""

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from rankcollapse.block import groups_of
from rankcollapse.experiments import (
    Experiment,
    first,
    reading_examples,
    training_examples,
)
from rankcollapse.frozen_paths import frozen_terms
from rankcollapse.measures import composite_ratio, residual
from rankcollapse.paths import path_length_proportions
from rankcollapse.sampled_paths import Path, all_paths, count_paths, draw_paths, walk
from rankcollapse.san import Parameters, classify, embed, forward, normalise
from rankcollapse.task_tables import LENGTH_COLUMNS, SCORE_COLUMNS
from rankcollapse.tasks import Examples, convex_hull, memorization, sorting, stream

SIZES = (5, 20)
DRAWS = 5
MOST_SINGLE_PATHS = 1000
REREAD_EXAMPLES = 400  # of the training examples that the classifier is fitted anew to


@dataclass(frozen=True)
class Score:
    """How often tokens are classified rightly, [S] each."""

    accuracy: Tensor
    std_examples: Tensor
    residual_ratio: Tensor


def scores(
    chosen: Experiment, parameters: Parameters, texts: Sequence[Sequence[int]] | None
) -> pd.DataFrame:
    """Judge trained networks under every control that their training allows.

    Args:
        chosen: the experiment that was run.
        parameters: what it trained, [S, ...].
        texts: token ids of the texts to memorise.

    Returns:
        The columns of `SCORE_COLUMNS`, a row for each seed.
    """
    bench = _Bench(chosen, parameters, texts, reading_examples(chosen, texts))
    name = None if chosen.training == "residual" else chosen.training
    rows = [*bench.entire(name)]
    if name is None:
        rows += bench.trivial()
        rows += bench.sampled("published", residual=False)
        rows += bench.sampled("residual_kept", residual=True)
        rows += bench.frozen()
        rows += bench.reread()
    else:
        rows += bench.sampled(name, residual=False)
    frame = pd.DataFrame(rows)
    network, recipe = chosen.network, chosen.recipe
    frame = frame.assign(
        task=chosen.task,
        reading=chosen.reading,
        epochs=recipe.epochs,
        heads=network.heads,
        depth=network.depth,
        width=network.width,
        training=chosen.training,
    )
    return frame[SCORE_COLUMNS]


def path_scores(
    chosen: Experiment,
    parameters: Parameters,
    texts: Sequence[Sequence[int]] | None,
    *,
    size: int,
) -> list[Score]:
    """Judge one random set of paths of each length, as published.

    Args:
        chosen: the experiment that was run.
        parameters: what it trained, [S, ...].
        texts: token ids of the texts to memorise.
        size: paths in a set.
    """
    bench = _Bench(chosen, parameters, texts, reading_examples(chosen, texts))
    found = []
    for length in range(chosen.network.depth + 1):
        sets = {size: bench.sets(length, [size])[size][:1]}
        ((total,),) = bench.sums(sets, residual=False).values()
        found.append(bench.score(total))
    return found


def lengths_used(
    chosen: Experiment, parameters: Parameters, texts: Sequence[Sequence[int]] | None
) -> pd.DataFrame:
    """Return which path lengths trained networks use, beside those that exist.

    `share_used` is the norm of a term's residual over the sum of those of all terms, averaged
    over the examples.

    Returns:
        The columns of `LENGTH_COLUMNS`, a row for each seed and length.
    """
    bench = _Bench(chosen, parameters, texts, reading_examples(chosen, texts))
    network = chosen.network
    norms = torch.stack([bench.norms(term) for term in bench.terms()], dim=-1)  # [S, E, L + 1]
    used = (norms / norms.sum(-1, keepdim=True)).mean(1)
    exist = path_length_proportions(network.heads, network.depth)
    entire = bench.score(bench.states()[-1], normal=False).accuracy
    count = sum(p[0].numel() for p in parameters.values())
    rows = [
        {
            "task": chosen.task,
            "heads": network.heads,
            "depth": network.depth,
            "width": network.width,
            "parameters": count,
            "seed": seed,
            "accuracy": float(entire[index]),
            "length": length,
            "share_used": float(used[index, length]),
            "share_binomial": float(exist[length]),
        }
        for index, seed in enumerate(chosen.seeds)
        for length in range(network.depth + 1)
    ]
    return pd.DataFrame(rows)[LENGTH_COLUMNS]


class _Bench:
    """Trained networks, and the examples that they are judged on."""

    def __init__(
        self,
        chosen: Experiment,
        parameters: Parameters,
        texts: Sequence[Sequence[int]] | None,
        examples: Examples,
    ) -> None:
        self.chosen, self.parameters, self.texts = chosen, parameters, texts
        self.examples = examples
        self.embedded = embed(chosen.network, parameters, examples.inputs, examples.lengths)

    def states(self) -> list[Tensor]:
        """Return the states of the whole networks."""
        residual = self.chosen.training != "pure"
        inputs, lengths = self.examples.inputs, self.examples.lengths
        return forward(self.chosen.network, self.parameters, inputs, lengths, residual=residual)

    def terms(self) -> list[Tensor]:
        """Return the frozen terms of the last state by length."""
        residual = self.chosen.training != "pure"
        inputs, lengths = self.examples.inputs, self.examples.lengths
        return frozen_terms(
            self.chosen.network, self.parameters, inputs, lengths, residual=residual
        )

    def score(self, state: Tensor, *, normal: bool = True) -> Score:
        """Classify states, after a normalisation without gain and bias unless told otherwise."""
        state = normalise(state) if normal else state
        predicted = classify(self.parameters, state).argmax(-1)
        return self._score(state, predicted == self.examples.labels)

    def _score(self, state: Tensor, right: Tensor) -> Score:
        shares = torch.cat(
            [
                right[:, group.part].double().view(len(right), group.examples, -1).mean(-1)
                for group in groups_of(self.examples.lengths)
            ],
            dim=1,
        )  # [S, E]
        return Score(
            right.double().mean(1), shares.std(1, correction=0), self.ratios(state).mean(1)
        )

    def ratios(self, state: Tensor) -> Tensor:
        """Return the composite ratio of each example, [S, E]."""
        return self._of_examples(composite_ratio, state)

    def norms(self, state: Tensor) -> Tensor:
        """Return the Frobenius norm of each example's residual, [S, E]."""
        return self._of_examples(lambda x: residual(x).norm(dim=(-2, -1)), state)

    def _of_examples(self, measure: Any, state: Tensor) -> Tensor:  # noqa: ANN401
        values = [
            measure(state[:, group.part].reshape(-1, group.tokens, state.shape[-1]).double()).view(
                len(state), -1
            )
            for group in groups_of(self.examples.lengths)
        ]
        return torch.cat(values, dim=1)

    def rows(
        self,
        control: str,
        score: Score,
        *,
        paths: str = "",
        length: int | None = None,
        std_draws: Tensor | None = None,
    ) -> Iterator[dict[str, Any]]:
        """Yield a row for each seed."""
        for index, seed in enumerate(self.chosen.seeds):
            yield {
                "control": control,
                "paths": paths,
                "length": length,
                "seed": seed,
                "accuracy": float(score.accuracy[index]),
                "std_draws": None if std_draws is None else float(std_draws[index]),
                "std_examples": float(score.std_examples[index]),
                "residual_ratio": float(score.residual_ratio[index]),
            }

    def entire(self, name: str | None) -> Iterator[dict[str, Any]]:
        """Judge the whole network."""
        yield from self.rows(name or "entire", self.score(self.states()[-1], normal=False))

    def trivial(self) -> Iterator[dict[str, Any]]:
        """Judge the trivial predictor of the task."""
        accuracies = trivial(self.chosen, self.texts, self.examples)
        for seed, accuracy in zip(self.chosen.seeds, accuracies.tolist(), strict=True):
            yield {"control": "trivial", "paths": "", "seed": seed, "accuracy": accuracy}

    def sampled(self, control: str, *, residual: bool) -> Iterator[dict[str, Any]]:
        """Judge random sets of paths of each length, and all single paths where they are few."""
        for length in range(self.chosen.network.depth + 1):
            _tell(self.chosen, control, length)
            sets = self.sets(length, SIZES)
            for size, draws in self.sums(sets, residual=residual).items():
                yield from self._of_draws(control, str(size), length, draws)
            if count_paths(self.chosen.network, length) <= MOST_SINGLE_PATHS:
                yield from self._single(control, length, residual=residual)

    def sets(self, length: int, sizes: Sequence[int]) -> dict[int, list[list[Path]]]:
        """Return random sets of paths of one length, by their size.

        They are the same in every control and for every training seed.
        """
        network, sets = self.chosen.network, {}
        for size in sizes:
            random = stream(0, "path sets", self.chosen.task, str(length), str(size))
            sets[size] = [draw_paths(network, length, size, random) for _ in range(DRAWS)]
        return sets

    def sums(self, sets: dict[int, list[list[Path]]], *, residual: bool) -> dict[int, list[Tensor]]:
        """Return the sum of the states of each set's paths."""
        counts = {size: [Counter(one) for one in draws] for size, draws in sets.items()}
        sums = {
            size: [torch.zeros_like(self.embedded) for _ in draws] for size, draws in sets.items()
        }
        every = [path for draws in sets.values() for one in draws for path in one]
        for path, state in self._walk(every, residual=residual):
            for size, of_size in counts.items():
                for total, count in zip(sums[size], of_size, strict=True):
                    if path in count:
                        total.add_(state, alpha=count[path])
        return sums

    def _walk(self, paths: list[Path], *, residual: bool) -> Iterator[tuple[Path, Tensor]]:
        network, lengths = self.chosen.network, self.examples.lengths
        yield from walk(network, self.parameters, self.embedded, lengths, paths, residual=residual)

    def _of_draws(
        self, control: str, paths: str, length: int, draws: list[Tensor]
    ) -> Iterator[dict[str, Any]]:
        each = [self.score(draw) for draw in draws]
        yield from self.rows(
            control,
            _mean(each),
            paths=paths,
            length=length,
            std_draws=torch.stack([one.accuracy for one in each]).std(0, correction=0),
        )

    def _single(self, control: str, length: int, *, residual: bool) -> Iterator[dict[str, Any]]:
        paths = all_paths(self.chosen.network, length)
        each = [self.score(state) for _, state in self._walk(paths, residual=residual)]
        yield from self.rows(
            control,
            _mean(each),
            paths="all",
            length=length,
            std_draws=torch.stack([one.accuracy for one in each]).std(0, correction=0),
        )

    def frozen(self) -> Iterator[dict[str, Any]]:
        """Judge the exact terms of each length: alone, all but them, and all up to them."""
        terms = self.terms()
        whole = sum(terms, torch.zeros_like(terms[0]))
        up_to = torch.zeros_like(terms[0])
        for length, term in enumerate(terms):
            up_to = up_to + term
            for control, paths, state in (
                ("frozen", "only", term),
                ("frozen", "without", whole - term),
                ("frozen_cumulative", "up_to", up_to),
            ):
                score = self.score(state, normal=False)
                yield from self.rows(control, score, paths=paths, length=length)

    def reread(self) -> Iterator[dict[str, Any]]:
        """Fit the classifier anew to what sets of paths give, and judge it."""
        fitting = _Bench(self.chosen, self.parameters, self.texts, self._fitting_examples())
        size = max(SIZES)
        for length in range(self.chosen.network.depth + 1):
            _tell(self.chosen, "reread", length)
            sets = {size: self.sets(length, SIZES)[size][:1]}
            (read,) = self.sums(sets, residual=False)[size]
            (fit,) = fitting.sums(sets, residual=False)[size]
            read, fit = normalise(read), normalise(fit)
            right = _refitted(fit, fitting.examples.labels, read, self.examples.labels)
            score = self._score(read, right)
            yield from self.rows("reread", score, paths=str(size), length=length)
            if self.chosen.task == "memorization":
                yield from self._shuffled(fit, read, length)

    def _fitting_examples(self) -> Examples:
        if self.chosen.task == "memorization":
            return self.examples  # there are no others
        return first(training_examples(self.chosen, self.texts), REREAD_EXAMPLES)

    def _shuffled(self, fit: Tensor, read: Tensor, length: int) -> Iterator[dict[str, Any]]:
        labels = torch.stack(
            [
                labels[torch.from_numpy(stream(seed, "shuffled labels").permutation(len(labels)))]
                for seed, labels in zip(self.chosen.seeds, self.examples.labels, strict=True)
            ]
        )
        score = self._score(read, _refitted(fit, labels, read, labels))
        yield from self.rows("reread", score, paths="shuffled", length=length)


def trivial(
    chosen: Experiment, texts: Sequence[Sequence[int]] | None, examples: Examples
) -> np.ndarray[Any, Any]:
    """Return the accuracy of the predictor that looks at no other token, [S]."""
    tasks: Any = {"sorting": sorting, "convex_hull": convex_hull, "memorization": memorization}
    return np.asarray(tasks[chosen.task].trivial(training_examples(chosen, texts), examples))


def _mean(scores: Sequence[Score]) -> Score:
    return Score(
        *(
            torch.stack([getattr(score, name) for score in scores]).mean(0)
            for name in ("accuracy", "std_examples", "residual_ratio")
        )
    )


def _refitted(fit: Tensor, labels: Tensor, read: Tensor, truth: Tensor) -> Tensor:
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


def _tell(chosen: Experiment, control: str, length: int) -> None:
    print(
        f"{chosen.task}, {control}: path length {length} of {chosen.network.depth}",
        file=sys.stderr,
        flush=True,
    )
