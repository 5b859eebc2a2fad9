"""Whether short paths carry trained networks because rank is lost or because networks break.

The rule, from the verdicts of `rankcollapse.claims`, for networks trained with residuals:

    no fall   short paths of the published evaluation are not told to do better than long ones
    breaks    they do, and a classifier fitted anew wins accuracy back on long paths ("shifted
              inputs" is supported), or with the residual kept long paths do better
    loses     they do, also after the classifier is fitted anew ("re-read" is supported)

Both may hold. Where there is one seed, the sign of its effect stands for the verdict, and it is
said that no interval is claimed.
"""

from collections.abc import Iterable

import numpy as np
import pandas as pd

from rankcollapse.report.findings import counted, listed, number
from rankcollapse.report.trained import TASKS, Setting

_DIRECTIONS = {"supported": 1, "not supported": 0, "opposite": -1}
NOTHING = "No trained network was measured in this profile."

# Kind: the sentence of the section, the words of the summary.
_KINDS = {
    "both": (
        "Both, in {}: a network trained with residuals breaks when they are cut, and long paths "
        "also keep less of what the labels need.",
        "broken networks and lost information, both, in {}",
    ),
    "breaks": (
        "The network breaks when its residuals are cut, in {}; that long paths keep less of what "
        "the labels need is not shown.",
        "networks that break when their residuals are cut, in {}",
    ),
    "loses": (
        "Long paths keep less of what the labels need, in {}; that the network breaks when its "
        "residuals are cut is not shown.",
        "information that long paths lose, in {}",
    ),
    "neither": ("Neither is shown, in {}.", "neither of the two causes is shown in {}"),
    "no fall": (
        "No fall is shown, in {}: with the training seeds there are, the published evaluation does "
        "not tell that short paths do better than long ones.",
        "no fall is shown with the training seeds there are in {}",
    ),
    "unknown": ("The controls were not measured, in {}.", "controls not measured in {}"),
}


def direction(setting: Setting, kind: str, control: str) -> int | None:
    """Return 1 if a claim holds, -1 if its opposite does, 0 if neither; None if not measured."""
    row = setting.claim(kind, control)
    if row is None:
        return None
    return _DIRECTIONS.get(row.verdict, int(np.sign(row.effect)))


def cause(setting: Setting) -> str:
    """Return why accuracy falls with path length, by the rule of this module."""
    fall = direction(setting, "C6", "published")
    shifted = direction(setting, "shifted inputs", "reread")
    kept = direction(setting, "C6", "residual_kept")
    reread = direction(setting, "C6", "reread")
    if fall is None or (shifted, kept, reread) == (None, None, None):
        return "unknown"
    if fall <= 0:
        return "no fall"
    breaks, loses = shifted == 1 or kept == -1, reread == 1
    names = {(True, True): "both", (True, False): "breaks", (False, True): "loses"}
    return names.get((breaks, loses), "neither")


def summary(found: list[Setting]) -> str:
    """Return the answer in one sentence, for the top of the page."""
    groups = _by_cause(found)
    if not groups:
        return NOTHING
    said = "; ".join(_KINDS[kind][1].format(_names(group)) for kind, group in groups)
    return f"What makes accuracy fall with path length in trained networks (Figure 4): {said}."


def answer(found: list[Setting]) -> list[str]:
    """Return the answer in a few sentences, the causes first, then the other controls."""
    groups = _by_cause(found)
    if not groups:
        return [NOTHING]
    result = [_KINDS[kind][0].format(_names(group)) for kind, group in groups]
    ours = [one for one in found if one.training == "residual"]
    result.append(_kept(ours))
    result.append(_paths_of("Of the terms that sum to the output (frozen)", ours, "frozen"))
    for control, name in (
        ("layer_drop", "In networks trained with layer drop"),
        ("pure", "In networks trained without residuals"),
    ):
        retrained = [one for one in found if one.training == control]
        result.append(_paths_of(name, retrained, control))
    return result


def _by_cause(found: list[Setting]) -> list[tuple[str, list[Setting]]]:
    ours = [one for one in found if one.training == "residual"]
    groups = [(kind, [one for one in ours if cause(one) == kind]) for kind in _KINDS]
    return [(kind, group) for kind, group in groups if group]


def _paths_of(name: str, found: list[Setting], control: str) -> str:
    """Say where short paths do better, where long ones do, and where no difference is shown."""
    words = {
        1: "short paths do better in {}",
        -1: "long paths do better in {}",
        0: "no difference is shown in {}",
        None: "not measured in {}",
    }
    said = _said(words, found, "C6", control)
    return f"{name}: {said or 'not measured'}."


def _kept(found: list[Setting]) -> str:
    """Say where the labels can still be read from the states of long paths."""
    words = {
        1: "yes in {}",
        -1: "no, or not linearly, in {}",
        0: "not shown in {}",
        None: "not measured in {}",
    }
    said = _said(words, found, "information kept", "reread")
    return f"Can a classifier fitted anew read the labels from long paths at all: {said}."


def _said(words: dict[int | None, str], found: list[Setting], kind: str, control: str) -> str:
    groups = {
        wanted: [one for one in found if direction(one, kind, control) == wanted]
        for wanted in words
    }
    return "; ".join(
        words[wanted].format(listed(map(_short_name, group)))
        for wanted, group in groups.items()
        if group
    )


def _names(found: Iterable[Setting]) -> str:
    return listed(_name(one) for one in found)


def _short_name(one: Setting) -> str:
    """Return the task, with no more than tells it apart."""
    remarks = [
        "as described" if one.reading == "as-described" else "",
        "one seed" if one.seeds == 1 else "",
        "" if one.learned else "not learned",
    ]
    said = ", ".join(remark for remark in remarks if remark)
    return TASKS[one.task].lower() + (f" ({said})" if said else "")


def _name(one: Setting) -> str:
    """Return the task, how its networks were trained, and what calls for caution."""
    remarks = [
        "as described" if one.reading == "as-described" else "",
        counted(one.epochs, "epoch"),
        "one seed, no interval" if one.seeds == 1 else "",
        "" if one.learned else "not learned",
    ]
    return f"{TASKS[one.task].lower()} ({'; '.join(remark for remark in remarks if remark)})"


def ratios(found: list[Setting]) -> str:
    """Return the residual ratios of short and long paths, with the residual cut and kept."""
    said = [part for one in found if one.training == "residual" and (part := _ratio(one))]
    if not said:
        return ""
    return (
        "Residual ratio of the states that were classified, mean over short and over long paths: "
        f"{'; '.join(said)}."
    )


def _ratio(one: Setting) -> str:
    parts = []
    for control, name in (("published", "residual cut"), ("residual_kept", "kept")):
        short, long = (one.level(control, half, "residual_ratio") for half in one.halves)
        if not pd.isna(short) and not pd.isna(long):
            parts.append(f"{name} {number(short, 2)} and {number(long, 2)}")
    return f"{_short_name(one)}, {', '.join(parts)}" if parts else ""
