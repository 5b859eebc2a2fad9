"""Trained networks on the disk: weights, the settings that they were trained with, their curves."""

import json
from dataclasses import asdict
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from rankcollapse.errors import RankCollapseError
from rankcollapse.experiments import Experiment, ExperimentError
from rankcollapse.files import atomic_directory
from rankcollapse.san import Network, Parameters, initialise
from rankcollapse.tables import write_csv
from rankcollapse.training import History, Recipe


def save(output: Path, chosen: Experiment, parameters: Parameters, history: History) -> None:
    """Write a folder with the trained weights, the settings and the learning curves."""
    import pandas as pd

    rows = [
        (epoch, seed, loss, accuracy)
        for epoch, values in enumerate(zip(history.loss, history.accuracy, strict=True), start=1)
        for seed, loss, accuracy in zip(chosen.seeds, *values, strict=True)
    ]
    with atomic_directory(output) as folder:
        contiguous = {name: value.contiguous() for name, value in parameters.items()}
        save_file(contiguous, folder / "model.safetensors")
        text = json.dumps({**asdict(chosen), "seeds": list(chosen.seeds)}, indent=1)
        (folder / "experiment.json").write_text(text + "\n", encoding="utf-8")
        columns = ["epoch", "seed", "loss", "accuracy"]
        write_csv(folder / "history.csv", pd.DataFrame(rows, columns=columns))


def load(folder: Path) -> tuple[Experiment, Parameters]:
    """Read what `save` wrote.

    Raises:
        ExperimentError: it is missing or damaged.
    """
    try:
        told = json.loads((folder / "experiment.json").read_text(encoding="utf-8"))
        parameters = load_file(folder / "model.safetensors")
        chosen = Experiment(
            told["task"],
            told["reading"],
            told["training"],
            tuple(told["seeds"]),
            Network(**told["network"]),
            Recipe(**told["recipe"]),
        )
        _require_same_shapes(parameters, initialise(chosen.network, chosen.seeds))
    except (
        OSError,
        ValueError,
        KeyError,
        TypeError,
        SafetensorError,
        RankCollapseError,
    ) as error:
        raise ExperimentError(f"{folder}: no trained network ({error}); train it again") from None
    return chosen, parameters


def _require_same_shapes(parameters: Parameters, expected: Parameters) -> None:
    shapes, wanted = (
        {name: value.shape for name, value in some.items()} for some in (parameters, expected)
    )
    if shapes != wanted:
        raise ValueError("its weights are not those of the experiment that it tells of")
