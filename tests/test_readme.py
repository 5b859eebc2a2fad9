import hashlib
import json
import re
import sys
from pathlib import Path

import yaml

from rankcollapse.files import md5

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "workflow"))

import readme  # noqa: E402 (a script of the workflow)

TEXT = (ROOT / "README.md").read_text(encoding="utf-8")


def recorded(path):
    """Return the hash that dvc.lock has of an output folder."""
    stages = yaml.safe_load((ROOT / "dvc.lock").read_text())["stages"]
    outs = [out for stage in stages.values() for out in stage["outs"]]
    return next(out["md5"] for out in outs if out["path"] == path)


def test_the_results_in_the_readme_are_those_of_the_verdicts():
    assert readme.with_block(TEXT, readme.block(readme.RESULTS)) == TEXT


def test_the_verdicts_beside_the_readme_are_those_that_dvc_recorded():
    names = sorted(readme.VERDICTS)
    listing = [{"md5": md5(readme.RESULTS / name), "relpath": name} for name in names]
    # DVC's hash of a folder is that of its listing.
    digest = hashlib.md5(json.dumps(listing, sort_keys=True).encode()).hexdigest()
    assert f"{digest}.dir" == recorded("data/embedded/verdicts")


def test_the_counts_add_up_to_the_published_points():
    inside, outside = map(int, re.search(r"\*\*(\d+) reproduce, (\d+) do not\*\*", TEXT).groups())
    below, missing = map(
        int, re.search(r"\. (\d+) lie below .* and (\d+) need the trained", TEXT).groups()
    )
    assert inside + outside + below + missing == 312


def test_every_file_and_target_that_the_readme_names_is_there():
    for path in re.findall(r"\]\(([^)#:]+)\)", TEXT):
        assert (ROOT / path).exists(), path
    targets = re.findall(r"^([a-z]+):.*##", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for target in re.findall(r"`make ([a-z]+)`", TEXT):
        assert target in targets, target
