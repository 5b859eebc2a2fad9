import json

import pandas as pd
import pytest
from checkpoint_fixtures import names
from hub_server import COMMIT, Hub, serve

from rankcollapse.checkpoints import CheckpointError, fetch_text

REF = "refs/convert/parquet"


@pytest.fixture
def data(tmp_path_factory, monkeypatch):
    folder = tmp_path_factory.mktemp("data")
    rows = {"one": [["a  b", "c\n"]], "two": [["d", "e"], ["é", "f"]]}
    files = {}
    for name, content in rows.items():
        pd.DataFrame(content, columns=["first", "second"]).to_parquet(folder / name)
        files[f"default/test/{name}.parquet"] = (folder / name).read_bytes()
    files["default/test/three.parquet"] = b"not a table"
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    with serve(Hub({"datasets/owner/data": files})) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        yield hub


def fetch(output, pattern, columns):
    fetch_text("owner/data", REF, output, pattern=pattern, columns=columns)


def test_columns_become_one_document_a_line(tmp_path, data):
    fetch(tmp_path / "out", "*/test/[ot][nw][eo].parquet", ["second", "first"])
    text = (tmp_path / "out" / "documents.txt").read_text(encoding="utf-8")
    assert text == "c\ta b\ne\td\nf\té\n"
    assert json.loads((tmp_path / "out" / "source.json").read_text())["revision"] == COMMIT
    assert names(tmp_path / "out") == ["documents.txt", "source.json"]
    assert names(tmp_path) == ["out"]


@pytest.mark.parametrize(
    ("pattern", "columns", "problem"),
    [
        ("*/one.parquet", ["third"], "has no column third; it has first, second"),
        ("*/three.parquet", ["first"], "cannot be read as Parquet"),
        ("*/none.parquet", ["first"], "has no files"),
    ],
)
def test_a_text_that_cannot_be_made_leaves_nothing(tmp_path, data, pattern, columns, problem):
    with pytest.raises(CheckpointError, match=problem):
        fetch(tmp_path / "out", pattern, columns)
    assert names(tmp_path) == []
