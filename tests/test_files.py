import os
import resource
import signal
import subprocess
import sys

import pytest

from rankcollapse.files import (
    atomic_directory,
    atomic_file,
    copy_file,
    free_bytes,
    md5,
    sha256,
    write_text,
)

KILLED = """
import os, signal, sys
from pathlib import Path
from rankcollapse.files import atomic_directory, atomic_file
path = Path(sys.argv[2])
with {"file": atomic_file, "folder": atomic_directory}[sys.argv[1]](path) as temporary:
    (temporary / "part" if sys.argv[1] == "folder" else temporary).write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""
NAMES = ("plain.txt", "with a space", "brackets[ab]*?.txt", "ünï.txt")


def listing(folder):
    return sorted(path.name for path in folder.iterdir())


def kill_while_writing(kind, path):
    done = subprocess.run([sys.executable, "-c", KILLED, kind, str(path)], check=False)
    assert done.returncode == -signal.SIGKILL


@pytest.fixture
def small_disk():
    """Let this process write no file of more than 1,000 bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("name", NAMES)
def test_a_file_appears_whole_in_a_new_folder(tmp_path, name):
    path = tmp_path / "new" / "folder" / name
    with atomic_file(path) as temporary:
        assert not temporary.exists()
        assert temporary.name == name
        temporary.write_text("content")
        assert not path.exists()
    assert path.read_text() == "content"
    assert listing(path.parent) == [name]


def test_a_failed_block_leaves_the_old_file(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(KeyError), atomic_file(path) as temporary:  # noqa: PT012 (inside)
        temporary.write_text("new")
        raise KeyError
    assert path.read_text() == "old"
    assert listing(tmp_path) == ["file"]


def test_a_block_that_writes_nothing_leaves_the_old_file(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(FileNotFoundError), atomic_file(path):
        pass
    assert path.read_text() == "old"
    assert listing(tmp_path) == ["file"]


def test_a_folder_replaces_the_older_one(tmp_path):
    path = tmp_path / "folder"
    for name in ("a", "b"):
        with atomic_directory(path) as temporary:
            assert listing(temporary) == []
            (temporary / name).write_text(name)
    assert listing(path) == ["b"]
    assert listing(tmp_path) == ["folder"]


def test_a_failed_block_leaves_the_old_folder(tmp_path):
    path = tmp_path / "folder"
    with atomic_directory(path) as temporary:
        (temporary / "old").touch()
    with pytest.raises(KeyError), atomic_directory(path) as temporary:  # noqa: PT012 (inside)
        (temporary / "new").touch()
        raise KeyError
    assert listing(path) == ["old"]
    assert listing(tmp_path) == ["folder"]


@pytest.mark.parametrize("kind", ["file", "folder"])
@pytest.mark.parametrize("name", NAMES)
def test_what_a_killed_job_left_goes_with_the_next(tmp_path, kind, name):
    path = tmp_path / name
    (tmp_path / f".{name}.keep").write_text("of the user")
    kill_while_writing(kind, path)
    assert not path.exists()
    assert len(listing(tmp_path)) == 2
    if kind == "file":
        write_text(path, "whole")
    else:
        with atomic_directory(path):
            pass
    assert listing(tmp_path) == sorted([name, f".{name}.keep"])


def test_the_leftovers_of_another_file_stay(tmp_path):
    kill_while_writing("file", tmp_path / "one")
    (left,) = listing(tmp_path)
    write_text(tmp_path / "two", "whole")
    assert listing(tmp_path) == sorted([left, "two"])


def test_a_killed_job_leaves_the_old_file(tmp_path):
    path = tmp_path / "file"
    write_text(path, "old")
    kill_while_writing("file", path)
    assert path.read_text() == "old"


@pytest.mark.usefixtures("small_disk")
def test_a_full_disk_leaves_the_old_file(tmp_path):
    path = tmp_path / "file"
    write_text(path, "old")
    with pytest.raises(OSError, match="too large"):
        write_text(path, "x" * 2000)
    assert path.read_text() == "old"
    assert listing(tmp_path) == ["file"]


def test_a_parent_that_is_a_file_is_an_os_error(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        write_text(tmp_path / "file" / "below", "text")
    with pytest.raises(OSError, match="file"), atomic_directory(tmp_path / "file" / "below"):
        pass
    assert listing(tmp_path) == ["file"]


def test_text_is_utf_8_with_unix_lines(tmp_path):
    write_text(tmp_path / "t", "é –\n")
    assert (tmp_path / "t").read_bytes() == b"\xc3\xa9 \xe2\x80\x93\n"


def test_permissions_are_those_of_any_new_file(tmp_path):
    (tmp_path / "usual").touch()
    (tmp_path / "folder").mkdir()
    write_text(tmp_path / "t", "text")
    with atomic_directory(tmp_path / "d"):
        pass
    assert (tmp_path / "t").stat().st_mode == (tmp_path / "usual").stat().st_mode
    assert (tmp_path / "d").stat().st_mode == (tmp_path / "folder").stat().st_mode


def test_a_copy_has_the_same_bytes(tmp_path):
    (tmp_path / "a").write_bytes(os.urandom(100))
    copy_file(tmp_path / "a", tmp_path / "new" / "b")
    assert (tmp_path / "new" / "b").read_bytes() == (tmp_path / "a").read_bytes()
    with pytest.raises(FileNotFoundError):
        copy_file(tmp_path / "missing", tmp_path / "c")
    assert listing(tmp_path) == ["a", "new"]


def test_hashes_are_the_published_ones_of_abc(tmp_path):
    (tmp_path / "abc").write_bytes(b"abc")
    assert md5(tmp_path / "abc") == "900150983cd24fb0d6963f7d28e17f72"
    assert sha256(tmp_path / "abc") == (
        "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    )


def test_free_bytes_of_a_path_that_is_not_there_yet(tmp_path):
    status = os.statvfs(tmp_path)
    total = status.f_blocks * status.f_frsize
    free = free_bytes(tmp_path / "not" / "there")
    assert 0 < free <= total
    assert abs(free - status.f_bavail * status.f_frsize) < total / 100
