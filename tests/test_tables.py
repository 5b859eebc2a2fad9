import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rankcollapse.tables import (
    CURVE_COLUMNS,
    SCHEMA,
    STATUSES,
    TableError,
    curves,
    means,
    read_csv,
    read_curves,
    read_table,
    write_csv,
    write_table,
)

ROW = {
    "checkpoint": "tiny",
    "weights": "init",
    "seed": 0,
    "variant": "san",
    "reading": "as-published",
    "text": "wikibio",
    "precision": "float32",
    "layer": 0,
    "sequence": 0,
    "measure": "cosine",
    "value": 0.5,
    "status": "ok",
}


def table(*changes):
    """Return a tidy table of one row for each dict of changes."""
    frame = pd.DataFrame([{**ROW, **change} for change in changes or ({},)])
    return frame.astype({"seed": "Int64", "value": "float64"})


def refusal(action, *arguments):
    """Return the one line with which a table is refused."""
    with pytest.raises(TableError) as caught:
        action(*arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_table_comes_back_as_it_was(tmp_path):
    path = tmp_path / "new" / "table.parquet"
    frame = table({}, {"layer": 1, "value": None, "status": "undefined"}, {"seed": None})
    write_table(path, frame)
    pd.testing.assert_frame_equal(read_table(path).astype({"seed": "Int64"}), frame)
    assert [entry.name for entry in path.parent.iterdir()] == ["table.parquet"]


def test_columns_may_come_in_any_order(tmp_path):
    write_table(tmp_path / "a", table())
    write_table(tmp_path / "b", table()[sorted(SCHEMA.names)])
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert pq.read_schema(tmp_path / "a").names == SCHEMA.names


@pytest.mark.parametrize("status", STATUSES)
def test_every_status_is_known(tmp_path, status):
    write_table(tmp_path / "t", table({"status": status}))
    assert read_table(tmp_path / "t")["status"].tolist() == [status]


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("layer", "first"),
        ("layer", 1.5),
        ("sequence", None),
        ("checkpoint", None),
        ("measure", 3),
        ("seed", "zero"),
        ("value", "much"),
    ],
)
def test_a_wrong_type_names_the_file_and_the_column(tmp_path, column, value):
    frame = table().astype({column: object})
    frame[column] = value
    message = refusal(write_table, tmp_path / "t.parquet", frame)
    assert "t.parquet: " in message
    assert column in message.split(": ", 1)[1]
    assert list(tmp_path.iterdir()) == []


def test_missing_and_unknown_columns_are_named(tmp_path):
    frame = table().rename(columns={"measure": "measured"})
    message = refusal(write_table, tmp_path / "t", frame)
    assert "columns missing or unknown: measure, measured" in message


def test_an_unknown_status_is_named_with_the_known_ones(tmp_path):
    message = refusal(write_table, tmp_path / "t", table({"status": "okay"}))
    assert "unknown status ['okay']; known are ('ok', 'below floor'" in message


@pytest.mark.parametrize("status", ["ok", "below floor"])
def test_a_missing_value_needs_a_reason(tmp_path, status):
    frame = table({}, {"value": float("nan"), "status": status})
    assert "1 values are missing without a reason" in refusal(write_table, tmp_path / "t", frame)


def test_reading_checks_what_writing_checks(tmp_path):
    path = tmp_path / "t"
    pq.write_table(pa.Table.from_pandas(table({"status": "okay"})), path)
    assert "unknown status" in refusal(read_table, path)
    pq.write_table(pa.table({"value": [1.0]}), path)
    assert "columns missing or unknown: checkpoint" in refusal(read_table, path)


def test_a_missing_or_damaged_table_says_what_to_do(tmp_path):
    assert "no such table; run the rule that makes it" in refusal(read_table, tmp_path / "t")
    write_table(tmp_path / "t", table())
    (tmp_path / "t").write_bytes((tmp_path / "t").read_bytes()[:-20])
    assert "not a Parquet table" in refusal(read_table, tmp_path / "t")
    (tmp_path / "t").write_bytes(b"")
    assert "delete it and rerun" in refusal(read_table, tmp_path / "t")


def test_a_refused_table_leaves_the_old_one(tmp_path):
    write_table(tmp_path / "t", table())
    before = (tmp_path / "t").read_bytes()
    refusal(write_table, tmp_path / "t", table({"status": "okay"}))
    assert (tmp_path / "t").read_bytes() == before


def test_curves_by_hand():
    frame = table(
        {"sequence": 0, "value": 1.0},
        {"sequence": 1, "value": 2.0, "status": "below floor"},
        {"sequence": 2, "value": 6.0},
        {"sequence": 3, "value": None, "status": "not finite"},
        {"sequence": 0, "value": 5.0, "layer": 1},
        {"sequence": 0, "value": None, "layer": 2, "status": "undefined"},
    )
    result = curves([frame])
    assert list(result.columns) == CURVE_COLUMNS
    assert result["layer"].tolist() == [0, 1, 2]
    assert result["mean"].tolist()[:2] == [3.0, 5.0]
    assert result["std"].tolist()[0] == pytest.approx(7**0.5)  # (4 + 1 + 9) / 2
    assert result["std"].isna().tolist() == [False, True, True]
    assert result["mean"].isna().tolist() == [False, False, True]
    assert result["sequences"].tolist() == [3, 1, 0]
    assert result["below_floor"].tolist() == [1, 0, 0]
    assert result["missing"].tolist() == [1, 0, 1]


@pytest.mark.parametrize("column", ["checkpoint", "weights", "variant", "reading", "text"])
def test_curves_of_different_keys_are_kept_apart(column):
    result = curves([table({"value": 1.0}), table({"value": 3.0, column: "other"})])
    assert sorted(result["mean"]) == [1.0, 3.0]
    assert result["sequences"].tolist() == [1, 1]


def test_seeds_are_kept_apart_and_no_seed_is_a_key_too(tmp_path):
    for name, seed in (("a", None), ("b", 1), ("c", 0)):
        write_table(tmp_path / name, table({"seed": seed}, {"seed": seed, "sequence": 1}))
    result = curves(read_table(tmp_path / name) for name in "abc")
    assert result["sequences"].tolist() == [2, 2, 2]
    assert result["seed"].astype("Int64").tolist() == [0, 1, pd.NA]


def test_the_order_of_tables_does_not_matter(tmp_path):
    frames = [table({"seed": seed, "value": seed / 7}) for seed in range(5)]
    write_csv(tmp_path / "a.csv", curves(frames))
    write_csv(tmp_path / "b.csv", curves(frames[::-1]))
    assert (tmp_path / "a.csv").read_bytes() == (tmp_path / "b.csv").read_bytes()


def test_means_name_each_curve_by_layer():
    frame = table(
        {"value": 1.0},
        {"value": 2.0, "sequence": 1},
        {"value": 4.0, "layer": 1},
        {"value": None, "layer": 2, "status": "undefined"},
    )
    name = "as-published/san/cosine"
    assert list(means(frame)) == [(name, 1.5, 0), (name, 4.0, 1)]


@pytest.mark.parametrize("seed", [0, 2**31, 2**53 + 1, 2**63 - 1])
def test_seeds_survive_the_way_to_the_csv_and_back(tmp_path, seed):
    write_table(tmp_path / "t", table({"seed": seed}))
    write_table(tmp_path / "u", table({"seed": None, "weights": "pretrained"}))
    write_csv(tmp_path / "c.csv", curves(read_table(tmp_path / name) for name in "tu"))
    assert read_curves(tmp_path / "c.csv")["seed"].tolist() == [seed, pd.NA]


def test_a_curve_csv_is_plain_text_of_nine_digits(tmp_path):
    write_csv(tmp_path / "c.csv", curves([table({"value": 1 / 3})]))
    assert (tmp_path / "c.csv").read_bytes().decode() == (
        ",".join(CURVE_COLUMNS)
        + "\ntiny,init,0,san,as-published,wikibio,float32,0,cosine,0.333333333,,1,0,0\n"
    )


@pytest.mark.parametrize("name", ["null", "nan", "na", "none", "NA"])
def test_a_name_that_looks_like_nothing_is_a_name(tmp_path, name):
    write_csv(tmp_path / "c.csv", curves([table({"text": name})]))
    assert read_curves(tmp_path / "c.csv")["text"].tolist() == [name]


def test_a_wrong_csv_says_what_to_do(tmp_path):
    path = tmp_path / "c.csv"
    assert "no such table; run the rule that makes it" in refusal(read_curves, path)
    path.write_text("a,b\n1,2\n", encoding="utf-8")
    assert "columns are ['a', 'b'], expected ['a', 'c']" in refusal(read_csv, path, ["a", "c"])
    for damage in (b"", b"a,b\n1,2,3\n1,2,3,4\n", b"a,\xff\n"):
        path.write_bytes(damage)
        assert "not a CSV table" in refusal(read_csv, path, ["a", "b"])
    path.write_text(",".join(CURVE_COLUMNS) + "\nt,init,x" + "," * 11 + "\n", encoding="utf-8")
    assert "not a CSV table" in refusal(read_curves, path)
