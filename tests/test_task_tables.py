import numpy as np
import pandas as pd
import pytest
from task_fixtures import curve, line, scores

from rankcollapse.tables import TableError, write_csv
from rankcollapse.task_tables import (
    ACCURACY_COLUMNS,
    SCORE_COLUMNS,
    accuracy,
    read_accuracy,
    read_scores,
    typed,
)


def test_mean_and_spread_over_seeds_by_hand():
    frames = [
        curve([0.2, 0.5], seed=0, std_draws=0.01, ratios=[0.4, 0.1]),
        curve([0.4, 0.5], seed=1, std_draws=0.03, ratios=[0.6, 0.3]),
    ]
    first, second = accuracy(frames).to_dict("records")
    assert first == {
        "task": "sorting",
        "reading": "as-published",
        "epochs": 65,
        "control": "published",
        "paths": "20",
        "length": 0,
        "accuracy_mean": pytest.approx(0.3),
        "std_seeds": pytest.approx(np.sqrt(0.02)),
        "std_draws": pytest.approx(0.02),
        "seeds": 2,
        "residual_ratio": pytest.approx(0.5),
    }
    assert second["std_seeds"] == 0


def test_one_seed_has_no_spread_over_seeds():
    rows = accuracy([curve([0.2, 0.5])])
    assert rows["std_seeds"].isna().all()
    assert rows["seeds"].tolist() == [1, 1]
    assert rows["std_draws"].tolist() == [0.02, 0.02]


def test_a_row_without_length_keeps_its_group():
    rows = accuracy([line(0.5, control="entire", seed=0), line(0.7, control="entire", seed=1)])
    (row,) = rows.to_dict("records")
    assert row["accuracy_mean"] == pytest.approx(0.6)
    assert (row["paths"], row["seeds"]) == ("", 2)
    assert pd.isna(row["length"])
    assert pd.isna(row["std_draws"])


def test_networks_of_another_shape_are_left_out():
    frames = [
        curve([0.2], seed=0),
        curve([0.9], seed=0, shape=(2, 12, 34)),
        curve([0.9], seed=1, shape=(4, 6, 48)),
        curve([0.3], task="convex_hull"),
        curve([0.9], task="convex_hull", shape=(2, 6, 48)),
        curve([0.4], task="memorization"),
    ]
    rows = accuracy(frames)
    assert rows["task"].tolist() == ["memorization", "sorting", "convex_hull"]
    assert rows["accuracy_mean"].tolist() == [0.4, 0.2, 0.3]


def test_a_seed_given_twice_is_an_error_that_names_it():
    frames = [curve([0.2, 0.3], seed=4), curve([0.2, 0.3], seed=4)]
    with pytest.raises(
        TableError, match=r"seed 4 occurs twice .*sorting.*control published"
    ) as got:
        accuracy(frames)
    assert "\n" not in str(got.value)


def test_the_same_seed_with_other_epochs_is_another_network():
    rows = accuracy([curve([0.2]), curve([0.4], epochs=650)])
    assert rows["epochs"].tolist() == [65, 650]
    assert rows["seeds"].tolist() == [1, 1]


def test_the_order_does_not_depend_on_that_of_the_files():
    frames = [
        scores(seeds=(0,)),
        scores(seeds=(1,)),
        scores(task="memorization", seeds=(0,)),
        scores(reading="as-described", epochs=650, seeds=(0,)),
    ]
    forward, backward = accuracy(frames), accuracy(frames[::-1])
    pd.testing.assert_frame_equal(forward, backward)
    published = forward[(forward["control"] == "published") & (forward["task"] == "sorting")]
    assert published["paths"].unique().tolist() == ["5", "20", "all"]
    assert forward["control"].unique().tolist()[:3] == ["entire", "trivial", "published"]
    assert forward["reading"].iloc[-1] == "as-described"


def test_paths_stay_text_through_a_file(tmp_path):
    path = tmp_path / "scores.csv"
    # Numbers and empty cells only: what a CSV reader takes for 5.0 and 20.0.
    frame = pd.concat([line(0.5, control="entire"), curve([0.1], paths="5"), curve([0.2])])
    write_csv(path, frame)
    read = read_scores(path)
    assert list(read.columns) == SCORE_COLUMNS
    assert read["paths"].tolist() == ["", "5", "20"]
    assert read["length"].dtype == "Int64"
    pd.testing.assert_frame_equal(accuracy([read]), accuracy([frame]))


def test_the_average_can_be_read_back(tmp_path):
    path = tmp_path / "accuracy.csv"
    rows = accuracy([scores()])
    assert list(rows.columns) == ACCURACY_COLUMNS
    write_csv(path, rows)
    pd.testing.assert_frame_equal(read_accuracy(path), rows, rtol=1e-8)


def test_other_columns_are_refused(tmp_path):
    path = tmp_path / "scores.csv"
    write_csv(path, curve([0.1]).drop(columns="seed"))
    with pytest.raises(TableError, match="columns are"):
        read_scores(path)


@pytest.mark.parametrize(
    ("given", "expected"),
    [([5, 20], ["5", "20"]), ([5.0, None], ["5", ""]), (["all", None, "5"], ["all", "", "5"])],
)
def test_paths_become_text(given, expected):
    frame = pd.DataFrame({"paths": given})
    assert typed(frame)["paths"].tolist() == expected
