"""Trained networks, the examples that they are judged on, and what paths give there.

The sets of paths are the same for every training seed and under every control: an interval over
seeds leaves their spread out, `std_draws` is for that.

Shapes: S seeds, N tokens of all examples, E examples, D features, L blocks.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rankcollapse.block import groups_of
from rankcollapse.experiments import Experiment
from rankcollapse.frozen_paths import frozen_terms
from rankcollapse.measures import composite_ratio, residual
from rankcollapse.sampled_paths import Path, all_paths, draw_paths, walk
from rankcollapse.san import Parameters, classify, embed, forward, normalise
from rankcollapse.tasks import Examples, stream

SIZES = (5, 20)
DRAWS = 5


@dataclass(frozen=True)
class Score:
    """How often tokens are classified rightly, [S] each.

    Attributes:
        accuracy: share of the tokens.
        std_examples: of the shares of the examples.
        residual_ratio: composite ratio (column mean) of what was classified, mean over examples.
        std_draws: of the accuracies of several sets of paths, if there were any.
    """

    accuracy: Tensor
    std_examples: Tensor
    residual_ratio: Tensor
    std_draws: Tensor | None = None


def mean_score(scores: Sequence[Score]) -> Score:
    """Return the mean over sets of paths, and the spread between them."""
    accuracies = torch.stack([one.accuracy for one in scores])
    return Score(
        accuracies.mean(0),
        torch.stack([one.std_examples for one in scores]).mean(0),
        torch.stack([one.residual_ratio for one in scores]).mean(0),
        accuracies.std(0, correction=0),
    )


class Bench:
    """Trained networks, and the examples that they are judged on."""

    def __init__(self, chosen: Experiment, parameters: Parameters, examples: Examples) -> None:
        self.chosen, self.parameters, self.examples = chosen, parameters, examples
        self.embedded = embed(chosen.network, parameters, examples.inputs, examples.lengths)

    def state(self) -> Tensor:
        """Return the last state of the whole networks, [S, N, D]."""
        return self._computed(forward)[-1]

    def terms(self) -> list[Tensor]:
        """Return the frozen terms of the last state by length, L + 1 tensors [S, N, D]."""
        return self._computed(frozen_terms)

    def _computed(self, function: Callable[..., list[Tensor]]) -> list[Tensor]:
        chosen, examples = self.chosen, self.examples
        residual = chosen.training != "pure"
        of = (chosen.network, self.parameters, examples.inputs, examples.lengths)
        return function(*of, residual=residual)

    def score(self, state: Tensor, *, normal: bool = True) -> Score:
        """Classify states, after a normalisation without gain and bias unless told otherwise."""
        state = normalise(state) if normal else state
        predicted = classify(self.parameters, state).argmax(-1)
        return self.judge(state, predicted == self.examples.labels)

    def judge(self, state: Tensor, right: Tensor) -> Score:
        """Return the score of states [S, N, D] of which it is known which are read rightly."""
        shares = torch.cat(
            [
                right[:, group.part].double().view(len(right), group.examples, -1).mean(-1)
                for group in groups_of(self.examples.lengths)
            ],
            dim=1,
        )  # [S, E]
        ratios = self._of_examples(composite_ratio, state)
        return Score(right.double().mean(1), shares.std(1, correction=0), ratios.mean(1))

    def norms(self, state: Tensor) -> Tensor:
        """Return the Frobenius norm of each example's residual, [S, E]."""
        return self._of_examples(lambda x: residual(x).norm(dim=(-2, -1)), state)

    def _of_examples(self, measure: Callable[[Tensor], Tensor], state: Tensor) -> Tensor:
        values = [
            measure(state[:, group.part].reshape(-1, group.tokens, state.shape[-1]).double()).view(
                len(state), -1
            )
            for group in groups_of(self.examples.lengths)
        ]
        return torch.cat(values, dim=1)

    def sets(self, length: int, sizes: Sequence[int]) -> dict[int, list[list[Path]]]:
        """Return `DRAWS` random sets of paths of one length, by their size."""
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

    def singles(self, length: int, *, residual: bool) -> Iterator[Tensor]:
        """Yield the state at the end of every path of one length."""
        for _, state in self._walk(all_paths(self.chosen.network, length), residual=residual):
            yield state

    def _walk(self, paths: list[Path], *, residual: bool) -> Iterator[tuple[Path, Tensor]]:
        network, lengths = self.chosen.network, self.examples.lengths
        return walk(network, self.parameters, self.embedded, lengths, paths, residual=residual)

    def rows(
        self, control: str, score: Score, *, paths: str = "", length: int | None = None
    ) -> Iterator[dict[str, Any]]:
        """Yield a row of the table of scores for each seed."""
        draws = score.std_draws
        for index, seed in enumerate(self.chosen.seeds):
            yield {
                "control": control,
                "paths": paths,
                "length": length,
                "seed": seed,
                "accuracy": float(score.accuracy[index]),
                "std_draws": None if draws is None else float(draws[index]),
                "std_examples": float(score.std_examples[index]),
                "residual_ratio": float(score.residual_ratio[index]),
            }
