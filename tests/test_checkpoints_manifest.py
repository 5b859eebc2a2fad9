import json

import pytest
from checkpoint_fixtures import names

from rankcollapse.checkpoints import CheckpointError, read_manifest, verify
from rankcollapse.checkpoints.manifest import (
    Distribution,
    HubSource,
    LocalSource,
    Manifest,
    RandomSource,
    WheelSource,
    checkpoint_folder,
    read_config,
    write_manifest,
)

HASH_OF_A = "ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb"
DIGEST = "0" * 64
SOURCES = [
    HubSource(repository="owner/name", revision="a" * 40),
    WheelSource(distributions=(Distribution(name="w", version="1", sha256=DIGEST),)),
    LocalSource(directory="mine"),
    RandomSource(seed=0),
]


def manifest(source=SOURCES[0], files=None):
    return Manifest(
        name="tiny",
        weights="pretrained",
        model_type="bert",
        source=source,
        files=files or {"a.txt": HASH_OF_A},
        weights_sha256=DIGEST,
    )


@pytest.fixture
def checkpoint(tmp_path):
    (tmp_path / "a.txt").write_text("a", encoding="utf-8")
    write_manifest(tmp_path, manifest())
    return tmp_path


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.source)
def test_a_manifest_reads_as_it_was_written(tmp_path, source):
    write_manifest(tmp_path, manifest(source))
    first = (tmp_path / "manifest.json").read_bytes()
    assert read_manifest(tmp_path) == manifest(source)
    write_manifest(tmp_path, read_manifest(tmp_path))
    assert (tmp_path / "manifest.json").read_bytes() == first


def test_files_are_verified(checkpoint):
    assert verify(checkpoint) == manifest()


def test_a_changed_file_is_named(checkpoint):
    (checkpoint / "a.txt").write_text("b", encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"a\.txt: sha256 is 3e23.*expected ca97.*fetch"):
        verify(checkpoint)


def test_a_missing_file_is_named(checkpoint):
    (checkpoint / "a.txt").unlink()
    with pytest.raises(CheckpointError, match=r"a\.txt: No such file.*fetch"):
        verify(checkpoint)


def test_a_strange_file_is_refused_but_not_a_hidden_one(checkpoint):
    (checkpoint / ".gitignore").touch()
    verify(checkpoint)
    (checkpoint / "adapter_config.json").touch()
    with pytest.raises(CheckpointError, match=r"adapter_config\.json: not in the manifest"):
        verify(checkpoint)


def test_a_folder_without_manifest_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match=r"manifest\.json: No such file"):
        read_manifest(tmp_path)


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"source": {"source": "ftp"}}, "source"),
        ({"source": {"source": "hub", "repository": "o/n", "revision": "main"}}, "revision"),
        ({"source": {"source": "random", "seed": -1}}, "seed"),
        ({"files": {"../up": DIGEST}}, "files"),
        ({"files": {"a": "short"}}, "files"),
        ({"time": "now"}, "time"),
    ],
)
def test_an_invalid_manifest_is_refused_in_one_line(checkpoint, change, where):
    path = checkpoint / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(CheckpointError, match=rf"not a manifest \(.*{where}") as caught:
        read_manifest(checkpoint)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "problem"), [("{", "not JSON"), ("[]", "no model_type"), ("{}", "no model_type")]
)
def test_a_config_must_name_its_architecture(tmp_path, text, problem):
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(CheckpointError, match=problem):
        read_config(path)


def test_a_missing_config_is_named(tmp_path):
    with pytest.raises(CheckpointError, match=r"none\.json: No such file"):
        read_config(tmp_path / "none.json")


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").touch()
    with (
        pytest.raises(CheckpointError, match=r"out: cannot be written \(.*another folder"),
        checkpoint_folder(tmp_path / "file" / "out"),
    ):
        pass
    assert names(tmp_path) == ["file"]
