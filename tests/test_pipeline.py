"""The smoke profile through Snakemake, DVC and MLflow: made, killed, resumed, edited, cloned."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import pandas as pd
import pytest
from pipeline import CONFIG, call, commit, copy_repository, edit, environment, snakemake, wanted

from rankcollapse.figures import FIGURES
from rankcollapse.files import md5
from rankcollapse.jobs import STUDY_TABLES
from rankcollapse.tracking import read_events

REPRODUCE = (sys.executable, "workflow/reproduce.py", "smoke")
EVERY_RULE = {
    "weights": 6,
    "evaluate": 8,
    "residual": 8,
    "curves": 1,
    "train": 5,
    "paths": 5,
    "circle": 2,
    "join": 3,
    "accuracy": 1,
    "study_decomposition": 4,
    "study_heads": 1,
    "study_bounds": 3,
    "study_relative": 1,
    "pure_san": 1,
    "chain": 3,
    "join_studies": 10,
    **dict.fromkeys(("quartiles", "rates", "asymptote", "components", "judge", "causes"), 1),
    **{f"draw_{figure}": 1 for figure in FIGURES},
    "claims": 1,
    "verdict": 1,
    "report": 1,
}

FURTHER_PAGES = (
    *("figure2_log", "figure3_as_described", "figure3_threshold", "figure4_controls"),
    *("figure6_dobrushin", "bounds_quantities", "rates_relative"),
    *(f"components_{page}" for page in ("post_norm", "skip", "pre_norm", "effects")),
)
TRAININGS = ("sorting", "sorting-layer-drop", "sorting-pure", "sorting-deep", "memorization")
READINGS = ("published", "described")
TINY = ("tiny-bert-init-0", "tiny-bert-init-1", "tiny-bert")
STUDIED = {
    "decomposition": (*TINY, "tiny-xlnet-init-0"),
    "heads": ("tiny-bert",),
    "bounds": ("pure-san", *TINY),
    "relative": ("tiny-xlnet-init-0",),
}


def finished(tree):
    return [event for event in read_events(tree / "logs") if event.status == "FINISHED"]


@pytest.fixture(scope="session")
def killed(tmp_path_factory):
    """A tree whose first run was killed, the whole process group of it, after some jobs."""
    tree = copy_repository(tmp_path_factory.mktemp("with a space") / "rankcollapse")
    assert wanted(tree) == EVERY_RULE
    with subprocess.Popen(
        REPRODUCE,
        cwd=tree,
        env=environment(tree),
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as run:
        end = time.monotonic() + 300
        while len(finished(tree)) < 8 and time.monotonic() < end:
            time.sleep(0.2)
        os.killpg(run.pid, signal.SIGKILL)
    # Jobs of the killed run may have left the group's session; none may outlive it.
    time.sleep(1)
    return tree, len(finished(tree))


@pytest.fixture(scope="session")
def tree(killed):
    """The same tree after the same command was called again, and DVC took the result."""
    path, _ = killed
    call(path, *REPRODUCE)
    call(path, "dvc", "commit", "--force", "--quiet")
    commit(path, "outputs of the smoke profile")
    return path


@contextlib.contextmanager
def changed(path, old, new):
    """Edit a file while the block lasts."""
    text = path.read_text()
    edit(path, old, new)
    try:
        yield
    finally:
        path.write_text(text)


def test_a_killed_run_goes_on_and_repeats_no_finished_job(killed, tree):
    _, before = killed
    assert 8 <= before < sum(EVERY_RULE.values())
    names = [(event.rule, event.key) for event in finished(tree)]
    # Snakemake may not have noted the last two jobs (two cores) before it was killed.
    assert sum(EVERY_RULE.values()) <= len(names) <= sum(EVERY_RULE.values()) + 2
    left = [path for path in tree.rglob("*.unfinished") if ".snakemake" not in path.parts]
    assert left == []


def test_nothing_is_left_to_do(tree):
    assert "Nothing to be done" in snakemake(tree, "-n")
    assert "up to date" in call(tree, "dvc", "status")
    assert "Data and pipelines are up to date" in call(tree, "dvc", "repro")


def test_the_run_leaves_exactly_these_files(tree):
    made = {
        str(path.relative_to(tree))
        for folder in ("data/smoke", "figures/smoke")
        for path in (tree / folder).rglob("*")
        if path.is_file() and "checkpoints" not in path.parts
    }
    figures = {
        f"figures/smoke/{name}"
        for stem in FIGURES
        for name in (f"{stem}.pdf", f"{stem}.png", f"{stem}.csv")
    }
    figures |= {f"figures/smoke/{page}.png" for page in FURTHER_PAGES}
    verdicts = {
        f"data/smoke/verdicts/{name}"
        for name in (
            *("figure2.csv", "curves.csv", "summary.json", "claims.csv"),
            *("chained_attention.csv", "components.csv"),
        )
    }
    studies = {
        f"data/smoke/paths/{study}/{folder}/{table}.csv"
        for study, folders in STUDIED.items()
        for folder in folders
        for table in STUDY_TABLES[study]
    }
    joined = {
        f"data/smoke/paths/{name}.csv"
        for name in (
            *(table for tables in STUDY_TABLES.values() for table in tables),
            *("chained", "rates/rates", "rates/orders", "asymptote"),
        )
    }
    trained = {
        f"data/smoke/tasks/trained/{training}/{name}"
        for training in TRAININGS
        for name in ("experiment.json", "history.csv", "model.safetensors")
    }
    tasks = {
        f"data/smoke/tasks/{name}.csv"
        for name in (
            *("accuracy", "circle", "lengths", "trajectories"),
            *(f"scores/{training}" for training in TRAININGS),
            *(f"lengths/{training}" for training in TRAININGS),
            *(f"{table}/as-{how}" for table in ("circle", "trajectories") for how in READINGS),
        )
    }
    tables = {path for path in made if path.endswith(".parquet")}
    assert made - tables == figures | verdicts | trained | tasks | studies | joined | {
        "data/smoke/residuals/curves.csv",
        "data/smoke/report.html",
    }
    assert len(tables) == EVERY_RULE["residual"] + EVERY_RULE["chain"] + 1  # components
    assert not list((tree / "data/smoke/hidden_states").glob("*"))


def test_verdicts_say_that_nothing_published_was_measured(tree):
    verdicts = pd.read_csv(tree / "data/smoke/verdicts/figure2.csv")
    assert list(verdicts.columns) == [
        *("model", "weights", "variant", "layer", "published_mean", "published_std"),
        *("measured_mean", "measured_low", "measured_high", "verdict", "reason"),
    ]
    assert len(verdicts) == 312
    assert set(verdicts["verdict"]) == {"not measured", "below precision floor"}


def test_mlflow_has_a_run_for_every_job_and_the_chain_of_hashes(tree):
    import mlflow

    client = mlflow.MlflowClient(f"sqlite:///{tree}/mlflow.db")
    experiment = client.get_experiment_by_name("smoke")
    runs = client.search_runs([experiment.experiment_id], max_results=1000)
    assert len(runs) == len(read_events(tree / "logs"))
    by_output = {}
    for run in runs:
        for tag, value in run.data.tags.items():
            if tag.startswith("md5/") and run.info.status == "FINISHED":
                by_output.setdefault((tag[4:], value), []).append(run.data.tags["rule"])
    figure = "figures/smoke/figure2.pdf"
    assert "figure" in by_output[figure, md5(tree / figure)]
    for link in (
        "data/smoke/residuals/curves.csv",
        "data/smoke/residuals/tiny-bert.wikibio.float32.parquet",
        "data/smoke/checkpoints/tiny-bert/manifest.json",
    ):
        rules = by_output[link, md5(tree / link)]
        assert len(set(rules)) >= 2, f"{link} is not both made and read: {rules}"
    measured = next(run for run in runs if run.data.tags["rule"] == "residual")
    curve = client.get_metric_history(measured.info.run_id, "as-published/san/composite_ratio")
    assert [point.step for point in curve] == [0, 1, 2, 3]


def test_a_second_flush_adds_nothing(tree):
    assert "0 runs added" in call(tree, "rankcollapse", "flush")


def test_the_same_config_gives_the_same_bytes(tree):
    names = ("data/smoke/residuals/tiny-bert.wikibio.float32.parquet", "figures/smoke/figure2.pdf")
    names += ("data/smoke/residuals/curves.csv", "figures/smoke/figure2.png")
    trained = "data/smoke/tasks/trained/sorting/model.safetensors"
    names += (trained, "data/smoke/tasks/accuracy.csv", "figures/smoke/figure4.pdf")
    before = [md5(tree / name) for name in names]
    for name in names:
        (tree / name).unlink()
    snakemake(tree, "--cores", "2")
    assert [md5(tree / name) for name in names] == before


def test_an_edited_figure_reruns_that_figure_alone(tree):
    with changed(tree / "src/rankcollapse/figures/figure5.py", '"""', '"""\n'):
        assert wanted(tree) == {"draw_figure5": 1, "report": 1}
        assert set(json.loads(call(tree, "dvc", "status", "--json"))) == {"figures"}
    assert wanted(tree) == {}


def test_an_edited_architecture_reruns_its_models_alone(tree):
    with changed(tree / "src/rankcollapse/architectures/xlnet.py", '"""', '"""\n'):
        jobs = wanted(tree)
        assert jobs["evaluate"] == jobs["study_decomposition"] == jobs["study_relative"] == 1
        assert not jobs.keys() & {"weights", "study_bounds", "chain"}
        stale = set(json.loads(call(tree, "dvc", "status", "--json")))
        assert stale == {"residuals", "paths"}


def test_one_changed_setting_reruns_what_it_concerns(tree):
    with changed(tree / CONFIG, "spectral_sequences: 2", "spectral_sequences: 1"):
        assert wanted(tree)["residual"] == EVERY_RULE["residual"]
        assert "weights" not in wanted(tree)
        assert set(json.loads(call(tree, "dvc", "status", "--json"))) == {"residuals"}
    with changed(tree / CONFIG, "seeds: [0, 1]", "seeds: [0, 1, 2]"):
        assert wanted(tree)["weights"] == 1
        assert "evaluate" not in wanted(tree)


def test_one_changed_study_reruns_that_study_alone(tree):
    with changed(tree / CONFIG, "pairs: 20 ", "pairs: 21 "):
        jobs = wanted(tree)
        assert jobs["chain"] == EVERY_RULE["chain"]
        assert not jobs.keys() & {"study_decomposition", "study_bounds", "train", "evaluate"}
        assert set(json.loads(call(tree, "dvc", "status", "--json"))) == {"paths"}


def test_one_changed_training_reruns_that_training_alone(tree):
    with changed(tree / CONFIG, "training: pure, epochs: 1", "training: pure, epochs: 2"):
        assert wanted(tree)["train"] == 1
        assert wanted(tree)["paths"] == 1
        assert "evaluate" not in wanted(tree)
        assert set(json.loads(call(tree, "dvc", "status", "--json"))) == {"tasks"}


def test_a_clone_pulls_and_has_nothing_to_do_but_what_is_edited(tree, tmp_path):
    remote, clone = tmp_path / "remote", tmp_path / "clone"
    call(tree, "dvc", "remote", "add", "--default", "--force", "storage", str(remote))
    commit(tree, "remote")
    call(tree, "dvc", "push", "--quiet")
    call(tmp_path, "git", "clone", "-q", str(tree), str(clone))
    shutil.copytree(tree / ".venv", clone / ".venv", symlinks=True)
    (clone / ".venv/installed").touch()
    call(clone, "dvc", "pull", "--quiet")
    assert "Data and pipelines are up to date" in call(clone, "dvc", "repro")
    snakemake(clone, "--touch", "--cores", "2")
    assert set(wanted(clone)) <= {"report"}
    # One setting, in the clone: DVC runs the phases that it concerns, and the output changes.
    old = md5(clone / "data/smoke/residuals/curves.csv")
    edit(clone / CONFIG, "spectral_sequences: 2", "spectral_sequences: 1")
    said = call(clone, "dvc", "repro")
    assert "Running stage 'residuals'" in said
    assert "Running stage 'figures'" in said
    assert "Running stage 'checkpoints'" not in said
    assert md5(clone / "data/smoke/residuals/curves.csv") != old
    assert "spectral_sequences" in call(clone, "dvc", "params", "diff")
    assert "not_measured" in call(clone, "dvc", "metrics", "show")


def test_two_at_once_the_second_refuses(tree):
    import fcntl

    makefile = (tree / "Makefile").read_text(encoding="utf-8")
    profiles = re.findall(r"workflow/reproduce.py (\w+)", makefile)
    assert profiles == ["embedded", "full", "paper", "smoke"]
    with (tree / ".reproduce.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for profile in profiles:
            second = call(tree, sys.executable, "workflow/reproduce.py", profile, check=False)
            assert second.returncode == 1
            assert second.stdout.count("\n") == 1
            assert "another `make reproduce`" in second.stdout


def test_a_lock_of_a_killed_dvc_is_no_obstacle(tree):
    dead = subprocess.Popen(("true",))
    dead.wait()
    holder = {"pid": dead.pid, "cmd": "dvc repro"}
    locked = {"read": {}, "write": {str(tree / "data/smoke/residuals"): holder}}
    (tree / ".dvc/tmp/rwlock").write_text(json.dumps(locked))
    (tree / ".dvc/tmp/lock").write_text(f"{dead.pid}\n")
    assert "up to date" in call(tree, "dvc", "repro")
    call(tree, "dvc", "commit", "--force", "--quiet")


def test_a_config_error_is_one_line_before_anything_runs(tree):
    with changed(tree / CONFIG, "tokens: 24", "token: 24"):
        done = snakemake(tree, "--cores", "2", check=False)
    assert done.returncode != 0
    assert "token: unknown key; did you mean 'tokens'?" in done.stdout


def test_a_failed_job_is_a_failed_run_and_leaves_no_half_output(tree):
    weights = tree / "data/smoke/checkpoints/tiny-bert/model.safetensors"
    table = tree / "data/smoke/residuals/tiny-bert.plain.float32.parquet"
    good = weights.read_bytes()
    weights.write_bytes(good[:1000])
    table.unlink()
    try:
        done = snakemake(tree, "--cores", "2", check=False)
    finally:
        weights.write_bytes(good)
    assert done.returncode != 0
    assert "model.safetensors" in done.stdout
    assert "rankcollapse: error:" in done.stdout
    assert not list((tree / "data/smoke/hidden_states").glob("*"))
    failed = [event for event in read_events(tree / "logs") if event.status == "FAILED"]
    assert failed
    assert failed[-1].rule == "evaluate"
    assert "model.safetensors" in failed[-1].error
    snakemake(tree, "--cores", "2")
    assert wanted(tree) == {}


def test_an_unreachable_store_loses_nothing(tree):
    (tree / "figures/smoke/figure5.png").unlink()
    done = snakemake(
        tree,
        *("--cores", "2"),
        MLFLOW_TRACKING_URI=f"sqlite:///{tree}/no/such/folder/mlflow.db",
    )
    assert "100%" in done
    assert done.count("the events stay") == 1
    assert "runs added" in call(tree, "rankcollapse", "flush")
