import hashlib
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import path_fixtures
import pytest
import yaml

from rankcollapse.config import load_config
from rankcollapse.files import md5
from rankcollapse.tables import write_csv

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "workflow"))

import readme  # noqa: E402 (a script of the workflow)

TEXT = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.fixture
def results(tmp_path):
    """What is beside the README, with tables of paths that no model gave."""
    folder = tmp_path / "results"
    shutil.copytree(readme.RESULTS, folder)
    made = path_fixtures.tables()
    write_csv(folder / "chained_attention.csv", made["chained_verdicts"])
    write_csv(folder / "components.csv", made["component_claims"])
    write_csv(folder / "orders.csv", made["orders"])
    write_csv(folder / "bound_pieces.csv", made["bound_pieces"])
    write_csv(folder / "decomposition.csv", path_fixtures.figure_numbers())
    (folder / readme.SOURCE).write_text('{"profile": "full", "commit": "abc1234"}')
    return folder


def recorded(path):
    """Return the hash that dvc.lock has of an output folder, if it has one."""
    stages = yaml.safe_load((ROOT / "dvc.lock").read_text())["stages"]
    outs = [out for stage in stages.values() for out in stage["outs"]]
    return next((out["md5"] for out in outs if out["path"] == path), None)


def test_the_results_in_the_readme_are_those_of_the_verdicts():
    assert readme.with_block(TEXT, readme.block(readme.RESULTS)) == TEXT


def test_the_verdicts_beside_the_readme_are_those_that_dvc_recorded():
    names = sorted(readme.VERDICTS)
    listing = [{"md5": md5(readme.RESULTS / name), "relpath": name} for name in names]
    # DVC's hash of a folder is that of its listing.
    digest = hashlib.md5(json.dumps(listing, sort_keys=True).encode()).hexdigest()
    profile = json.loads((readme.RESULTS / readme.SOURCE).read_bytes())["profile"]
    known = recorded(f"data/{profile}/verdicts")
    # DVC follows one profile; of another it has no hash.
    assert known in (f"{digest}.dir", None)
    assert (known is None) == (profile != followed())


def followed():
    return yaml.safe_load((ROOT / "params.yaml").read_text())["profile"]


def test_the_block_says_where_its_numbers_come_from(results):
    assert readme.block(results).startswith("Profile `full`, commit abc1234.\n\nOf the 312")


def test_the_block_has_a_line_for_each_model_that_was_decomposed(results):
    lines = [line for line in readme.block(results).splitlines() if "of the residual of" in line]
    assert len(lines) == 3
    assert (
        "- MiniLM pretrained: lengths 0 and 1 carry 90 % of the residual of the last state; the "
        "median path has length 3." in lines
    )


def test_the_block_counts_quartiles_and_tells_orders(results):
    text = readme.block(results)
    assert "- A path of depth k passes any k of the layers, each choice as likely: of 72" in text
    assert "9 could be compared; 8 reproduce, 1 does not;" in text
    assert "cubic in MiniLM pretrained 2.97 (2.91 to 3.03); exponential in MPNet" in text
    assert "with its 95 % interval over texts and seeds." in text
    write_csv(
        results / "chained_attention.csv",
        pd.read_csv(results / "chained_attention.csv").assign(verdict="not measured"),
    )
    assert "0 could be compared; 72 were not measured." in readme.block(results)


def test_the_block_says_what_is_proven_of_skips(results):
    text = readme.block(results)
    assert "BERT at initialisation, Transformer (3 of 3 layers, 10 %)." in text
    assert "Of 12 LayerNorms in a layer of these networks 6 stretch the largest distance" in text


def test_captions_count_the_texts_of_the_profile_that_was_run():
    profile = json.loads((readme.RESULTS / readme.SOURCE).read_bytes())["profile"]
    counts = load_config(ROOT / f"config/{profile}.yaml").paths.sequences
    captions = [" ".join(caption.split()) for caption in re.findall(r"\n\n\*([^*]+)\*\n", TEXT)]
    told = [int(n) for caption in captions for n in re.findall(r"(\d+) texts of 128", caption)]
    assert told == [32, counts.decomposition, counts.bounds, counts.relative]


def test_the_block_has_a_row_for_each_piece(results):
    text = readme.block(results)
    assert "| piece | slows it | ends the cubic rate | keeps the rate | stops it |" in text
    assert "| skip | – | 1 of 1 | – | 1 of 2 |" in text
    assert "| rotary positions | – | 0 of 1 | – | – |" in text
    assert "\N{NO-BREAK SPACE}" not in text


def test_a_profile_is_copied_with_its_name_and_commit(results, tmp_path, monkeypatch):
    for file in (
        *(f"data/full/verdicts/{name}" for name in readme.VERDICTS),
        *(f"figures/full/{name}" for name in readme.FIGURES),
        *(f"data/full/{name}" for name in readme.TABLES),
    ):
        path = tmp_path / file
        path.parent.mkdir(parents=True, exist_ok=True)
        known = results / path.name
        path.write_bytes(known.read_bytes() if known.exists() else path_fixtures.picture(file))
    (tmp_path / "params.yaml").write_text("profile: embedded\n")
    (tmp_path / "README.md").write_text(f"before\n{readme.BEGIN}\nold\n{readme.END}\nafter\n")
    for command in (
        ["init", "--quiet"],
        ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "--allow-empty", "-m", "one"],
    ):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    target = tmp_path / "docs"
    for name, value in {
        "ROOT": tmp_path,
        "RESULTS": target,
        "README": tmp_path / "README.md",
    }.items():
        monkeypatch.setattr(readme, name, value)
    assert readme.main(["full"]) == 0
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=tmp_path, capture_output=True, text=True
    ).stdout.strip()
    text = (tmp_path / "README.md").read_text()
    assert f"\nProfile `full`, commit {commit}.\n" in text
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    names = {*readme.VERDICTS, *readme.FIGURES, "orders.csv", "bound_pieces.csv", readme.SOURCE}
    assert {path.name for path in target.iterdir()} == names


@pytest.mark.parametrize("arguments", [["smoke"], ["full", "embedded"]])
def test_another_profile_is_refused(arguments, capsys):
    assert readme.main(arguments) == 1
    assert capsys.readouterr().out == "usage: python workflow/readme.py [embedded|full]\n"


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
