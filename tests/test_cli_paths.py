import json
import sys
from pathlib import Path

import pandas as pd
import pytest

from rankcollapse import bound_tables, relative_tables
from rankcollapse.chained_tables import SUMMARY_COLUMNS, read_chained
from rankcollapse.checkpoints import copy_local, make_random
from rankcollapse.cli import main
from rankcollapse.components import COLUMNS
from rankcollapse.path_tables import (
    DECOMPOSITION_COLUMNS,
    HEAD_COLUMNS,
    LEFT_OUT_COLUMNS,
    SOURCE_COLUMNS,
    read_rows,
    write_rows,
)
from rankcollapse.tables import TableError, read_csv

ROOT = Path(__file__).parent.parent
BIOGRAPHIES = ROOT / "data/corpus/biographies.txt"


@pytest.fixture
def call(monkeypatch, capfd):
    def run(*words):
        monkeypatch.setattr(sys, "argv", ["rankcollapse", *map(str, words)])
        code = 0
        try:
            main()
        except SystemExit as ended:
            code = ended.code or 0
        return code, *capfd.readouterr()

    return run


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """Return a folder with two checkpoints: `bert`, and `xlnet` at initialisation."""
    folder = tmp_path_factory.mktemp("checkpoints")
    copy_local(ROOT / "config/tiny/bert", folder / "bert", name="tiny-bert")
    xlnet = ROOT / "config/architectures/tiny-xlnet.json"
    make_random(xlnet, 3, folder / "xlnet", name="tiny-xlnet")
    return folder


def reads(tiny, checkpoint="bert", sequences=2):
    return [
        *(tiny / checkpoint, "--tokenizer", tiny / "bert", "--text", BIOGRAPHIES),
        *("--tokens=12", f"--sequences={sequences}"),
    ]


def test_a_checkpoint_is_decomposed(call, tiny, tmp_path):
    output, event = tmp_path / "tables", tmp_path / "logs/mine/study/one"
    code, _, _ = call("decompose", *reads(tiny), "--output", output, "--event", event)
    assert code == 0
    tables = {
        "decomposition": DECOMPOSITION_COLUMNS,
        "mlp_source": DECOMPOSITION_COLUMNS,
        "left_out": LEFT_OUT_COLUMNS,
        "sources": SOURCE_COLUMNS,
    }
    assert {path.stem for path in output.iterdir()} == set(tables)
    found = {name: read_csv(output / f"{name}.csv", columns) for name, columns in tables.items()}
    whole = found["decomposition"]
    assert set(whole["variant"]) == {"transformer", "san_skip"}
    assert set(whole["checkpoint"]) == {"tiny-bert"}
    sums = whole.groupby(["variant", "layer"])["share"].sum()
    assert sums.tolist() == pytest.approx([1] * len(sums), abs=1e-5)
    assert set(found["mlp_source"]["layer"]) == {whole["layer"].max()}
    assert found["left_out"].groupby("variant").size().tolist() == [whole["layer"].max() + 1] * 2
    (written,) = event.parent.glob("one.*.json")
    told = json.loads(written.read_text())
    assert told["status"] == "FINISHED"
    assert "transformer/share" in json.dumps(told["metrics"])


def test_sentences_lose_similarity(call, tiny, tmp_path):
    words = ["--sentences", BIOGRAPHIES, "--sentence-pairs=3"]
    for checkpoint in ("bert", "xlnet"):
        output = tmp_path / checkpoint
        assert call("decompose", *reads(tiny, checkpoint), *words, "--output", output)[0] == 0
    left = read_csv(tmp_path / "bert/left_out.csv", LEFT_OUT_COLUMNS)
    measured = left["similarity_error"].notna()
    assert measured.tolist() == (left["variant"] == "transformer").tolist()
    # It has no tokenizer of its own.
    left = read_csv(tmp_path / "xlnet/left_out.csv", LEFT_OUT_COLUMNS)
    assert left["similarity_error"].isna().all()


def test_heads_are_told_apart(call, tiny, tmp_path):
    output = tmp_path / "tables"
    assert call("heads", *reads(tiny), "--output", output)[0] == 0
    heads = read_csv(output / "heads.csv", HEAD_COLUMNS)
    assert set(heads["variant"]) == {"transformer"}
    assert heads[["layer", "head"]].drop_duplicates().shape[0] == 3 * heads["head"].nunique()


def test_attention_is_chained_summarised_and_judged(call, tiny, tmp_path):
    pairs, summary, verdicts = (tmp_path / name for name in ("p.parquet", "s.csv", "v.csv"))
    assert call("chain", *reads(tiny), "--pairs=12", "--output", pairs)[0] == 0
    table = read_chained(pairs)
    assert set(table["layers"]) == {"any"}
    assert table["pair"].nunique() == 12
    assert table["seed"].isna().all()
    assert call("quartiles", pairs, "--output", summary)[0] == 0
    assert set(read_csv(summary, SUMMARY_COLUMNS)["checkpoint"]) == {"tiny-bert"}
    published = ROOT / "data/published/chained_attention.csv"
    assert call("judge", pairs, "--published", published, "--output", verdicts)[0] == 0
    assert set(pd.read_csv(verdicts)["verdict"]) <= {"not measured", "below precision floor"}


def test_the_published_model_is_chained_by_both_rules(call, tiny, tmp_path):
    bert = tmp_path / "bert"
    copy_local(ROOT / "config/tiny/bert", bert, name="bert-base-cased")
    words = [bert, "--text", BIOGRAPHIES, "--tokens=12", "--sequences=2", "--pairs=12"]
    assert call("chain", *words, "--output", tmp_path / "p.parquet")[0] == 0
    pairs = read_chained(tmp_path / "p.parquet").groupby("layers")["pair"].nunique()
    assert pairs.to_dict() == {"any": 12, "first": 3}


def test_bounds_are_evaluated(call, tiny, tmp_path):
    for words in (["bounds", *reads(tiny)], ["pure-san"]):
        output = tmp_path / words[0]
        assert call(*words, "--output", output)[0] == 0
        bounds = read_csv(output / "bounds.csv", bound_tables.BOUND_COLUMNS)
        assert "violated" not in set(bounds["verdict"])
        read_csv(output / "bound_forms.csv", bound_tables.FORM_COLUMNS)
        pieces = read_csv(output / "bound_pieces.csv", bound_tables.PIECE_COLUMNS)
        assert pieces.empty == (words == ["pure-san"])


def test_relative_positions_are_scaled_and_the_claims_judged(call, tiny, tmp_path):
    output = tmp_path / "relative"
    assert call("relative", *reads(tiny, "xlnet"), "--output", output)[0] == 0
    measured = read_csv(output / "relative.csv", relative_tables.RELATIVE_COLUMNS)
    assert set(measured["scale"]) == {1, 0.5, 0.25, 0}
    assert set(measured["seed"]) == {3}
    networks = tmp_path / "components.parquet"
    assert call("components", "--seeds=0-1", "--output", networks)[0] == 0
    assert set(read_rows(networks, COLUMNS)["seed"]) == {0, 1}
    claims = tmp_path / "claims.csv"
    words = ["causes", networks, "--relative", output / "relative.csv"]
    assert call(*words, "--output", claims)[0] == 0
    found = pd.read_csv(claims)
    assert found["condition"].str.contains("tiny-xlnet").sum() == 3
    assert len(found) > 50


def test_a_model_without_relative_positions_is_named(call, tiny, tmp_path):
    code, _, err = call("relative", *reads(tiny), "--output", tmp_path / "x")
    assert code == 1
    assert "'bert': known are mpnet, xlnet" in err
    assert not (tmp_path / "x").exists()


def test_the_rates_of_tables_are_written(call, tiny, tmp_path):
    states, table, output = tmp_path / "states", tmp_path / "table.parquet", tmp_path / "rates"
    words = [*reads(tiny), "--precision=float64", "--variant=san", "--output", states]
    assert call("evaluate", *words)[0] == 0
    assert call("residuals", states, "--output", table)[0] == 0
    assert call("rates", table, "--output", output)[0] == 0
    assert {path.name for path in output.iterdir()} == {"rates.csv", "orders.csv"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["figure", "figure7"], "unknown figure 'figure7'"),
        (["figure", "figure2", "--table", "curves=x.csv"], "figure2 reads curves, published"),
        (["figure", "figure5", "--table", "curves=x.csv"], "figure5 reads no table"),
        (["figure", "figure4", "--table", "accuracy=x.csv"], "x.csv: no such table"),
    ],
)
def test_a_figure_says_which_tables_it_reads(call, tmp_path, words, message):
    code, _, err = call(*words, "--output", tmp_path / "figure")
    assert code == 1
    assert message in err
    assert list(tmp_path.iterdir()) == []


def test_rows_come_back_and_other_tables_are_refused(tmp_path):
    path = tmp_path / "rows.parquet"
    frame = pd.DataFrame({"a": [1, 2], "b": ["x", "y"]})
    write_rows(path, frame)
    assert read_rows(path, ["a", "b"]).equals(frame)
    with pytest.raises(TableError, match=r"columns are .*, expected \['a'\]"):
        read_rows(path, ["a"])
    with pytest.raises(TableError, match="no such table; run the rule"):
        read_rows(tmp_path / "none.parquet", ["a"])
    path.write_bytes(b"no table")
    with pytest.raises(TableError, match="not a Parquet table"):
        read_rows(path, ["a", "b"])
