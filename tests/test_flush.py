import fcntl
import hashlib
import json
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from dataclasses import asdict
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from rankcollapse import mlflow_store, tracking
from rankcollapse.mlflow_store import Flushed, StoreError, flush

LOGS = Path("logs")
URI = mlflow_store.DEFAULT_URI
FLUSH = """
import json, sys
from dataclasses import asdict
from pathlib import Path
from rankcollapse.mlflow_store import flush
print(json.dumps(asdict(flush(Path("logs"), uri=sys.argv[1]))))
assert "mlflow" not in sys.modules
"""


@pytest.fixture(scope="module")
def empty_store(tmp_path_factory):
    path = tmp_path_factory.mktemp("store") / "mlflow.db"
    environment = {**os.environ, **mlflow_store.QUIET}
    code = "import sys, mlflow; mlflow.MlflowClient(sys.argv[1]).search_experiments()"
    subprocess.run([sys.executable, "-c", code, f"sqlite:///{path}"], check=True, env=environment)
    return path


@pytest.fixture
def here(empty_store, folder, monkeypatch):
    """Flush without the child process, into a store that MLflow has made before."""
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    from rankcollapse.mlflow_runs import flush_events

    shutil.copy(empty_store, "mlflow.db")
    # MLflow keeps one connection per URI, so each test needs a URI of its own.
    return lambda: flush_events(LOGS, f"sqlite:///{folder / 'mlflow.db'}", rebuild=False)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    place = tmp_path / "a folder"
    place.mkdir()
    monkeypatch.chdir(place)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return place


@pytest.fixture
def client(monkeypatch):
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    from mlflow.tracking import MlflowClient

    def opened():
        # Not the URI of `here`: MLflow would keep its connection to a file that is gone.
        return MlflowClient(tracking_uri=f"sqlite:///{Path.cwd()}/./mlflow.db")

    return opened


def execute(rule="evaluate", key="bert-init-0", *, profile="smoke", params=None, inputs=()):
    with tracking.run(
        LOGS / profile / rule / key, params=params or {}, inputs=inputs, outputs=()
    ) as run:
        run.metric("ratio", 0.5, 3)


def draw(path, content, *, inputs=()):
    with tracking.run(
        LOGS / "smoke/figure" / path.stem, params={}, inputs=inputs, outputs=[path]
    ) as run:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        run.artifact(path)


def rewrite(**changes):
    """Change fields of the one event there is."""
    (path,) = tracking.event_files(LOGS)
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def runs_of(client, profile="smoke"):
    experiment = client.get_experiment_by_name(profile)
    return client.search_runs([experiment.experiment_id]) if experiment else []


def artifact_bytes(client, run):
    return {
        item.path: Path(run.info.artifact_uri, item.path).read_bytes()
        for item in client.list_artifacts(run.info.run_id)
    }


def test_an_event_becomes_a_run(client):
    Path("in.txt").write_text("in")
    with tracking.run(
        LOGS / "smoke/evaluate/bert", params={"seed": 0}, inputs=[Path("in.txt")], outputs=[]
    ) as run:
        for layer, value in enumerate([1.0, 0.25, 0.125]):
            run.metric("san/ratio", value, layer)
        run.metric("san/cosine", float("nan"), 2)
        run.tag("device", "cpu")
    assert flush(LOGS, uri=URI) == Flushed(count=1)
    (event,) = tracking.read_events(LOGS)
    (run,) = runs_of(client())
    assert run.info.run_name == "evaluate bert"
    assert run.info.status == "FINISHED"
    assert run.info.start_time == int(event.start.timestamp() * 1000)
    assert run.info.end_time == int(event.end.timestamp() * 1000)
    assert run.data.params == {"seed": "0"}
    history = client().get_metric_history(run.info.run_id, "san/ratio")
    assert [(m.step, m.value) for m in history] == [(0, 1.0), (1, 0.25), (2, 0.125)]
    assert list(run.data.metrics) == ["san/ratio"]
    expected = {**event.tags, "event_id": event.id, "process": str(os.getpid())}
    expected["mlflow.runName"] = "evaluate bert"
    assert run.data.tags == expected
    assert run.data.tags["md5/in.txt"] == hashlib.md5(b"in").hexdigest()
    assert run.data.tags["metric/san/cosine/2"] == "nan"


def test_flushing_again_adds_nothing_and_is_cheap(client, here):
    execute()
    here()
    start = time.monotonic()
    assert flush(LOGS, uri=URI) == Flushed(already=1)
    assert time.monotonic() - start < 1
    execute(key="bert-init-1")
    assert here() == Flushed(count=1, already=1)
    assert len(runs_of(client())) == 2


def test_a_lost_memory_of_the_flush_adds_nothing(client, here):
    execute()
    here()
    for path in LOGS.glob(".flushed-*"):
        path.unlink()
    assert here() == Flushed(already=1)
    assert len(runs_of(client())) == 1


@pytest.mark.parametrize("again", [False, True])
def test_a_store_that_was_deleted_is_filled_again(client, here, again):
    execute()
    here()
    Path("mlflow.db").unlink()
    if again:
        client().search_experiments()
    assert flush(LOGS, uri=URI) == Flushed(count=1)
    assert len(runs_of(client())) == 1


def test_a_run_that_a_killed_flush_left_half_is_made_anew(client, here):
    execute()
    here()
    (half,) = runs_of(client())
    client().update_run(half.info.run_id, "RUNNING")
    for path in LOGS.glob(".flushed-*"):
        path.unlink()
    assert here() == Flushed(count=1)
    (run,) = runs_of(client())
    assert run.info.run_id != half.info.run_id
    assert (run.info.status, run.data.metrics) == ("FINISHED", {"ratio": 0.5})


def test_two_flushes_at_once_make_each_run_once(client):
    for seed in range(12):
        execute(key=f"bert-init-{seed}")
    command = [sys.executable, "-c", FLUSH, URI]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(2)]
    answers = [json.loads(process.communicate()[0]) for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert sum(answer["count"] for answer in answers) == 12
    assert all(answer["count"] + answer["already"] == 12 for answer in answers)
    names = [run.info.run_name for run in runs_of(client())]
    assert sorted(names) == sorted(f"evaluate bert-init-{seed}" for seed in range(12))


def test_a_failed_run_keeps_its_error(client, here):
    def fail():
        with tracking.run(LOGS / "smoke/evaluate/bert", params={}, inputs=[], outputs=[]):
            raise ValueError("no such variant")

    with pytest.raises(ValueError, match="no such variant"):
        fail()
    here()
    (run,) = runs_of(client())
    assert run.info.status == "FAILED"
    assert run.data.tags["error"] == "ValueError: no such variant"


def test_a_killed_job_is_killed_and_a_running_one_waits(client):
    execute()
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    rewrite(status="RUNNING", end=None, pid=os.getpid())
    assert flush(LOGS, uri=URI) == Flushed(running=1)
    assert not Path("mlflow.db").exists()
    rewrite(pid=gone.pid)
    assert flush(LOGS, uri=URI) == Flushed(count=1)
    (run,) = runs_of(client())
    assert run.info.status == "KILLED"
    assert run.info.end_time == run.info.start_time


def test_a_process_that_only_inherited_the_number_is_not_the_job():
    execute()
    (event,) = tracking.read_events(LOGS)
    rewrite(status="RUNNING", start=(event.start - timedelta(days=9)).isoformat())
    (event,) = tracking.read_events(LOGS)
    assert mlflow_store.killed(event)


def test_a_job_of_another_host_is_not_judged_by_its_number():
    execute()
    (event,) = tracking.read_events(LOGS)
    tags = {**event.tags, "hostname": f"not-{socket.gethostname()}"}
    rewrite(status="RUNNING", pid=2**22 + 1, tags=tags)
    assert flush(LOGS, uri=URI) == Flushed(running=1)


def test_a_damaged_event_is_counted_and_stops_nothing(here):
    execute()
    (LOGS / "smoke/evaluate/cut.json").write_text("{")
    assert here() == Flushed(count=1, failed=1)
    assert here() == Flushed(already=1, failed=1)


def test_no_logs_is_nothing_to_do(folder):
    assert flush(LOGS, uri=URI) == Flushed()
    assert list(folder.iterdir()) == []


def test_the_chain_of_hashes_leads_from_a_figure_to_its_input(client, here):
    Path("text.txt").write_text("biography")
    table = Path("table.csv")
    with tracking.run(
        LOGS / "smoke/residuals/bert", params={}, inputs=[Path("text.txt")], outputs=[table]
    ):
        table.write_text("layer,value\n0,1\n")
    draw(Path("figures/figure2.png"), b"picture", inputs=[table])
    here()
    figure_hash = hashlib.md5(Path("figures/figure2.png").read_bytes()).hexdigest()
    (figure,) = runs_with(client(), "figures/figure2.png", figure_hash)
    assert artifact_bytes(client(), figure) == {"figure2.png": b"picture"}
    (residuals, _) = sorted(
        runs_with(client(), "table.csv", figure.data.tags["md5/table.csv"]),
        key=lambda run: run.info.start_time,
    )
    assert residuals.info.run_name == "residuals bert"
    assert residuals.data.tags["md5/text.txt"] == hashlib.md5(b"biography").hexdigest()


def runs_with(client, path, digest):
    experiment = client.get_experiment_by_name("smoke").experiment_id
    return client.search_runs([experiment], f"tags.`md5/{path}` = '{digest}'")


def test_a_figure_that_was_drawn_over_is_not_shown_as_the_old_one(client, here):
    figure = Path("figures/figure2.png")
    draw(figure, b"old")
    draw(figure, b"new")
    here()
    new, old = runs_of(client())
    assert artifact_bytes(client(), new) == {"figure2.png": b"new"}
    assert artifact_bytes(client(), old) == {}
    assert old.data.tags["artifact/figures/figure2.png"] == "changed or gone"


def test_rebuilding_mends_a_folder_that_was_moved(client, here, folder, monkeypatch):
    figure = Path("figures/figure2.png")
    draw(figure, b"old")
    here()
    draw(figure, b"new")
    here()
    moved = folder.rename(folder.with_name("moved"))
    monkeypatch.chdir(moved)
    execute()
    with pytest.raises(StoreError, match=r"the folder was moved; .* `rankcollapse flush --all`"):
        flush(LOGS, uri=URI)
    assert flush(LOGS, uri=URI, rebuild=True) == Flushed(count=3)
    _, new, old = runs_of(client())
    assert artifact_bytes(client(), old) == {"figure2.png": b"old"}
    assert artifact_bytes(client(), new) == {"figure2.png": b"new"}
    assert {path.name for path in Path("mlartifacts/smoke").iterdir()} == {
        new.info.run_id,
        old.info.run_id,
    }
    assert not folder.exists()
    assert flush(LOGS, uri=URI) == Flushed(already=3)


@pytest.mark.parametrize("damage", ["no database", "cut"])
def test_a_broken_store_is_named_and_rebuilt(client, here, damage):
    execute()
    here()
    store = Path("mlflow.db")
    store.write_bytes(b"x" * 5000 if damage == "no database" else store.read_bytes()[:40000])
    Path("mlflow.db-journal").write_bytes(b"left by a killed process")
    execute(key="bert-init-1")
    with pytest.raises(
        StoreError, match=r"mlflow\.db: broken .* `rankcollapse flush --all`"
    ) as got:
        flush(LOGS, uri=URI)
    assert "\n" not in str(got.value)
    assert flush(LOGS, uri=URI, rebuild=True) == Flushed(count=2)
    assert len(runs_of(client())) == 2
    assert sorted(path.name for path in Path().iterdir()) == ["logs", "mlflow.db"]


def test_a_locked_store_is_named_and_loses_nothing(here):
    execute()
    here()
    execute(key="bert-init-1")
    holder = sqlite3.connect("mlflow.db", isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreError, match="locked"):
        flush(LOGS, uri=URI)
    holder.close()
    assert here() == Flushed(count=1, already=1)


@pytest.mark.parametrize("rebuild", [False, True])
def test_a_store_without_its_folder_is_named_and_no_folder_is_made(rebuild):
    execute()
    with pytest.raises(StoreError, match=r"there is no folder .*/elsewhere"):
        flush(LOGS, uri="sqlite:///elsewhere/mlflow.db", rebuild=rebuild)
    assert not Path("elsewhere").exists()


def test_a_refused_kind_of_store_is_one_line():
    execute()
    with pytest.raises(StoreError) as got:
        flush(LOGS, uri="./mlruns")
    assert "\n" not in str(got.value)


def test_a_server_that_refuses_is_named():
    execute()
    with pytest.raises(StoreError, match=r"127\.0\.0\.1:9: cannot be reached .*refused"):
        flush(LOGS, uri="http://127.0.0.1:9")


def test_a_server_that_never_answers_is_left_after_ten_seconds():
    execute()
    with socket.create_server(("127.0.0.1", 0)) as server:
        start = time.monotonic()
        with pytest.raises(StoreError, match=r"cannot be reached \(.*timed out"):
            flush(LOGS, uri=f"http://127.0.0.1:{server.getsockname()[1]}")
        assert 9 < time.monotonic() - start < 30


def test_a_flush_that_hangs_is_killed(tmp_path, monkeypatch):
    """A stand-in for the child shows what the parent makes of its death by SIGALRM."""
    hang = tmp_path / "hang"
    hang.write_text(f"#!/bin/sh\nkill -{int(signal.SIGALRM)} $$\n")
    hang.chmod(0o755)
    execute()
    monkeypatch.setattr(sys, "executable", str(hang))
    with pytest.raises(StoreError, match="no answer for 60 s"):
        flush(LOGS, uri=URI)


def test_a_machine_without_mlflow_is_told_so(tmp_path, monkeypatch):
    bad = tmp_path / "bad"
    bad.write_text("#!/bin/sh\necho 'ModuleNotFoundError: mlflow' >&2\nexit 1\n")
    bad.chmod(0o755)
    execute()
    monkeypatch.setattr(sys, "executable", str(bad))
    with pytest.raises(StoreError, match=r"MLflow failed .*ModuleNotFoundError: mlflow"):
        flush(LOGS, uri=URI)


def test_a_store_with_a_foreign_schema_is_one_line(here):
    execute()
    here()
    with sqlite3.connect("mlflow.db") as connection:
        connection.execute("UPDATE alembic_version SET version_num = 'unknown'")
    connection.close()
    execute(key="bert-init-1")
    with pytest.raises(StoreError, match="schema") as got:
        flush(LOGS, uri=URI)
    assert "\n" not in str(got.value)


def test_names_and_values_that_mlflow_refuses_are_made_acceptable(client, here):
    params = {"learning rate (η)": "x" * 7000, "a/../b": "", "n" * 300: "1", "../c": "2", "\n": 3}
    event = LOGS / "smoke/evaluate" / ("k" * 150)
    with tracking.run(event, params=params, inputs=[], outputs=[]) as run:
        run.tag("note (1)", "y" * 9000)
        run.tag("note [1]", "\udcff")
    rewrite(rule="r" * 200)
    assert here() == Flushed(count=1)
    (run,) = runs_of(client())
    assert sorted(map(len, run.data.params.values())) == [0, 1, 1, 1, 6000]
    assert max(map(len, run.data.params)) == 250
    notes = [value for key, value in run.data.tags.items() if key.startswith("note _1_-")]
    assert sorted(map(len, notes)) == [1, 8000]
    assert len(run.info.run_name) == 250


def test_a_deleted_experiment_comes_back(client, here):
    execute()
    here()
    client().delete_experiment(client().get_experiment_by_name("smoke").experiment_id)
    execute(key="bert-init-1")
    assert here() == Flushed(count=1, already=1)
    assert client().get_experiment_by_name("smoke").lifecycle_stage == "active"


def test_many_events_with_long_curves_take_seconds(client, here):
    for profile in ("smoke", "embedded"):
        execute(profile=profile)
        (event,) = [e for e in tracking.read_events(LOGS) if e.profile == profile]
        metrics = [{"name": f"m{i % 90}", "value": i, "step": i // 90} for i in range(1100)]
        text = {f"p{i}": str(i) for i in range(130)}
        for number in range(75):
            fields = asdict(event) | {"id": f"{profile}{number}", "params": text}
            fields["metrics"] = metrics if number == 0 else metrics[:40]
            path = LOGS / profile / "evaluate" / f"{number}.json"
            path.write_text(json.dumps(fields, default=datetime.isoformat))
    start = time.monotonic()
    assert here() == Flushed(count=152)
    assert time.monotonic() - start < 60
    longest = [run for run in runs_of(client()) if run.data.tags["event_id"] == "smoke0"]
    assert len(longest[0].data.params) == 130
    assert len(longest[0].data.metrics) == 90
    assert longest[0].data.metrics["m0"] == 1080


def test_the_default_store_is_that_of_the_environment(monkeypatch):
    assert mlflow_store.default_uri() == "sqlite:///mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:1")
    assert mlflow_store.default_uri() == "http://127.0.0.1:1"


def test_a_second_flush_waits_for_the_first():
    execute()
    answer = []
    with (LOGS / ".flush.lock").open("a") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        second = threading.Thread(target=lambda: answer.append(flush(LOGS, uri=URI)))
        second.start()
        second.join(5)
        assert second.is_alive()
        assert not Path("mlflow.db").exists()
    second.join()
    assert answer == [Flushed(count=1)]
