import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest

from rankcollapse.checkpoints import copy_local
from rankcollapse.cli import main
from rankcollapse.cli.tasks import parse_seeds
from rankcollapse.task_tables import SCORE_COLUMNS

ROOT = Path(__file__).parent.parent
BIOGRAPHIES = ROOT / "data/corpus/biographies.txt"
SMALL = ["--epochs=1", "--heads=2", "--depth=2", "--width=8"]


@pytest.fixture
def call(monkeypatch, capfd):
    def run(*words):
        monkeypatch.setattr(sys, "argv", ["rankcollapse", *map(str, words)])
        code = 0
        try:
            main()
        except SystemExit as ended:
            code = ended.code or 0
        return code, *capfd.readouterr()

    return run


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lender") / "tiny"
    copy_local(ROOT / "config/tiny/bert", folder, name="tiny")
    return folder


def test_texts_are_memorised_and_their_paths_followed(call, tokenizer, tmp_path):
    texts = ["--text", BIOGRAPHIES, "--tokenizer", tokenizer]
    trained = tmp_path / "trained"
    event = tmp_path / "logs/mine/train/memorization"
    code, _, err = call(
        *("train", "memorization", *texts, *SMALL, "--output", trained, "--event", event)
    )
    assert (code, err.count("epoch 1 of 1")) == (0, 1)
    assert {path.name for path in trained.iterdir()} == {
        *("experiment.json", "history.csv", "model.safetensors")
    }
    table, lengths = tmp_path / "scores.csv", tmp_path / "lengths.csv"
    code, _, _ = call("paths", trained, *texts, "--output", table, "--lengths", lengths)
    assert code == 0
    scores = pd.read_csv(table)
    assert list(scores.columns) == SCORE_COLUMNS
    assert set(scores["task"]) == {"memorization"}
    assert "shuffled" in set(scores["paths"])
    used = pd.read_csv(lengths)
    assert used["share_used"].sum() == pytest.approx(1)
    (written,) = event.parent.glob("memorization.*.json")
    told = json.loads(written.read_text())
    assert told["status"] == "FINISHED"


def test_a_short_circle_is_run_at_every_width(call, tmp_path):
    ends, steps = tmp_path / "ends.csv", tmp_path / "steps.csv"
    code, _, _ = call(
        *("circle", "--seeds=0,2", "--shown=2", "--epochs=1"),
        *("--output", ends, "--trajectories", steps),
    )
    assert code == 0
    assert len(pd.read_csv(ends)) == 3 * 3 * 2
    assert set(pd.read_csv(steps)["seed"]) == {2}


@pytest.mark.parametrize(
    ("text", "seeds"), [("0", [0]), ("0-3", [0, 1, 2, 3]), ("5,1-2", [5, 1, 2])]
)
def test_seeds_are_a_list_or_a_range(text, seeds):
    assert parse_seeds(text) == seeds


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--seeds=x"], 2, "0-7 or 0,3,5"),
        (["--seeds=3-1"], 2, "names no seeds"),
        (["--seeds=1,1"], 1, "each once"),
        (["--depth=0"], 1, "depth is 0"),
        (["--heads=5"], 1, "5 heads do not divide the width 48"),
        (["--epochs=0"], 2, "greater than or equal to 1"),
    ],
)
def test_what_cannot_be_trained_is_one_line_and_leaves_nothing(call, tmp_path, words, code, said):
    output = tmp_path / "trained"
    ended, _, err = call("train", "sorting", *words, "--output", output)
    assert ended == code
    assert said in " ".join(err.replace("│", " ").split())
    assert list(tmp_path.iterdir()) == []


def test_memorising_needs_a_text(call, tmp_path):
    code, _, err = call("train", "memorization", "--output", tmp_path / "x")
    assert code == 2
    assert "--tokenizer" in err


def test_a_training_that_diverges_stops_and_says_where(call, tmp_path):
    output = tmp_path / "trained"
    event = tmp_path / "logs/mine/train/sorting"
    code, _, err = call(
        *("train", "sorting", *SMALL, "--learning-rate=1e38"),
        *("--output", output, "--event", event),
    )
    assert code == 1
    assert "not finite at step" in err
    assert not output.exists()
    (written,) = event.parent.glob("sorting.*.json")
    assert json.loads(written.read_text())["status"] == "FAILED"


IMPATIENT = """
import sys
from rankcollapse import training
from rankcollapse.cli import main
training.CHECKPOINT_SECONDS = 0
main()
"""


def test_a_training_that_is_killed_goes_on_to_the_same_bytes(call, tmp_path):
    words = ["train", "sorting", "--seeds=0,3", *SMALL[1:], "--epochs=30", "--output"]
    whole, output = tmp_path / "whole", tmp_path / "killed"
    assert call(*words, whole)[0] == 0
    process = subprocess.Popen([sys.executable, "-c", IMPATIENT, *words, output])
    checkpoint = tmp_path / ".killed.training/progress.json"
    deadline = time.monotonic() + 60
    while not checkpoint.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    assert checkpoint.exists()
    assert not output.exists()
    assert call(*words, output)[0] == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["killed", "whole"]
    for path in whole.iterdir():
        assert path.read_bytes() == (output / path.name).read_bytes()


def test_a_folder_without_a_trained_network_is_named(call, tmp_path):
    code, _, err = call("paths", tmp_path, "--output", tmp_path / "scores.csv")
    assert code == 1
    assert str(tmp_path) in err
    assert "train it again" in err


def test_tables_of_other_columns_are_not_joined(call, tmp_path):
    (tmp_path / "a.csv").write_text("x,y\n1,2\n")
    (tmp_path / "b.csv").write_text("x,z\n1,2\n")
    code, _, err = call("join", tmp_path / "a.csv", tmp_path / "b.csv", "--output", tmp_path / "c")
    assert code == 1
    assert "b.csv" in err
    assert not (tmp_path / "c").exists()
