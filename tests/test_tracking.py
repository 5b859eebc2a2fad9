import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from rankcollapse import tracking
from rankcollapse.errors import RankCollapseError

EVENT = Path("logs/smoke/evaluate/bert-init-0.wikibio.float32")
ENTER_AND_WAIT = """
import sys, time
from pathlib import Path
from rankcollapse import tracking
with tracking.run(Path(sys.argv[1]), params={}, inputs=[Path(sys.argv[2])], outputs=[]):
    print("inside", flush=True)
    time.sleep(60)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def execute(event=EVENT, *, params=None, inputs=(), outputs=()):
    with tracking.run(event, params=params or {}, inputs=inputs, outputs=outputs):
        pass


def fail(error, *, outputs):
    with tracking.run(EVENT, params={}, inputs=[], outputs=outputs) as run:
        run.metric("ratio", 1)
        raise error


def only_event():
    (event,) = tracking.read_events(Path("logs"))
    return event


def test_a_finished_run_holds_what_it_was_told():
    before = datetime.now(UTC)
    Path("in.txt").write_text("in")
    params = {"device": "cpu", "batch": 32, "variants": ["san", "san_mlp"]}
    outputs = [Path("out.txt")]
    with tracking.run(EVENT, params=params, inputs=[Path("in.txt")], outputs=outputs) as run:
        run.metric("ratio", 1.0)
        run.metric("ratio", np.float32(0.5), 1)
        run.tag("device", "cpu")
        Path("out.txt").write_text("out")
        run.artifact(Path("out.txt"))
    event = only_event()
    assert (event.profile, event.rule, event.key) == EVENT.parts[1:]
    assert (event.status, event.error, event.pid) == ("FINISHED", None, os.getpid())
    assert event.params == {"device": "cpu", "batch": "32", "variants": "san san_mlp"}
    assert [(m.name, m.value, m.step) for m in event.metrics] == [
        ("ratio", 1, 0),
        ("ratio", 0.5, 1),
    ]
    assert event.artifacts == ["out.txt"]
    assert event.tags["md5/in.txt"] == hashlib.md5(b"in").hexdigest()
    assert event.tags["md5/out.txt"] == hashlib.md5(b"out").hexdigest()
    assert (event.tags["rule"], event.tags["device"]) == ("evaluate", "cpu")
    assert event.tags["version/numpy"] == np.__version__
    assert float(event.tags["peak_memory_mb"]) > 10
    assert before <= event.start <= event.end <= datetime.now(UTC)
    assert event.seconds == (event.end - event.start) / timedelta(seconds=1)


def test_the_file_is_named_by_key_start_and_process():
    execute()
    (path,) = EVENT.parent.iterdir()
    start = only_event().start.strftime("%Y%m%dT%H%M%S.%fZ")
    assert path.name == f"{EVENT.name}.{start}.{os.getpid()}.json"


def test_each_execution_has_its_own_event():
    for _ in range(3):
        execute()
    events = tracking.read_events(Path("logs"))
    assert len({event.id for event in events}) == 3
    assert [event.start for event in events] == sorted(event.start for event in events)


def test_no_event_leaves_no_file_and_still_takes_records(folder):
    with tracking.run(None, params={}, inputs=[], outputs=[]) as run:
        run.metric("ratio", float("nan"))
        run.artifact(Path("figure.png"))
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (RankCollapseError("a.txt: too short; write more"), "a.txt: too short; write more"),
        (ValueError("two\nlines"), "ValueError: two lines"),
        (KeyboardInterrupt(), "KeyboardInterrupt: "),
    ],
)
def test_a_failed_run_keeps_the_error_and_raises_it(error, line):
    Path("out.txt").write_text("of an earlier run")
    with pytest.raises(type(error)):
        fail(error, outputs=[Path("out.txt")])
    event = only_event()
    assert (event.status, event.error) == ("FAILED", line)
    assert event.metrics[0].value == 1
    assert "md5/out.txt" not in event.tags
    assert event.end is not None


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
def test_a_number_that_is_not_finite_becomes_a_tag(value):
    with tracking.run(EVENT, params={}, inputs=[], outputs=[]) as run:
        run.metric("cosine", float(value), 4)
    event = only_event()
    assert event.metrics == []
    assert event.tags["metric/cosine/4"] == value


def test_a_killed_process_leaves_a_running_event_with_its_inputs():
    Path("in.txt").write_text("in")
    command = [sys.executable, "-c", ENTER_AND_WAIT, str(EVENT), "in.txt"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        process.send_signal(signal.SIGKILL)
    event = only_event()
    assert (event.status, event.end, event.seconds) == ("RUNNING", None, None)
    assert event.pid == process.pid
    assert event.tags["md5/in.txt"] == hashlib.md5(b"in").hexdigest()


def test_a_folder_counts_each_visible_file_and_no_states():
    for name in ("c/a.txt", "c/sub/b.txt", "c/.hidden", "c/.git/x", "c/model.safetensors"):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(name)
    states = Path("data/smoke/hidden_states/run")
    states.mkdir(parents=True)
    (states / "index.json").write_text("{}")
    (states / "san.safetensors").write_text("big")
    execute(inputs=[Path("c"), states, Path("missing.txt")])
    hashed = {tag for tag in only_event().tags if tag.startswith("md5/")}
    assert hashed == {
        "md5/c/a.txt",
        "md5/c/sub/b.txt",
        "md5/c/model.safetensors",
        "md5/data/smoke/hidden_states/run/index.json",
    }


def test_the_commit_and_whether_it_was_changed():
    execute()
    assert "git_commit" not in only_event().tags
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b.c"]
    Path("code.py").write_text("1")
    for words in (["init", "-q"], ["add", "code.py"], ["commit", "-qm", "one"]):
        subprocess.run([*git, *words], check=True)
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True).stdout
    execute()
    Path("code.py").write_text("2")
    execute()
    _, clean, changed = tracking.read_events(Path("logs"))
    assert clean.tags["git_commit"] == changed.tags["git_commit"] == commit.strip()
    assert (clean.tags["git_dirty"], changed.tags["git_dirty"]) == ("false", "true")


def test_a_machine_without_git_records_no_commit(monkeypatch):
    monkeypatch.setenv("PATH", "")
    execute()
    assert only_event().status == "FINISHED"
    assert "git_commit" not in only_event().tags


def test_the_workflow_is_taken_from_the_environment(monkeypatch):
    monkeypatch.setenv(tracking.WORKFLOW_VARIABLE, "w1")
    execute()
    assert only_event().workflow == "w1"


def test_a_damaged_event_is_named_once_and_left_out(caplog):
    execute()
    (path,) = EVENT.parent.iterdir()
    fields = json.loads(path.read_text())
    EVENT.with_name("cut.json").write_text(path.read_text()[:50])
    EVENT.with_name("other.json").write_text(json.dumps(fields | {"start": "yesterday"}))
    assert only_event().key == EVENT.name
    assert [record.getMessage().split(":")[0] for record in caplog.records] == [
        str(EVENT.with_name("cut.json")),
        str(EVENT.with_name("other.json")),
    ]


def test_no_logs_is_no_events():
    assert tracking.read_events(Path("logs")) == []


def test_a_folder_that_cannot_be_made_stops_before_the_work():
    Path("logs").write_text("a file")
    worked = []
    with (
        pytest.raises(RankCollapseError, match=r"^logs/smoke/evaluate: cannot .* writable$"),
        tracking.run(EVENT, params={}, inputs=[], outputs=[]),
    ):
        worked.append(1)
    assert worked == []


def test_work_that_is_done_survives_a_record_that_cannot_be_written(caplog):
    with tracking.run(EVENT, params={}, inputs=[], outputs=[]):
        EVENT.parent.rename("elsewhere")
        EVENT.parent.write_text("a file in the place of the folder")
    assert "the end of this run is not recorded" in caplog.text


def test_an_event_needs_profile_rule_and_key():
    with pytest.raises(ValueError, match="PROFILE/RULE/KEY"):
        execute(Path("evaluate/key"))


def test_recording_imports_nothing_heavy_and_costs_little():
    heavy = "{'mlflow', 'torch', 'git', 'pydantic', 'numpy', 'pandas'} & set(sys.modules)"
    code = f"import sys, rankcollapse.tracking; print({heavy} or 'none')"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert answer.stdout.strip() == "none"
    start = time.monotonic()
    execute()
    assert time.monotonic() - start < 2
