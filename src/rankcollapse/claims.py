"""Do the trained experiments show what the paper claims? The rule, fixed before any result.

Every effect is a difference whose null value is 0. A claim is *supported* if the whole 95 %
interval of its effect lies above 0, *opposite* if it lies below, *not supported* if it holds 0.
No interval is claimed from *one seed*; the effect is shown. *Not measured*: there is no seed. Only
networks of their task's published shape count. Symbols: L layers; "short" paths are those of length
1 to floor(L / 2), "long" ones those of length floor(L / 2) + 1 to L. Length 0 passes no attention.

C5 (circle), for each reading. A run is one training seed at one width; all runs of a variant count
alike. `san`: the share of runs that end in one point, minus one half (Wilson's interval).
`san_skip`, `san_mlp`: the share of san's runs that end in one point minus that of the variant's
(Newcombe's interval for two independent shares, from their two Wilson intervals).

C6, for each task, reading, number of epochs and control: the mean accuracy of short paths minus
that of long ones, within each training seed; the interval is Student's over the seeds. Sets of 20
paths are judged; of the frozen terms, each length alone. What each control decides:

    published      the curve of the paper's Figure 4, by itself: lost rank and unknown inputs mixed
    residual_kept  the same paths, as the network was trained to use them. Where `published` is
                   supported and this is opposite, the published curve is no sign of lost rank
                   alone: the same paths carry more as they get longer, if nothing is cut
    frozen         the terms that the network's output really is the sum of, by length: whether its
                   short paths carry it. This is what C6 says of a trained network
    reread         published states, classifier refitted: what was lost, not what was displaced
    layer_drop     as published, for networks to which a shortened path is nothing new
    pure           as published, for networks that never had a residual; of those only the paths of
                   full length are a part

The sets of paths are the same for every training seed, so that the interval leaves out the spread
over sets, which stands beside it as `std_draws`.

Two claims say why long paths of the published evaluation fail, each within a training seed. Both
may hold; neither is the complement of the other.

    information kept    accuracy of long paths re-read, minus the trivial predictor's. Re-read and
                        fitted on the same tokens (where there are shuffled labels), minus the
                        better of the trivial predictor and the shuffled labels. Supported: what the
                        labels need is still in the states. Opposite: it is not, or not linearly
    shifted inputs      accuracy of long paths re-read minus that as published. Supported: the
                        classifier alone, fitted anew, wins back what the evaluation had lost

Error rate and power, simulated (the tests repeat the main cases). Of flat curves whose lengths
spread by 0.03 around the network's own level, 5 % are judged supported or opposite, half of them
each, with 2 to 16 seeds; where that spread is exponential 5 to 6 %, opposite (the side of the tail)
more often than supported. A fall of 0.05 from short to long is found with 2 seeds in 17, with 4 in
72, with 8 in 99 of 100 cases. The rates of shares are exact: two equal shares differ in at most
6.4 % of cases at 12 runs, 5.4 % at 36, 5.6 % at 72, less often where they are near 0 or 1; 0.5
against 0.1 is found in 60 of 100 cases at 12 runs, 98 at 36. A share of one half is judged another
in 3.9 % of cases at 12 runs, 6.5 % at 36, 4.4 % at 72. Nothing is corrected for the number of
claims: about one in twenty errs by chance.
"""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from rankcollapse.intervals import (
    ERROR_RATE,
    MINIMUM_SEEDS,
    difference_interval,
    mean_interval,
    share_interval,
)
from rankcollapse.tables import read_csv, write_csv
from rankcollapse.task_tables import (
    CIRCLE_COLUMNS,
    CLAIM_COLUMNS,
    PUBLISHED_SHAPES,
    comparable_scores,
    read_scores,
    training,
)
from rankcollapse.vocabulary import READINGS

VERDICTS = ("supported", "not supported", "opposite", "one seed", "not measured")
# Which paths of a control C6 is judged by.
C6_PATHS = {
    "published": "20",
    "residual_kept": "20",
    "frozen": "only",
    "reread": "20",
    "layer_drop": "20",
    "pure": "20",
}

_MEAN_RULE = f"{1 - ERROR_RATE:.0%} t interval over training seeds".replace("%", " %")
_SHARE_RULE = f"{1 - ERROR_RATE:.0%}".replace("%", " %")


class Judged(NamedTuple):
    """What came out: columns `effect` to `verdict` of a claim."""

    effect: float
    low: float
    high: float
    seeds: int
    verdict: str


def judge(scores: pd.DataFrame, circle: pd.DataFrame) -> pd.DataFrame:
    """Judge C5, C6 and the two claims about the cause by the rule of this module.

    Args:
        scores: `task_tables.SCORE_COLUMNS`; networks of other shapes are passed over.
        circle: `task_tables.CIRCLE_COLUMNS`.

    Returns:
        `CLAIM_COLUMNS`, a row for each claim and control, also of those that were not measured.
        `claim` begins with "C5", "C6", "information kept" or "shifted inputs" and then names the
        reading and the epochs.

    Raises:
        TableError: a training seed occurs twice with the same setting.
    """
    known = comparable_scores([scores])
    rows: list[tuple[Any, ...]] = []
    for reading in READINGS:
        rows += _circle_claims(circle[circle["reading"] == reading], reading)
    for task, (_, depth, _) in PUBLISHED_SHAPES.items():
        of_task = known[known["task"] == task]
        for control in C6_PATHS:
            for name, of_setting in _settings(of_task, control):
                judged, rule = _short_paths(of_setting, control, depth)
                rows.append((f"C6, {name}", task, control, *judged, rule))
        for name, of_setting in _settings(of_task, "reread"):
            for claim, judged, rule in _causes(of_setting, depth):
                rows.append((f"{claim}, {name}", task, "reread", *judged, rule))
    return pd.DataFrame(rows, columns=CLAIM_COLUMNS)


def write_claims(scores_paths: Iterable[Path], circle_path: Path, output: Path) -> pd.DataFrame:
    """Judge the claims and write them.

    Args:
        scores_paths: the tables of scores, one of each trained run.
        circle_path: the table of the circle's runs.
        output: the CSV to write.

    Returns:
        The claims, as `judge`.

    Raises:
        TableError: a table is missing or damaged, or a training seed occurs twice.
    """
    scores = pd.concat([read_scores(path) for path in scores_paths], ignore_index=True)
    claims = judge(scores, read_csv(circle_path, CIRCLE_COLUMNS))
    write_csv(output, claims)
    return claims


def _circle_claims(runs: pd.DataFrame, reading: str) -> Iterator[tuple[Any, ...]]:
    san = runs[runs["variant"] == "san"]
    for variant in ("san", "san_skip", "san_mlp"):
        other = runs[runs["variant"] == variant]
        if variant == "san":
            rule = f"share of san's runs that end in one point, minus 1/2; {_SHARE_RULE} Wilson"
            judged = _judged(_more_than_half, san)
        else:
            rule = f"share of san's runs that end in one point minus {variant}'s; {_SHARE_RULE} "
            rule += "Newcombe interval"
            judged = _judged(difference_interval, san, other)
        yield (f"C5, {reading}", "circle", variant, *judged, rule)


def _judged(compare: Callable[..., tuple[float, float, float]], *groups: pd.DataFrame) -> Judged:
    """Judge by shares of collapsed runs; seeds are those of the group that has fewer."""
    seeds = min(int(runs["seed"].nunique()) for runs in groups)
    if seeds == 0:
        return Judged(np.nan, np.nan, np.nan, 0, "not measured")
    counts = [(int(runs["collapsed"].astype(bool).sum()), len(runs)) for runs in groups]
    return _verdict(*compare(*counts), seeds)


def _more_than_half(san: tuple[int, int]) -> tuple[float, float, float]:
    low, high = share_interval(*san)
    return san[0] / san[1] - 0.5, float(low) - 0.5, float(high) - 0.5


def _settings(scores: pd.DataFrame, control: str) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield each reading and number of epochs in which a control could have been measured."""
    found = scores[scores["training"] == training(control)]
    if found.empty:
        yield READINGS[0], found
    by = [found["reading"].map(list(READINGS).index), "epochs"]
    for _, rows in found.groupby(by):
        first = rows.iloc[0]
        yield f"{first['reading']}, {first['epochs']} epochs", rows


def _short_paths(scores: pd.DataFrame, control: str, depth: int) -> tuple[Judged, str]:
    short, long = range(1, depth // 2 + 1), range(depth // 2 + 1, depth + 1)
    paths = C6_PATHS[control]
    difference = _level(scores, control, paths, short) - _level(scores, control, paths, long)
    kind = "frozen terms" if paths == "only" else f"{paths} paths"
    rule = (
        f"mean accuracy of lengths {_span(short)} minus that of {_span(long)}, {kind}; {_MEAN_RULE}"
    )
    return _mean(difference), rule


def _causes(scores: pd.DataFrame, depth: int) -> Iterator[tuple[str, Judged, str]]:
    long = range(depth // 2 + 1, depth + 1)
    reread = _level(scores, "reread", "20", long)
    shuffled = _level(scores, "reread", "shuffled", long)
    trivial = _level(scores, "trivial", "", None)
    base, name = trivial, "the trivial predictor's"
    if not shuffled.empty:
        base = pd.concat([trivial, shuffled], axis=1, join="inner").max(axis=1)
        name = "the better of trivial predictor and shuffled labels"
    what = f"accuracy of lengths {_span(long)} re-read (20 paths) minus"
    yield "information kept", _mean(reread - base), f"{what} {name}; {_MEAN_RULE}"
    published = _level(scores, "published", "20", long)
    yield "shifted inputs", _mean(reread - published), f"{what} that as published; {_MEAN_RULE}"


def _level(scores: pd.DataFrame, control: str, paths: str, lengths: range | None) -> pd.Series:
    """Return the mean accuracy over these lengths of each seed that has them all."""
    rows = scores[(scores["control"] == control) & (scores["paths"] == paths)]
    wanted = rows["length"].isna() if lengths is None else rows["length"].isin(list(lengths))
    by_seed = rows[wanted].groupby("seed")["accuracy"]
    needed = 1 if lengths is None else len(lengths)
    levels: pd.Series = by_seed.mean()[by_seed.count() == needed]
    return levels


def _mean(differences: pd.Series) -> Judged:
    """Judge the mean of differences within seeds; a seed that has only one side has none."""
    values = differences.dropna().tolist()
    if not values:
        return Judged(np.nan, np.nan, np.nan, 0, "not measured")
    ends = mean_interval(values) if len(values) >= MINIMUM_SEEDS else (np.nan, np.nan)
    return _verdict(float(np.mean(values)), *ends, len(values))


def _verdict(effect: float, low: float, high: float, seeds: int) -> Judged:
    if seeds < MINIMUM_SEEDS:
        return Judged(effect, np.nan, np.nan, seeds, "one seed")
    verdict = "supported" if low > 0 else "opposite" if high < 0 else "not supported"
    return Judged(effect, low, high, seeds, verdict)


def _span(lengths: range) -> str:
    return f"{lengths[0]} to {lengths[-1]}"
