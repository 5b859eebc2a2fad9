"""Ratios that no network gave, in the columns of the real table."""

from functools import cache

import numpy as np
import pandas as pd

from rankcollapse.components import COLUMNS, RESOLVED, networks


def rows(ratios, *, condition="baseline", factor="skip", level="skip=0", seed=0):
    """Return one network of one seed, its ratios layer by layer."""
    ratios = np.asarray(ratios, dtype=float)
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(np.where(ratios >= RESOLVED, ratios, np.nan))
        rates = np.where(ratios[:-1] < 0.5, logs[1:] / logs[:-1], np.nan)
    frame = pd.DataFrame({"layer": range(len(ratios)), "ratio": ratios})
    frame["rate"] = [np.nan, *rates]
    return frame.assign(condition=condition, factor=factor, level=level, seed=seed)[COLUMNS]


def cubic(start=0.3, layers=12):
    """Return ratios whose every one is the cube of the one before."""
    return [start ** (3.0**layer) for layer in range(layers + 1)]


def falling(decades, layers=12):
    """Return ratios that lose so many decades a layer."""
    return [0.9 * 10.0 ** (-decades * layer) for layer in range(layers + 1)]


@cache
def study(seeds=(0, 1)):
    """Return every network: those without a skip cubic, those with one steady."""
    frames = []
    for condition, factor, level, setting in networks():
        names = {"condition": condition, "factor": factor, "level": level}
        for seed in seeds:
            curve = _steady if setting.skip else _cubic
            frames.append(curve(seed, setting.depth).assign(**names))
    return pd.concat(frames, ignore_index=True)


@cache
def _steady(seed, depth):
    return rows(falling(0.01 + 0.001 * seed, depth), seed=seed)


@cache
def _cubic(seed, depth):
    return rows(cubic(0.3 + 0.01 * seed, depth), seed=seed)
