import http.server
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from rich.console import Console

from rankcollapse import doctor
from rankcollapse.doctor import print_report, report

ROOT = Path(__file__).parent.parent
CLOSED = "http://127.0.0.1:9"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A folder with the profiles, on a machine without network."""
    shutil.copytree(ROOT / "config", tmp_path / "config")
    monkeypatch.chdir(tmp_path)
    for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("HF_ENDPOINT", CLOSED)
    return tmp_path


@pytest.fixture
def index(tmp_path_factory, monkeypatch):
    """A package index that has one wheel."""
    folder = tmp_path_factory.mktemp("index")
    wheel = f"{doctor.PROBE.replace('-', '_')}-0.1.0-py3-none-any.whl"
    (folder / doctor.PROBE).mkdir()
    (folder / doctor.PROBE / "index.html").write_text(f"<a href='{wheel}'>{wheel}</a>")
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", folder.as_uri())


@pytest.fixture
def listening():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def by_name():
    return {check.name: check for check in report()}


def test_a_machine_without_network_runs_what_needs_none():
    checks = by_name()
    assert list(checks) == [
        *("python", "memory", "disk", "cores", "device", "hub", "index", "tools", "store", "locks"),
        *("smoke", "embedded", "full", "paper"),
    ]
    assert checks["python"].detail == ".".join(map(str, sys.version_info[:3]))
    assert checks["cores"].detail == str(len(os.sched_getaffinity(0)))
    assert "dvc 3." in checks["tools"].detail
    assert "git 2." in checks["tools"].detail
    assert (checks["hub"].state, checks["index"].state) == ("note", "note")
    assert checks["smoke"].detail == "can run"
    assert checks["embedded"].detail == ("cannot run: needs the package index once, or `dvc pull`")
    assert checks["paper"].state == "bad"
    assert "needs the Hugging Face hub once, or `dvc pull`" in checks["paper"].detail


@pytest.mark.usefixtures("index")
def test_with_an_index_the_embedded_profile_runs(capsys):
    assert print_report(Console()) is True
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 14
    assert lines[-3:-1] == ["ok    embedded  can run", "ok    full      can run"]
    assert lines[-1].startswith("bad   paper     cannot run: needs the Hugging Face hub once")


def test_without_the_embedded_profile_the_answer_is_no(capsys):
    assert print_report() is False
    assert "\x1b" not in capsys.readouterr().out


@pytest.mark.usefixtures("index")
def test_with_a_hub_the_paper_profile_runs(listening, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", listening)
    checks = by_name()
    assert checks["hub"].detail == f"{listening} can be reached"
    assert checks["paper"].detail == "can run"
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    checks = by_name()
    assert checks["hub"].detail == "switched off by HF_HUB_OFFLINE"
    assert checks["paper"].state == "bad"


def test_what_is_there_already_needs_no_network():
    for name in doctor.load_config(Path("config/embedded.yaml")).folders():
        manifest = Path("data/embedded/checkpoints") / name / "manifest.json"
        manifest.parent.mkdir(parents=True)
        manifest.touch()
    assert by_name()["embedded"].detail == "can run"
    Path("data/embedded/checkpoints/all-minilm-l6-v2/manifest.json").unlink()
    assert by_name()["embedded"].state == "bad"


def test_a_proxy_is_what_must_answer(listening, monkeypatch):
    monkeypatch.setenv("no_proxy", "")
    monkeypatch.setenv("http_proxy", listening)
    assert doctor._reachable("http://hub.invalid")
    monkeypatch.setenv("http_proxy", CLOSED)
    assert not doctor._reachable("http://hub.invalid")


def test_a_folder_without_profiles_says_where_to_call_it():
    shutil.rmtree("config")
    smoke = by_name()["smoke"]
    assert smoke.state == "bad"
    assert smoke.detail.startswith("cannot run: config/smoke.yaml: cannot be read")
    assert smoke.detail.endswith("call it in the folder of the repository")


def test_a_profile_that_asks_for_a_missing_device_cannot_run():
    path = Path("config/smoke.yaml")
    path.write_text(path.read_text().replace("device: cpu", "device: cuda"))
    state = {"python": "ok", "tools": "ok", "index": "ok", "hub": "ok", "device": "note"}
    assert doctor._profile("smoke", state).detail == "cannot run: its config asks for CUDA"
    assert doctor._profile("smoke", state | {"device": "ok"}).state == "ok"


def test_what_the_machine_lacks_is_named(monkeypatch):
    monkeypatch.setitem(doctor.MEMORY, "smoke", 10**18)
    monkeypatch.setitem(doctor.DISK, "smoke", 10**18)
    monkeypatch.setattr(doctor, "PYTHONS", ((3, 98), (3, 99)))
    monkeypatch.setattr(doctor, "TOOLS", ("dvc", "no-such-package"))
    monkeypatch.setenv("PATH", "")
    checks = by_name()
    assert checks["python"].detail.endswith("install one from 3.98 to 3.99")
    assert checks["tools"].detail == "not installed: no-such-package, git; see the README"
    assert checks["smoke"].detail == (
        "cannot run: python (see above); tools (see above); needs 1000000000 GB of memory; "
        "needs 1000000000 GB of free disk"
    )


def test_a_store_that_cannot_be_used_is_a_note(monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", CLOSED)
    store = doctor._store()
    assert store.state == "note"
    assert "127.0.0.1:9: cannot be reached" in store.detail


def test_a_server_that_answers_is_a_store_whatever_it_says(monkeypatch):
    server = http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler)
    with server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{server.server_port}")
        assert doctor._store().state == "ok"


def test_a_lock_of_snakemake_is_stale_unless_snakemake_works_here():
    locks = Path(".snakemake/locks")
    locks.mkdir(parents=True)
    assert doctor._locks().detail == "none"
    (locks / "0.input.lock").touch()
    assert "`snakemake --unlock`" in doctor._locks().detail
    with working("snakemake") as process:
        assert doctor._locks().detail == f"Snakemake is at work here (process {process.pid})"


@pytest.mark.parametrize("damage", ["", '{"write": {', "[]", '{"write": {"a": 1}}'])
def test_a_lock_that_a_killed_dvc_cut_is_named(damage):
    write_rwlock(damage)
    assert doctor._locks().detail == "a killed DVC left a damaged lock: delete .dvc/tmp/rwlock"


def test_a_lock_of_dvc_is_judged_by_the_process_it_names():
    with working("sleeper") as other:
        write_rwlock(json.dumps({"write": {"o": {"pid": other.pid, "cmd": "dvc repro"}}}))
        assert "not DVC: delete .dvc/tmp/rwlock" in doctor._locks().detail
    assert doctor._locks() == doctor.Check("locks", "ok", "none")
    with working("dvc") as process:
        write_rwlock(json.dumps({"read": {"o": [{"pid": process.pid, "cmd": "dvc repro"}]}}))
        assert doctor._locks().detail == f"DVC is at work here (process {process.pid})"


def test_dvc_itself_clears_and_refuses_what_we_say_it_does():
    subprocess.run(["git", "init", "-q"], check=True)
    dvc = [sys.executable, "-m", "dvc"]
    environment = {**os.environ, "DVC_NO_ANALYTICS": "true"}
    subprocess.run([*dvc, "init", "-q"], check=True, env=environment)
    Path("dvc.yaml").write_text("stages: {s: {cmd: echo 1 > o, outs: [o]}}\n")
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    write_rwlock('{"write": {')
    repro = [*dvc, "repro"]
    refused = subprocess.run(repro, env=environment, capture_output=True, text=True)
    assert "rwlock" in refused.stderr
    assert refused.returncode != 0
    held = {"pid": gone.pid, "cmd": "dvc repro"}
    write_rwlock(json.dumps({"write": {str(Path("o").absolute()): held}, "read": {}}))
    subprocess.run(repro, env=environment, check=True, capture_output=True)


def write_rwlock(text):
    Path(".dvc/tmp").mkdir(parents=True, exist_ok=True)
    Path(".dvc/tmp/rwlock").write_text(text)


class working:
    """A process of that name that waits in this folder until the block is left."""

    def __init__(self, program):
        Path(program).write_text("print(flush=True); input()")
        self.process = subprocess.Popen(
            [sys.executable, program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def __enter__(self):
        self.process.stdout.readline()
        return self.process

    def __exit__(self, *error):
        self.process.communicate(b"\n")
