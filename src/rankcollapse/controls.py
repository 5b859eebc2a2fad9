"""Accuracy by path length of trained networks, under each control.

Beside every accuracy stands the composite ratio (column mean) of the states that were classified.
Of a network trained without residuals only the paths of full length are a part; shorter ones are
evaluated all the same.

Shapes: S seeds, N tokens of all examples, E examples, L blocks.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch

from rankcollapse.bench import SIZES, Bench, Score, mean_score
from rankcollapse.experiments import Experiment, reading_examples, training_examples
from rankcollapse.paths import path_length_proportions
from rankcollapse.reread import fitting_bench, reread
from rankcollapse.sampled_paths import count_paths
from rankcollapse.san import Parameters
from rankcollapse.task_tables import LENGTH_COLUMNS, SCORE_COLUMNS
from rankcollapse.tasks import Examples, convex_hull, memorization, sorting

MOST_SINGLE_PATHS = 1000

Row = dict[str, Any]


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
    bench = Bench(chosen, parameters, reading_examples(chosen, texts))
    if chosen.training == "residual":
        fitting = fitting_bench(bench, texts)
        rows = [
            *_entire(bench, "entire"),
            *_trivial(bench, texts),
            *_by_length(bench, "published", lambda k: _sampled(bench, "published", k)),
            *_by_length(bench, "residual_kept", lambda k: _sampled(bench, "residual_kept", k)),
            *_frozen(bench),
            *_by_length(bench, "reread", lambda k: reread(bench, fitting, k)),
        ]
    else:
        name = chosen.training
        rows = [
            *_entire(bench, name),
            *_by_length(bench, name, lambda k: _sampled(bench, name, k)),
        ]
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
    bench = Bench(chosen, parameters, reading_examples(chosen, texts))
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
    bench = Bench(chosen, parameters, reading_examples(chosen, texts))
    network = chosen.network
    norms = torch.stack([bench.norms(term) for term in bench.terms()], dim=-1)  # [S, E, L + 1]
    used = (norms / norms.sum(-1, keepdim=True)).mean(1)
    exist = path_length_proportions(network.heads, network.depth)
    entire = bench.score(bench.state(), normal=False).accuracy
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


def _by_length(bench: Bench, control: str, judge: Callable[[int], Iterator[Row]]) -> Iterator[Row]:
    depth = bench.chosen.network.depth
    for length in range(depth + 1):
        print(
            f"{bench.chosen.task}, {control}: path length {length} of {depth}",
            file=sys.stderr,
            flush=True,
        )
        yield from judge(length)


def _entire(bench: Bench, name: str) -> Iterator[Row]:
    """Judge the whole network."""
    yield from bench.rows(name, bench.score(bench.state(), normal=False))


def _trivial(bench: Bench, texts: Sequence[Sequence[int]] | None) -> Iterator[Row]:
    """Judge the trivial predictor of the task."""
    accuracies = trivial(bench.chosen, texts, bench.examples)
    for seed, accuracy in zip(bench.chosen.seeds, accuracies.tolist(), strict=True):
        yield {"control": "trivial", "paths": "", "seed": seed, "accuracy": accuracy}


def trivial(
    chosen: Experiment, texts: Sequence[Sequence[int]] | None, examples: Examples
) -> np.ndarray[Any, Any]:
    """Return the accuracy of the predictor that looks at no other token, [S]."""
    tasks: Any = {"sorting": sorting, "convex_hull": convex_hull, "memorization": memorization}
    return np.asarray(tasks[chosen.task].trivial(training_examples(chosen, texts), examples))


def _sampled(bench: Bench, control: str, length: int) -> Iterator[Row]:
    """Judge random sets of paths of one length, and all single paths where they are few."""
    residual = control == "residual_kept"
    for size, sums in bench.sums(bench.sets(length, SIZES), residual=residual).items():
        score = mean_score([bench.score(one) for one in sums])
        yield from bench.rows(control, score, paths=str(size), length=length)
    if count_paths(bench.chosen.network, length) <= MOST_SINGLE_PATHS:
        singles = bench.singles(length, residual=residual)
        score = mean_score([bench.score(one) for one in singles])
        yield from bench.rows(control, score, paths="all", length=length)


def _frozen(bench: Bench) -> Iterator[Row]:
    """Judge the exact terms of each length: alone, all but them, and all up to them."""
    terms = bench.terms()
    whole = sum(terms, torch.zeros_like(terms[0]))
    up_to = torch.zeros_like(terms[0])
    for length, term in enumerate(terms):
        up_to = up_to + term
        for control, paths, state in (
            ("frozen", "only", term),
            ("frozen", "without", whole - term),
            ("frozen_cumulative", "up_to", up_to),
        ):
            score = bench.score(state, normal=False)
            yield from bench.rows(control, score, paths=paths, length=length)
