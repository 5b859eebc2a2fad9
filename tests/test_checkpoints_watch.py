import os
import sys

import pytest

from rankcollapse.checkpoints.manifest import CheckpointError
from rankcollapse.checkpoints.watch import run_watched

# pip makes and removes folders of its own while it downloads.
RESTLESS = """
import os, shutil, sys, time
end = time.monotonic() + 1.5
while time.monotonic() < end:
    for name in "abcdefgh":
        os.makedirs(os.path.join(sys.argv[1], name, "below", "it"), exist_ok=True)
    for name in "abcdefgh":
        shutil.rmtree(os.path.join(sys.argv[1], name))
"""


def watched(folder, code, *, deadline=30.0):
    command = [sys.executable, "-c", code, str(folder)]
    environment = dict(os.environ)
    return run_watched(
        command, folder=folder, deadline=deadline, label="fetching x", environment=environment
    )


def test_folders_that_come_and_go_do_not_stop_a_download(tmp_path, monkeypatch):
    monkeypatch.setattr("rankcollapse.checkpoints.watch.POLL_S", 0.0)
    assert watched(tmp_path, RESTLESS).code == 0


def test_a_child_that_brings_nothing_is_ended(tmp_path):
    with pytest.raises(CheckpointError, match=r"^fetching x: no answer for 0\.3 s"):
        watched(tmp_path, "import time; time.sleep(60)", deadline=0.3)


def test_what_a_child_prints_and_how_it_ends_is_told(tmp_path):
    ended = watched(
        tmp_path, "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)"
    )
    assert (ended.code, ended.output, ended.errors) == (3, "out\n", "err\n")
