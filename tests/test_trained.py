import json
import shutil

import pandas as pd
import pytest
import torch

from rankcollapse.experiments import ExperimentError, experiment, run
from rankcollapse.tasks import sorting
from rankcollapse.trained import load, save

TINY = {"depth": 2, "width": 12, "batch": 8, "epochs": 2}


@pytest.fixture(autouse=True)
def few_examples(monkeypatch):
    monkeypatch.setattr(sorting, "TRAIN", 48)
    monkeypatch.setattr(sorting, "HELD_OUT", 12)


@pytest.fixture
def folder(tmp_path):
    chosen = experiment("sorting", seeds=[4, 0], **TINY)
    save(tmp_path / "trained", chosen, *run(chosen))
    return tmp_path / "trained"


def test_what_is_saved_is_loaded(folder):
    chosen = experiment("sorting", seeds=[4, 0], **TINY)
    parameters, history = run(chosen)
    again, loaded = load(folder)
    assert again == chosen
    assert loaded.keys() == parameters.keys()
    assert all(torch.equal(loaded[name], value) for name, value in parameters.items())
    assert sorted(path.name for path in folder.iterdir()) == [
        "experiment.json",
        "history.csv",
        "model.safetensors",
    ]
    table = pd.read_csv(folder / "history.csv")
    assert list(table.columns) == ["epoch", "seed", "loss", "accuracy"]
    assert table[["epoch", "seed"]].values.tolist() == [[1, 4], [1, 0], [2, 4], [2, 0]]
    assert table["loss"].tolist() == pytest.approx([x for epoch in history.loss for x in epoch])


def test_the_same_experiment_gives_the_same_bytes(folder, tmp_path):
    chosen = experiment("sorting", seeds=[4, 0], **TINY)
    save(tmp_path / "again", chosen, *run(chosen))
    for path in folder.iterdir():
        assert path.read_bytes() == (tmp_path / "again" / path.name).read_bytes()


def edit(change):
    def damage(folder):
        path = folder / "experiment.json"
        path.write_text(json.dumps(change(json.loads(path.read_text()))))

    return damage


@pytest.mark.parametrize(
    "damage",
    [
        shutil.rmtree,
        lambda folder: (folder / "model.safetensors").unlink(),
        lambda folder: (folder / "model.safetensors").write_bytes(b"no tensors"),
        lambda folder: (folder / "experiment.json").write_text("{"),
        lambda folder: (folder / "experiment.json").write_text("[]"),
        edit(lambda told: {k: v for k, v in told.items() if k != "recipe"}),
        edit(lambda told: {**told, "network": {**told["network"], "layers": 3}}),
        edit(lambda told: {**told, "network": {**told["network"], "depth": 0}}),
        edit(lambda told: {**told, "seeds": [4]}),
        edit(lambda told: {**told, "network": {**told["network"], "depth": 3}}),
    ],
)
def test_a_damaged_folder_is_refused_in_one_line(folder, damage):
    damage(folder)
    with pytest.raises(ExperimentError, match=r"no trained network .* train it again$") as refused:
        load(folder)
    assert "\n" not in str(refused.value)
    assert str(folder) in str(refused.value)
