"""Does each published quartile of chained attention reproduce? The rule.

Compared are the distances to rank one of BERT's products as published. A published box holds 100
pairs of path and sequence, of one network; its quartiles q1, median, q3 are known to a factor of
1.04, half a pixel. Symbols: S seeds, Q_s our quartile over all pairs with seed s, y_s = log Q_s.

Where a quartile of 100 other pairs may fall, if all is right, is simulated. Each draw adds to
mean(y)

    theirs   log Q* - y_s, with Q* the quartile of 100 pairs drawn from 32 of our sequences, drawn
             with replacement: pairs of one sequence are alike, and theirs are other sequences
    ours     y_s - log Q*, with Q* that of as many pairs as ours, drawn likewise: ours are a sample
    seeds    sqrt(var(y) (1 + 1/S)) t, with var(y) the variance (S - 1) and t Student's with S - 1
             degrees of freedom: the published network is one more seed. Pretrained weights are the
             same on both sides and have no such term

with s running through the seeds. The interval holds the middle 95 % of the draws and is widened by
1.04 at either end; the published quartile is *reproduced* if it lies inside. At initialisation
fewer than 3 seeds say too little of var(y): *not measured*.

A published box whose q1 lies below the floor of float32 (1.9e-6) is round-off and *below precision
floor*, all three quartiles: they add what rounding leaves to what the products leave. This holds
for initialised BERT from depth 4.

The description of the published figure does not say which layers a path of depth k passes. Both
rules of `chained` are judged, each by itself, where both were measured. That "any" comes first was
decided by initialised BERT at depths 1 to 3 and is no independent finding there: heads of the first
layers are further from rank one than heads of any layers, by more than the seeds differ.

Error rate and power, simulated (a test repeats the main case). Of right quartiles 1 to 4 % fail,
fewer than 5 because of the widening. If ours and theirs differ by a factor of 1.5, and the
logarithms spread by 0.5 over pairs, 99 % fail with one network and 60 % if sequences spread by 0.5
too; with seeds that spread by 0.2 few do, 9 % with 3 seeds and 19 % with 4, and of a factor of 2
29 % and 50 %. With 6 seeds that spread by 0.1 it is 50 % and 98 %. The three quartiles of a box and
the boxes of all depths share their pairs, so that failures come in groups.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from rankcollapse.chained_tables import (
    LAYERS,
    PUBLISHED_CHECKPOINT,
    QUARTILES,
    SHARES,
    read_chained,
    read_published,
)
from rankcollapse.intervals import ERROR_RATE
from rankcollapse.precision import EPS, precision_floor
from rankcollapse.published import TEXTS
from rankcollapse.tables import write_csv
from rankcollapse.verdicts import MINIMUM_SEEDS

COLUMNS = [
    "checkpoint",
    "weights",
    "layers",  # which of them a path passes: "any" or "first"
    "depth",
    "quartile",
    "published",
    "measured",  # geometric mean over the seeds
    "low",  # of the interval
    "high",
    "seeds",
    "pairs",  # of all seeds together
    "verdict",  # of rankcollapse.verdicts.VERDICTS
    "reason",
]
PUBLISHED_PAIRS = 100
READING_FACTOR = 1.04
DRAWS = 1000

_DRAW_SEED = 2021

Array = NDArray[np.float64]
Counts = NDArray[np.int64]


class Spread(NamedTuple):
    """Where the three quartiles of a published box may fall, if all is right."""

    measured: Array  # [3]
    low: Array  # [3]
    high: Array  # [3]


def judge(pairs: pd.DataFrame, published: pd.DataFrame) -> pd.DataFrame:
    """Judge every published quartile by the rule of this module.

    Args:
        pairs: `chained_tables.CHAINED_COLUMNS`; other checkpoints and the reading as described are
            passed over.
        published: as `chained_tables.read_published` returns it.

    Returns:
        `COLUMNS`, three rows for each published box in the published order, for each rule of the
        layers that was measured ("any" if none was).
    """
    ours = pairs[pairs["checkpoint"].eq(PUBLISHED_CHECKPOINT) & pairs["reading"].eq("as-published")]
    groups = dict(list(ours.groupby(["layers", "weights", "depth"])))
    rules = [rule for rule in LAYERS if (ours["layers"] == rule).any()] or list(LAYERS[:1])
    rows = []
    for rule in rules:
        for box in published.itertuples(index=False):
            found = groups.get((rule, box.weights, box.depth), ours[:0])
            rows += [
                {"layers": rule, "weights": box.weights, "depth": box.depth, **judged}
                for judged in _judge_box(box, found)
            ]
    return pd.DataFrame(rows).assign(checkpoint=PUBLISHED_CHECKPOINT)[COLUMNS]


def _judge_box(box: Any, pairs: pd.DataFrame) -> Iterator[dict[str, Any]]:  # noqa: ANN401
    """Yield columns `quartile` to `reason` of the three quartiles of one published box."""
    seeds = [seed for _, seed in pairs.groupby("seed", dropna=False)]
    needed = MINIMUM_SEEDS if box.weights == "init" else 1
    nothing = np.full(len(QUARTILES), np.nan)
    spread = Spread(nothing, nothing, nothing)
    if len(seeds) >= needed:
        spread = expected(seeds)
    refusal = _refusal(box, len(seeds), needed)
    for index, name in enumerate(QUARTILES):
        published = float(getattr(box, name))
        ours = {key: float(values[index]) for key, values in spread._asdict().items()}
        verdict, reason = refusal or _compare(published, **ours)
        counts = {"seeds": len(seeds), "pairs": len(pairs)}
        judged = {"verdict": verdict, "reason": reason}
        yield {"quartile": name, "published": published, **ours, **counts, **judged}


def _refusal(box: Any, seeds: int, needed: int) -> tuple[str, str] | None:  # noqa: ANN401
    """Say why a box is not compared, if it is not."""
    floor = precision_floor("float32")
    if box.q1 < floor:
        reason = f"the published q1 is round-off, below {floor:.2g}: the box is not compared"
        return "below precision floor", reason
    if seeds < needed:
        return "not measured", f"{seeds} of at least {needed} networks: measure this model"
    return None


def _compare(published: float, measured: float, low: float, high: float) -> tuple[str, str]:
    interval = f"the 95 % interval of {PUBLISHED_PAIRS} pairs, widened by {READING_FACTOR}"
    if low <= published <= high:
        return "reproduced", f"inside {interval}"
    side = "above" if published > high else "below"
    return "not reproduced", f"{side} {interval}: {published / measured:.3g} times ours"


def expected(seeds: list[pd.DataFrame]) -> Spread:
    """Return where the quartiles of a published box fall with probability 0.95 or more.

    Args:
        seeds: the pairs of one depth of each network, at least one; columns sequence, distance.
    """
    generator = np.random.default_rng(_DRAW_SEED)
    logs = np.stack([_log_quartiles(seed["distance"].to_numpy(float)) for seed in seeds])  # [S, 3]
    count = len(seeds)
    errors = np.concatenate(
        [_sampling(seed, -(-DRAWS // count), generator) for seed in seeds]
    )  # [draw, 3]
    if count > 1:
        scale = np.sqrt(logs.var(axis=0, ddof=1) * (1 + 1 / count))
        errors += scale * generator.standard_t(count - 1, size=(len(errors), 1))
    centre = logs.mean(axis=0)
    low, high = np.quantile(errors, [ERROR_RATE / 2, 1 - ERROR_RATE / 2], axis=0)
    widening = np.log(READING_FACTOR)
    return Spread(np.exp(centre), np.exp(centre + low - widening), np.exp(centre + high + widening))


def _sampling(pairs: pd.DataFrame, draws: int, generator: np.random.Generator) -> Array:
    """Return what sampling adds to the logarithms of the quartiles, theirs and ours, [draw, 3]."""
    ordered = pairs.sort_values("sequence", kind="stable")
    values = ordered["distance"].to_numpy(float)
    sizes: Counts = np.bincount(ordered["sequence"].to_numpy(np.int64))
    sizes = sizes[sizes > 0]
    theirs, ours = (
        _log_quartiles(_resample(values, sizes, (draws, count), texts, generator))
        for count, texts in ((PUBLISHED_PAIRS, TEXTS), (len(values), len(sizes)))
    )
    return theirs - ours


def _resample(
    values: Array,
    sizes: Counts,
    shape: tuple[int, int],
    texts: int,
    generator: np.random.Generator,
) -> Array:
    """Draw sequences, and pairs of them, [draw, pair]; `sizes` are the pairs of each sequence."""
    chosen = generator.integers(len(sizes), size=(shape[0], texts))
    picked = np.take_along_axis(chosen, generator.integers(texts, size=shape), axis=1)
    within = (generator.random(shape) * sizes[picked]).astype(int)
    drawn: Array = values[(sizes.cumsum() - sizes)[picked] + within]
    return drawn


def _log_quartiles(values: Array) -> Array:
    """Return the logarithms of the quartiles over the last axis, [*, 3]; 0 counts as one eps."""
    shares = [SHARES[name] for name in QUARTILES]
    quartiles = np.quantile(np.maximum(values, EPS["float64"]), shares, axis=-1)
    return np.moveaxis(np.log(quartiles), 0, -1)


def write_chained_verdicts(
    tables: Iterable[Path], published_path: Path, output: Path
) -> pd.DataFrame:
    """Judge the published quartiles and write `chained_attention.csv`.

    Args:
        tables: of `chained_tables.CHAINED_COLUMNS`, one for each network.
        published_path: `data/published/chained_attention.csv`.
        output: the file to write.

    Returns:
        The verdicts, as `judge`.

    Raises:
        TableError: a table is missing or damaged.
        PublishedError: the published numbers are missing or changed.
    """
    pairs = pd.concat([read_chained(path) for path in tables], ignore_index=True)
    verdicts = judge(pairs, read_published(published_path))
    write_csv(output, verdicts)
    return verdicts
