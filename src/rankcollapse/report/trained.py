"""What the trained networks show, in words: Figure 4 by task, and how the claims were judged.

Symbols: L layers; short paths are those of length 1 to floor(L / 2), long ones those after them.
A setting: task, reading, training ("residual", "layer_drop" or "pure") and number of epochs.
"""

from dataclasses import dataclass
from typing import Any

import pandas as pd

from rankcollapse.claims import C6_PATHS
from rankcollapse.figures.panels import select
from rankcollapse.figures.style import CONTROLS
from rankcollapse.intervals import ERROR_RATE
from rankcollapse.report.findings import counted, listed, number, percent
from rankcollapse.task_tables import PUBLISHED_SHAPES, training
from rankcollapse.vocabulary import READINGS, TRAININGS

TASKS = {"sorting": "Sorting", "convex_hull": "Convex hull", "memorization": "Memorisation"}
_TRAINED = {
    "residual": "trained with residuals",
    "layer_drop": "trained with layer drop",
    "pure": "trained without residuals",
}
_CLAIM = r"^(?P<kind>[^,]+), (?P<reading>[^,]+)(?:, (?P<epochs>\d+) epochs)?$"


@dataclass(frozen=True)
class Setting:
    """Networks that were trained alike.

    Attributes:
        task: as in tables.
        reading: as in tables.
        training: as in tables.
        epochs: of training.
        seeds: of training.
        rows: what was measured on them, `task_tables.ACCURACY_COLUMNS`.
        trivial: accuracy of the task's trivial predictor; missing if it was not measured.
        claims: the verdicts on them, as `read_claims`.
    """

    task: str
    reading: str
    training: str
    epochs: int
    seeds: int
    rows: pd.DataFrame
    trivial: float
    claims: pd.DataFrame

    @property
    def name(self) -> str:
        """Return how they were trained: "as published, 65 epochs, 8 training seeds"."""
        how = "" if self.training == "residual" else f"{_TRAINED[self.training]}, "
        count = counted(self.seeds, "training seed")
        return f"{how}{self.reading.replace('-', ' ')}, {counted(self.epochs, 'epoch')}, {count}"

    @property
    def halves(self) -> tuple[range, range]:
        """Return the lengths of short and of long paths."""
        depth = PUBLISHED_SHAPES[self.task][1]
        return range(1, depth // 2 + 1), range(depth // 2 + 1, depth + 1)

    @property
    def entire(self) -> float:
        """Return the accuracy of the entire network."""
        return float(_entire(self.rows)["accuracy_mean"].iloc[0])

    @property
    def learned(self) -> bool:
        """Tell whether the entire network does better than the trivial predictor."""
        return not self.entire <= self.trivial

    def claim(self, kind: str, control: str) -> Any:  # noqa: ANN401
        """Return a claim's row, or None if it was not measured."""
        found = select(self.claims, kind=kind, control=control)
        found = found[found["verdict"] != "not measured"]
        return None if found.empty else _rows(found)[0]

    def level(self, control: str, lengths: range, column: str = "accuracy_mean") -> float:
        """Return the mean of a column over these lengths, of the paths that C6 is judged by."""
        rows = select(self.rows, control=control, paths=C6_PATHS[control])
        return float(rows.loc[rows["length"].isin(list(lengths)), column].mean())


def read_claims(claims: pd.DataFrame) -> pd.DataFrame:
    """Return `task_tables.CLAIM_COLUMNS` with a claim's kind, reading and epochs as columns."""
    return claims.join(claims["claim"].astype(str).str.extract(_CLAIM))


def settings(accuracy: pd.DataFrame, claims: pd.DataFrame) -> list[Setting]:
    """Return what was trained, by task, training, reading and epochs.

    Args:
        accuracy: `task_tables.ACCURACY_COLUMNS`, typed.
        claims: as `read_claims`.
    """
    found = [_setting(accuracy, claims, network) for network in _rows(_entire(accuracy))]
    return sorted(
        found,
        key=lambda one: (
            list(TASKS).index(one.task),
            TRAININGS.index(one.training),
            READINGS.index(one.reading),
            one.epochs,
        ),
    )


def _entire(rows: pd.DataFrame) -> pd.DataFrame:
    return rows[rows["length"].isna() & (rows["paths"] == "") & (rows["control"] != "trivial")]


def _setting(accuracy: pd.DataFrame, claims: pd.DataFrame, network: Any) -> Setting:  # noqa: ANN401
    of_task = accuracy[accuracy["task"] == network.task]
    trained = training(network.control)
    rows = select(of_task, reading=network.reading)
    rows = rows[(rows["epochs"] == network.epochs) & (rows["control"].map(training) == trained)]
    judged = select(claims, task=network.task, reading=network.reading)
    judged = judged[
        (judged["epochs"] == str(network.epochs)) & (judged["control"].map(training) == trained)
    ]
    trivial = pd.concat([frame[frame["control"] == "trivial"] for frame in (rows, of_task)])
    return Setting(
        task=str(network.task),
        reading=str(network.reading),
        training=trained,
        epochs=int(network.epochs),
        seeds=int(network.seeds),
        rows=rows,
        trivial=float(trivial["accuracy_mean"].iloc[0]) if len(trivial) else float("nan"),
        claims=judged,
    )


def sentences(setting: Setting) -> list[str]:
    """Say what the networks of a setting learned, and which of their paths carry it."""
    result = [_whole(setting)]
    if setting.training == "residual":
        result += [_fall(setting, "published"), _under_controls(setting)]
        result += [_added_up(setting), *_causes(setting)]
    else:
        result.append(_fall(setting, setting.training))
    return [sentence for sentence in result if sentence]


def absent(found: list[Setting], task: str) -> str:
    """Say which ways of training a task were not measured; nothing if all were."""
    there = {one.training for one in found if one.task == task}
    missing = [_TRAINED[name] for name in TRAININGS if name not in there]
    return f"Not measured in this profile: networks {listed(missing)}." if missing else ""


def _whole(setting: Setting) -> str:
    std = _entire(setting.rows)["std_seeds"].iloc[0]
    spread = "" if pd.isna(std) else f" (standard deviation over the seeds {std:.3f})"
    said = f"The entire network gets {setting.entire:.3f} of the tokens right{spread}"
    if pd.isna(setting.trivial):
        return f"{said}; the trivial predictor was not measured."
    verdict = "" if setting.learned else ": it has not learned the task"
    return f"{said}, the trivial predictor {setting.trivial:.3f}{verdict}."


def _fall(setting: Setting, control: str) -> str:
    row = setting.claim("C6", control)
    if row is None:
        return f"{_capital(CONTROLS[control])}: not measured."
    short, long = setting.halves
    first, last = (setting.level(control, range(end, end + 1)) for end in (short[0], long[-1]))
    ratio = number(setting.level(control, long, "residual_ratio"), 2)
    return (
        f"Evaluated as published, sets of {C6_PATHS[control]} paths get {first:.3f} at length "
        f"{short[0]} and {last:.3f} at length {long[-1]}; short minus long {judgement(row)} "
        f"(residual ratio of long paths {ratio})."
    )


def _under_controls(setting: Setting) -> str:
    parts = []
    for control in ("residual_kept", "frozen", "reread"):
        row = setting.claim("C6", control)
        if row is None:
            parts.append(f"{CONTROLS[control]} not measured")
            continue
        ratio = number(setting.level(control, setting.halves[1], "residual_ratio"), 2)
        parts.append(f"{CONTROLS[control]} {signed(row.effect)}, {row.verdict} ({ratio})")
    return (
        f"Short minus long under the controls, with the residual ratio of long paths: "
        f"{'; '.join(parts)}."
    )


def _added_up(setting: Setting) -> str:
    rows = select(setting.rows, control="frozen_cumulative", paths="up_to").set_index("length")
    levels = rows["accuracy_mean"]
    half, whole = setting.halves[0][-1], setting.halves[1][-1]
    if half not in levels.index or whole not in levels.index:
        return ""
    return (
        f"Added up, the frozen terms of length 0 to {half} get {levels[half]:.3f}; "
        f"all of them, which is the entire network, {levels[whole]:.3f}."
    )


def _causes(setting: Setting) -> list[str]:
    said = {
        "information kept": "Long paths re-read, less what is right without them (above 0: what "
        "the labels need is still in their states): {}.",
        "shifted inputs": "What a classifier fitted anew wins back on long paths: {}.",
    }
    rows = {kind: setting.claim(kind, "reread") for kind in said}
    return [said[kind].format(judgement(row)) for kind, row in rows.items() if row is not None]


def judgement(row: Any) -> str:  # noqa: ANN401
    """Return a claim's effect with its interval and verdict, or that one seed has none."""
    if row.verdict == "one seed":
        return f"{signed(row.effect)} from one seed, so no interval is claimed"
    return (
        f"{signed(row.effect)}, {percent(1 - ERROR_RATE)} interval {signed(row.low)} to "
        f"{signed(row.high)} over {counted(int(row.seeds), 'training seed')}: {row.verdict}"
    )


def halves_table(found: list[Setting]) -> list[dict[str, Any]]:
    """Return accuracy and residual ratio of short and long paths, a row a setting and control."""
    return [
        {
            "task": TASKS[one.task],
            "setting": one.name,
            "control": CONTROLS[control],
            "short": one.level(control, one.halves[0]),
            "long": one.level(control, one.halves[1]),
            "ratio_short": one.level(control, one.halves[0], "residual_ratio"),
            "ratio_long": one.level(control, one.halves[1], "residual_ratio"),
            "claim": row,
        }
        for one in found
        for control in CONTROLS
        if (row := one.claim("C6", control)) is not None
    ]


def claims_table(claims: pd.DataFrame) -> tuple[list[dict[str, Any]], list[str]]:
    """Return all claims, each with the number of its rule, and the rules."""
    rules = [str(rule) for rule in claims["rule"].unique()]
    names = {**CONTROLS, "san": "SAN", "san_skip": "SAN + skip", "san_mlp": "SAN + MLP"}
    rows = [
        row._asdict()
        | {
            "task": TASKS.get(row.task, _capital(row.task)),
            "control": names.get(row.control, row.control),
            "note": rules.index(row.rule) + 1,
        }
        for row in _rows(claims)
    ]
    return rows, rules


def _rows(frame: pd.DataFrame) -> list[Any]:
    return list(frame.itertuples(index=False))


def signed(value: float) -> str:
    """Return "+0.187" or "−0.050"."""
    return "–" if pd.isna(value) else f"{value:+.3f}".replace("-", "−")


def _capital(words: str) -> str:
    return words[:1].upper() + words[1:]
