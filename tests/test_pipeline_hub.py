"""The phases of the paper profile that need the hub, through Snakemake, on a server of the test."""

import json
from pathlib import Path

import pandas as pd
import pytest
import yaml
from hub_server import COMMIT, Hub, serve
from pipeline import ROOT, call, copy_repository

TINY = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """A tree whose profile takes its model and its text from the hub, as `paper` does."""
    tree = copy_repository(tmp_path_factory.mktemp("hub") / "rankcollapse")
    config = yaml.safe_load((tree / "config/smoke.yaml").read_text())
    paper = yaml.safe_load((tree / "config/paper.yaml").read_text())
    config["checkpoints"]["tiny-bert"] = {
        **paper["checkpoints"]["bert-base-cased"],
        "repository": "owner/tiny-bert",
        "revision": COMMIT,
    }
    config["texts"]["wikibio"] = {**paper["texts"]["wikibio"], "repository": "owner/wiki_bio"}
    (tree / "config/smoke.yaml").write_text(yaml.safe_dump(config))
    return tree


@pytest.fixture
def hub(tmp_path):
    path = tmp_path / "part.parquet"
    biography = "ada lovelace -lrb- 1815 -- 1852 -rrb- was an english mathematician and writer . "
    pd.DataFrame({"target_text": [biography * 3] * 5, "other": range(5)}).to_parquet(path)
    model = {name: (ROOT / "config/tiny/bert" / name).read_bytes() for name in TINY}
    data = {"default/test/0000.parquet": path.read_bytes()}
    with serve(Hub({"models/owner/tiny-bert": model, "datasets/owner/wiki_bio": data})) as hub:
        yield hub


def run(tree, hub, target, **options):
    command = ("snakemake", "--configfile", "config/smoke.yaml", "--cores", "2", target)
    return call(tree, *command, HF_ENDPOINT=hub.endpoint, HF_HUB_OFFLINE="0", **options)


def test_a_hub_that_refuses_is_one_line_and_leaves_nothing(tree, hub):
    hub.status = 404
    done = run(tree, hub, "data/smoke/checkpoints/tiny-bert/manifest.json", check=False)
    assert done.returncode != 0
    assert "rankcollapse: error: owner/tiny-bert" in done.stdout
    assert not (tree / "data/smoke/checkpoints/tiny-bert/model.safetensors").exists()


def test_model_and_text_come_from_the_hub_and_are_evaluated(tree, hub):
    run(tree, hub, "data/smoke/residuals/tiny-bert.wikibio.float32.parquet")
    folder = Path(tree / "data/smoke/checkpoints")
    manifest = json.loads((folder / "tiny-bert/manifest.json").read_text())
    assert manifest["source"] == {
        "source": "hub",
        "repository": "owner/tiny-bert",
        "revision": COMMIT,
    }
    assert json.loads((folder / "text-wikibio/source.json").read_text())["revision"] == COMMIT
    assert len((folder / "text-wikibio/documents.txt").read_text().splitlines()) == 5
    # What was fetched is not asked for again.
    asked = len(hub.requests)
    assert "Nothing to be done" in run(
        tree, hub, "data/smoke/residuals/tiny-bert.wikibio.float32.parquet"
    )
    assert len(hub.requests) == asked


def test_the_paper_profile_is_a_workflow(tree):
    said = call(tree, "snakemake", "-n", "--configfile", "config/paper.yaml")
    for line in ("text             2", "verdict          1", "report           1"):
        assert " ".join(line.split()) in " ".join(said.split())
