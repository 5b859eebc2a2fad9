import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FIGURE_KEYS = {"part", "name", "value", "unit", "limit", "aim", "at_least", "note", "met"}


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    output = tmp_path_factory.mktemp("benchmarks") / "results.json"
    command = [sys.executable, ROOT / "benchmarks" / "run.py", "--quick", "--output", output]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return run.stdout, json.loads(output.read_text(encoding="utf-8"))


def test_result_says_what_was_measured_where_and_when(result):
    _, written = result
    assert set(written) == {"date", "quick", "machine", "figures", "imports"}
    assert written["quick"] is True
    machine = {"cpu", "cores", "threads", "memory_gb", "system", "python", "packages"}
    assert set(written["machine"]) == machine | {"load_before"}


def test_every_limit_of_the_project_is_measured(result):
    _, written = result
    assert all(set(figure) == FIGURE_KEYS for figure in written["figures"])
    assert all(figure["value"] >= 0 for figure in written["figures"])
    limited = [figure for figure in written["figures"] if figure["limit"] is not None]
    limits = {figure["name"]: round(figure["limit"], 4) for figure in limited}
    assert limits == {
        "time from start to tables": 75.8,
        "memory of the largest process": 2.3275,
        "kept on disk": 0.056,
        "most ever on disk": 2.24,
        "rate of a bare forward pass / rate of its products": 0.8,
        "evaluation and composite ratio / bare passes": 1.3,
        "evaluation and all measures / bare passes": 2.0,
        "sorting, 8 seeds": 10.0,
        "sorting, 8 seeds: memory beyond imports": 490.0,
        "sorting: 20 paths of each length": 0.5,
        "tiny-bert, forward passes": 10.0,
        "tiny-bert, memory": 4.0,
        "rankcollapse --help": 0.5,
        "commands that import what they do not use": 0,
    }


def test_met_is_the_comparison_with_the_limit(result):
    _, written = result
    for figure in written["figures"]:
        value, limit = figure["value"], figure["limit"]
        if limit is None:
            assert figure["met"] is None
        else:
            assert figure["met"] == (value >= limit if figure["at_least"] else value <= limit)


def test_states_are_removed_and_counted(result):
    _, written = result
    size = {figure["name"]: figure["value"] * 1e9 for figure in written["figures"]}
    states = 4 * (3 + 1) * 2 * 16 * 32 * 4  # variants, layers and embedding, B, T, D, bytes
    assert size["most ever on disk"] > size["kept on disk"] > 0
    assert size["most ever on disk"] > states
    assert size["kept on disk"] < states


def test_imports_are_listed_for_each_command(result):
    _, written = result
    assert "torch" in written["imports"]["evaluate"]
    assert written["imports"]["checkpoint random"] == []
    assert written["imports"]["flush"] == []
    (unused,) = (f for f in written["figures"] if f["name"].startswith("commands that import"))
    assert unused["value"] == 0, unused["note"]


def test_table_shows_each_figure(result):
    printed, _ = result
    for part in ("twelve conditions", "BERT, 1 thread", "idle"):
        assert part in printed
