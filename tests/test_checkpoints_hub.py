import hashlib
import json
import os
import resource
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
import torch
from checkpoint_fixtures import names, save_model
from hub_server import COMMIT, Hub, serve
from safetensors.torch import load

from rankcollapse.checkpoints import CheckpointError, fetch_hub, fetch_hub_files, load_model
from rankcollapse.checkpoints.manifest import HubSource
from rankcollapse.checkpoints.watch import run_watched

FILES = ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "vocab.txt"]
OTHERS = {"README.md": b"a model", "onnx/model.onnx": b"o" * 2000, "tf_model.h5": b"t"}


@pytest.fixture(scope="module")
def model_files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("published")
    save_model(folder)
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def hub(model_files, monkeypatch):
    for variable in ("HF_TOKEN", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(variable, raising=False)
    with serve(Hub({"models/owner/tiny": {**model_files, **OTHERS}})) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        yield hub


def fetch(output, revision=COMMIT, **options):
    return fetch_hub("owner/tiny", revision, output, name="tiny", **options)


def refused(tmp_path, problem, **options):
    with pytest.raises(CheckpointError, match=problem) as caught:
        fetch(tmp_path / "out", **options)
    assert "\n" not in str(caught.value)
    assert names(tmp_path) == []


def test_a_model_is_fetched_whole_and_nothing_else(tmp_path, hub, model_files, monkeypatch):
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    manifest = fetch(tmp_path / "out")
    assert manifest.source == HubSource(repository="owner/tiny", revision=COMMIT)
    assert names(tmp_path / "out") == sorted([*FILES, "manifest.json"])
    assert names(tmp_path) == ["out"]
    for name, digest in manifest.files.items():
        assert (tmp_path / "out" / name).read_bytes() == model_files[name]
        assert digest == hashlib.sha256(model_files[name]).hexdigest()
    assert not load_model(tmp_path / "out").training
    assert all(f"/{COMMIT}" in path for _, path in hub.requests)


def test_a_second_fetch_gives_the_same_bytes(tmp_path, hub):
    fetch(tmp_path / "one")
    fetch(tmp_path / "two")
    for name in names(tmp_path / "one"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_pickled_tensors_are_saved_as_safetensors(tmp_path, hub, model_files):
    files = hub.repositories["models/owner/tiny"]
    tensors = load(files.pop("model.safetensors"))
    torch.save(tensors, tmp_path / "weights")
    files["pytorch_model.bin"] = (tmp_path / "weights").read_bytes()
    fetch(tmp_path / "out")
    assert names(tmp_path / "out") == sorted([*FILES, "manifest.json"])
    stored = load((tmp_path / "out" / "model.safetensors").read_bytes())
    assert stored.keys() == tensors.keys()
    assert all(torch.equal(stored[name], tensors[name]) for name in tensors)


class Bomb:
    def __reduce__(self):
        return os.mkdir, ("exploded",)


def test_a_pickle_that_would_run_code_does_not(tmp_path, hub, tmp_path_factory, monkeypatch):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    monkeypatch.chdir(elsewhere)
    files = hub.repositories["models/owner/tiny"]
    files.pop("model.safetensors")
    torch.save({"a": Bomb()}, elsewhere / "weights")
    files["pytorch_model.bin"] = (elsewhere / "weights").read_bytes()
    refused(tmp_path, "would run code")
    assert names(elsewhere) == ["weights"]


@pytest.mark.parametrize("missing", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_repository_without_a_needed_file_is_refused(tmp_path, hub, missing):
    hub.repositories["models/owner/tiny"].pop(missing)
    refused(tmp_path, rf"owner/tiny: has no .*{missing} at {COMMIT}; choose")


@pytest.mark.parametrize("revision", ["main", "v1.0", COMMIT[:39], COMMIT.upper()])
def test_a_branch_is_refused_before_anything_is_asked(tmp_path, hub, revision):
    refused(tmp_path, r"not a commit of 40 hex digits; `git ls-remote", revision=revision)
    assert hub.requests == []


def test_an_unknown_revision_is_named(tmp_path, hub):
    refused(tmp_path, f"owner/tiny at {hub.endpoint}: has no revision f{{40}};", revision="f" * 40)


@pytest.mark.parametrize(
    ("status", "problem"),
    [
        (404, "404, not found; check the name"),
        (401, "401, no such repository or no access to it; .*HF_TOKEN"),
        (403, "403, no such repository or no access to it; .*HF_TOKEN"),
        (500, "the hub answered 500; try again later"),
    ],
)
def test_a_refusal_says_what_to_do(tmp_path, hub, status, problem):
    hub.status = status
    refused(tmp_path, problem)


def test_a_token_opens_a_private_repository(tmp_path, hub, monkeypatch):
    hub.token = "secret"
    refused(tmp_path, "HF_TOKEN")
    monkeypatch.setenv("HF_TOKEN", "secret")
    fetch(tmp_path / "out")
    assert names(tmp_path) == ["out"]


def test_offline_nothing_is_asked(tmp_path, hub, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    refused(tmp_path, "not asked, because HF_HUB_OFFLINE is set; unset it")
    assert hub.requests == []


@pytest.mark.parametrize(
    ("endpoint", "problem"),
    [
        ("http://127.0.0.1:9", "at http://127.0.0.1:9: cannot be reached .*refused.*HF_ENDPOINT"),
        ("http://no-such-host.invalid", "no-such-host.invalid: cannot be reached .*HF_ENDPOINT"),
    ],
)
def test_a_hub_that_cannot_be_reached_is_named(tmp_path, hub, monkeypatch, endpoint, problem):
    monkeypatch.setenv("HF_ENDPOINT", endpoint)
    refused(tmp_path, problem)


def test_a_silent_hub_is_given_up(tmp_path, hub):
    hub.silent = True
    started = time.monotonic()
    refused(tmp_path, "asking the hub for owner/tiny: no answer for 1 s; check", deadline=1.0)
    assert time.monotonic() - started < 10


def test_a_hub_that_falls_silent_in_a_file_is_given_up(tmp_path, hub):
    hub.stall_after = 70_000
    refused(tmp_path, "fetching owner/tiny: no answer for 6 s; check", deadline=6.0)
    assert ("GET", f"/owner/tiny/resolve/{COMMIT}/model.safetensors") in hub.requests


def test_a_cut_connection_resumes(tmp_path, hub):
    hub.cut_after = 70_000
    fetch(tmp_path / "out")
    assert hub.ranges == [("model.safetensors", 65_536)]


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_wrong_bytes_of_the_right_size_are_refused(tmp_path, hub, model_files, name):
    hub.tampered[name] = model_files[name][:-1] + b"?"
    refused(tmp_path, rf"owner/tiny: {name} came with hash .* the hub lists .*; try again")


def test_pinned_hashes_are_checked_whatever_the_hub_says(tmp_path, hub, model_files):
    digest = hashlib.sha256(model_files["vocab.txt"]).hexdigest()
    refused(tmp_path, r"vocab\.txt: sha256 is .*, expected 0{64}", files={"vocab.txt": "0" * 64})
    refused(tmp_path, r"merges\.txt: No such file", files={"merges.txt": digest})
    assert fetch(tmp_path / "out", files={"vocab.txt": digest}).files["vocab.txt"] == digest


def test_an_output_that_cannot_be_written_is_one_line(tmp_path, hub):
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match=r"out: cannot be written \(.*another folder"):
        fetch(tmp_path / "file" / "out")
    assert names(tmp_path) == ["file"]
    assert hub.requests == []


def test_a_disk_that_fills_up_leaves_nothing(tmp_path, hub):
    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000))

    code = """
        import sys
        from pathlib import Path
        from rankcollapse.checkpoints import CheckpointError, fetch_hub
        try:
            fetch_hub("owner/tiny", sys.argv[1], Path(sys.argv[2]), name="tiny")
        except CheckpointError as error:
            print(error)
    """
    command = [sys.executable, "-c", textwrap.dedent(code), COMMIT, str(tmp_path / "out")]
    output = subprocess.check_output(command, preexec_fn=limit, text=True, stderr=subprocess.PIPE)
    assert output == (
        f"{tmp_path / 'out'}: cannot be written (File too large); "
        "free disk space or name another folder\n"
    )
    assert names(tmp_path) == []


def test_the_child_ends_when_its_parent_is_killed(tmp_path, hub):
    hub.silent = True
    code = (
        "import sys, pathlib; from rankcollapse.checkpoints import fetch_hub;"
        "fetch_hub('owner/tiny', sys.argv[1], pathlib.Path(sys.argv[2]), name='tiny')"
    )
    command = [sys.executable, "-c", code, COMMIT, str(tmp_path / "out")]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as parent:
        wait_for(lambda: hub.requests)
        (child,) = Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()
        parent.send_signal(signal.SIGKILL)
    wait_for(lambda: not Path(f"/proc/{child}").exists() or "Z" in state(child))


def state(process):
    return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0]


def wait_for(condition, seconds=20):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)


def test_a_child_that_dies_is_reported(tmp_path, hub, monkeypatch):
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "huggingface_hub.py").write_text("raise ImportError('no hub client here')")
    monkeypatch.setenv("PYTHONPATH", str(broken))
    with pytest.raises(CheckpointError, match=r"the download died .*no hub client here"):
        fetch(tmp_path / "out")
    assert names(tmp_path) == ["broken"]


def test_a_log_gets_plain_lines(tmp_path, hub, capfd):
    fetch(tmp_path / "out")
    lines = capfd.readouterr().err.splitlines()
    assert lines == ["asking the hub for owner/tiny", "fetching owner/tiny, 0.1 MB"]


def test_a_long_download_says_how_far_it_is(tmp_path, capfd, monkeypatch):
    monkeypatch.setattr("rankcollapse.checkpoints.watch.LINE_EVERY_S", 0.0)
    code = "import sys, time; open(sys.argv[1], 'wb').write(b'0' * 500_000); time.sleep(0.3)"
    command = [sys.executable, "-c", code, str(tmp_path / "file")]
    options = {"folder": tmp_path, "deadline": 20.0, "environment": os.environ, "label": "it"}
    run_watched(command, total=2_000_000, **options)
    assert capfd.readouterr().err.splitlines() == ["it, 2.0 MB", "it: 0.5 of 2.0 MB"]


def test_a_terminal_gets_a_bar(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    code = "import sys, time; open(sys.argv[1], 'wb').write(b'0' * 500_000); time.sleep(0.3)"
    command = [sys.executable, "-c", code, str(tmp_path / "file")]
    options = {"folder": tmp_path, "deadline": 20.0, "environment": os.environ, "label": "it"}
    run_watched(command, total=500_000, **options)
    shown = capsys.readouterr().err
    assert "it" in shown
    assert "500.0/500.0 kB" in shown


@pytest.fixture
def data(hub):
    files = {f"default/test/000{n}.parquet": bytes([n]) * 2000 for n in (0, 1)}
    files |= {"default/train/0000.parquet": b"x", "README.md": b"y"}
    hub.repositories["datasets/owner/data"] = files
    return files


@pytest.mark.parametrize("revision", [COMMIT, "refs/convert/parquet"])
def test_a_split_is_fetched_with_its_commit(tmp_path, hub, data, revision):
    commit = fetch_hub_files("owner/data", revision, tmp_path / "out", pattern="*/test/*.parquet")
    assert commit == COMMIT
    wanted = {path.replace("/", "--"): data[path] for path in data if "/test/" in path}
    record = json.loads((tmp_path / "out" / "source.json").read_text())
    hashes = {name: hashlib.sha256(content).hexdigest() for name, content in wanted.items()}
    assert record == {"repository": "owner/data", "revision": COMMIT, "files": hashes}
    assert names(tmp_path / "out") == sorted([*wanted, "source.json"])
    assert all((tmp_path / "out" / name).read_bytes() == wanted[name] for name in wanted)
    assert names(tmp_path) == ["out"]


@pytest.mark.parametrize(
    ("repository", "revision", "pattern", "problem"),
    [
        ("owner/data", COMMIT, "*/validation/*", "has no files '\\*/validation/\\*' at"),
        ("owner/data", "main", "*", "not a commit of 40 hex digits"),
        ("owner/none", COMMIT, "*", "404, not found"),
    ],
)
def test_files_that_are_not_there_are_named(tmp_path, data, repository, revision, pattern, problem):
    with pytest.raises(CheckpointError, match=problem):
        fetch_hub_files(repository, revision, tmp_path / "out", pattern=pattern)
    assert names(tmp_path) == []


def test_paths_that_lead_outside_are_not_taken(tmp_path, hub, data):
    data["default/test/../../../outside.parquet"] = b"z"
    fetch_hub_files("owner/data", COMMIT, tmp_path / "out", pattern="*.parquet")
    assert not any("outside" in path for _, path in hub.requests)
