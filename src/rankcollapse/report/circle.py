"""What Figure 3 shows, in words: how many runs on the circle end in one point."""

from dataclasses import dataclass

import pandas as pd

from rankcollapse.figures import figure3
from rankcollapse.figures.panels import select
from rankcollapse.figures.style import VARIANTS
from rankcollapse.intervals import ERROR_RATE, share_interval
from rankcollapse.report.findings import counted, percent
from rankcollapse.report.trained import signed
from rankcollapse.vocabulary import READINGS


@dataclass(frozen=True)
class Reading:
    """What came out in one reading of the paper.

    Attributes:
        name: as in tables.
        sentences: the result in words.
        cells: a row for each variant and width, as `figures.figure3.table`.
    """

    name: str
    sentences: list[str]
    cells: pd.DataFrame


def readings(circle: pd.DataFrame, claims: pd.DataFrame) -> list[Reading]:
    """Return what came out in each reading that was run.

    Args:
        circle: `task_tables.CIRCLE_COLUMNS`.
        claims: as `trained.read_claims`.
    """
    if circle.empty:
        return []
    cells = figure3.table(pd.DataFrame(), circle)
    return [
        Reading(
            name,
            _sentences(select(circle, reading=name), select(claims, kind="C5", reading=name)),
            select(cells, reading=name),
        )
        for name in READINGS
        if (circle["reading"] == name).any()
    ]


def _sentences(runs: pd.DataFrame, claims: pd.DataFrame) -> list[str]:
    shares = [_share(select(runs, variant=name), VARIANTS[name].label) for name in figure3.VARIANTS]
    learned = int((runs["one_step_error"] < figure3.LEARNED).sum())
    result = [
        f"Runs that end in one point, all widths together: {'; '.join(shares)}.",
        f"{learned} of {counted(len(runs), 'run')} learned the step that they are to repeat (error "
        "below half of it: staying in place has an error of one step).",
    ]
    judged = [_judged(str(row.control), row) for row in claims.itertuples(index=False)]
    return [*result, f"Claim C5: {'; '.join(judged)}."] if judged else result


def _share(runs: pd.DataFrame, name: str) -> str:
    if runs.empty:
        return f"{name} not measured"
    count = int(runs["collapsed"].sum())
    low, high = (float(end) for end in share_interval(count, len(runs)))
    return (
        f"{name} {count} of {len(runs)} ({percent(1 - ERROR_RATE)} interval "
        f"{100 * low:.0f} to {100 * high:.0f}\N{NO-BREAK SPACE}%)"
    )


def _judged(variant: str, row: object) -> str:
    than = "not" if variant == "san" else VARIANTS[variant].label
    said = f"SAN ends in one point more often than {than}"
    effect, low, high, verdict = (getattr(row, key) for key in ("effect", "low", "high", "verdict"))
    if verdict in ("not measured", "one seed"):
        return f"{said}: {verdict}"
    return f"{said}: {verdict} ({signed(effect)}, {signed(low)} to {signed(high)})"
