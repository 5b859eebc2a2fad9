from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.special import ndtri

from rankcollapse.chained_tables import (
    CHAINED_COLUMNS,
    PUBLISHED_COLUMNS,
    read_published,
)
from rankcollapse.chained_verdicts import (
    COLUMNS,
    READING_FACTOR,
    expected,
    judge,
    write_chained_verdicts,
)
from rankcollapse.path_tables import write_rows
from rankcollapse.precision import precision_floor
from rankcollapse.published import PublishedError
from rankcollapse.tables import TableError, read_csv
from rankcollapse.verdicts import VERDICTS

PUBLISHED = Path(__file__).parents[1] / "data" / "published" / "chained_attention.csv"
FLOOR = precision_floor("float32")


def pairs(distances, *, sequences=None, **names):
    """Return a table of pairs of BERT, with the setting that is compared unless told otherwise."""
    count = len(distances)
    row = {
        "checkpoint": "bert-base-cased",
        "weights": "init",
        "seed": 0,
        "layers": "any",
        "reading": "as-published",
        "depth": 1,
        "pair": range(count),
        "sequence": np.arange(count) % 32 if sequences is None else sequences,
        "distance": distances,
        "dobrushin": 0.5,
    } | names
    return pd.DataFrame(row)[CHAINED_COLUMNS].astype({"seed": "Int64"})


def box(q1, median, q3, *, weights="init", depth=1):
    return pd.DataFrame([(depth, weights, q1, median, q3)], columns=PUBLISHED_COLUMNS)


def draw(generator, count, *, centre=0.1, of_texts=0.0, texts=32, of_pairs=0.5):
    """Return log-normal distances of pairs, alike within a sequence, and their sequences."""
    sequences = generator.integers(texts, size=count)
    logs = of_texts * generator.standard_normal(texts)[sequences]
    logs += of_pairs * generator.standard_normal(count)
    return centre * np.exp(logs), sequences


def seeds(*centres, count=400, **names):
    generator = np.random.default_rng(0)
    frames = [
        pairs(draw(generator, count, centre=centre)[0], seed=seed, **names)
        for seed, centre in enumerate(centres)
    ]
    return pd.concat(frames, ignore_index=True)


def quartiles(values):
    return np.quantile(values, [0.25, 0.5, 0.75])


def test_pairs_that_are_all_alike_leave_the_reading_factor():
    spread = expected([pairs([0.2] * 40)])
    np.testing.assert_allclose(spread.measured, 0.2)
    np.testing.assert_allclose(spread.low, 0.2 / READING_FACTOR)
    np.testing.assert_allclose(spread.high, 0.2 * READING_FACTOR)


def test_measured_is_the_geometric_mean_of_the_seeds_quartiles():
    first, second = np.linspace(0.1, 0.5, 41), np.linspace(0.2, 1.0, 41)
    spread = expected([pairs(first), pairs(second)])
    np.testing.assert_allclose(spread.measured, np.sqrt(quartiles(first) * quartiles(second)))


def test_the_interval_of_one_network_by_order_statistics():
    # Without a spread over texts: the log median of n pairs has a standard error of
    # 1.2533 * 0.5 / sqrt(n), theirs with n = 100, ours with n = 2000. At 1.96 of both, 0.1259.
    values = 0.1 * np.exp(0.5 * ndtri((np.arange(2000) + 0.5) / 2000))
    spread = expected([pairs(np.random.default_rng(1).permutation(values))])
    reach = 1.96 * 1.2533 * 0.5 * np.sqrt(1 / 100 + 1 / 2000) + np.log(READING_FACTOR)
    assert np.log(spread.high[1] / spread.measured[1]) == pytest.approx(reach, rel=0.12)
    assert np.log(spread.measured[1] / spread.low[1]) == pytest.approx(reach, rel=0.12)


def test_sequences_that_differ_widen_the_interval():
    generator = np.random.default_rng(2)
    values, sequences = draw(generator, 2000, of_texts=0.5, of_pairs=0.1)
    whole = expected([pairs(values, sequences=sequences)])
    mixed = expected([pairs(values, sequences=generator.integers(32, size=2000))])
    assert np.log(whole.high[1] / whole.low[1]) > 1.5 * np.log(mixed.high[1] / mixed.low[1])


def test_the_spread_over_seeds_by_hand():
    # Pairs all alike: only var(y) (1 + 1/3) with y = log .1 -+ .1 remains: t of 2 degrees, 4.303.
    frames = [pairs([0.1 * np.exp(y)] * 50, seed=n) for n, y in enumerate((-0.1, 0.0, 0.1))]
    spread = expected(frames)
    reach = 4.303 * 0.1 * np.sqrt(4 / 3)
    high = np.log(spread.high[1] / (0.1 * READING_FACTOR))
    assert high == pytest.approx(reach, rel=0.3)  # the 2.5 % tail of 1000 draws of t
    assert spread.measured[1] == pytest.approx(0.1)


def test_right_quartiles_fail_rarely_and_wrong_ones_mostly():
    generator = np.random.default_rng(3)
    right, wrong, cases = 0, 0, 60
    for _ in range(cases):
        ours, sequences = draw(generator, 300, of_texts=0.4)
        spread = expected([pairs(ours, sequences=sequences)])
        theirs, _ = draw(generator, 100, of_texts=0.4)
        right += np.sum((quartiles(theirs) < spread.low) | (quartiles(theirs) > spread.high))
        theirs = 2 * theirs
        wrong += np.sum((quartiles(theirs) < spread.low) | (quartiles(theirs) > spread.high))
    assert right / (3 * cases) < 0.08
    assert wrong / (3 * cases) > 0.8


def test_quartiles_inside_reproduce_and_others_do_not():
    frame = seeds(0.1, 0.1, 0.1)
    middle = quartiles(frame["distance"])
    good = judge(frame, box(*middle))
    assert list(good.columns) == COLUMNS
    assert good["quartile"].tolist() == ["q1", "median", "q3"]
    assert good["verdict"].tolist() == ["reproduced"] * 3
    assert good["published"].tolist() == pytest.approx(middle.tolist())
    assert (good["seeds"].iloc[0], good["pairs"].iloc[0]) == (3, 1200)
    bad = judge(frame, box(middle[0] / 2, middle[1], middle[2] * 2))
    assert bad["verdict"].tolist() == ["not reproduced", "reproduced", "not reproduced"]
    assert bad["reason"].iloc[0].startswith("below the 95 % interval of 100 pairs")
    assert bad["reason"].iloc[2].startswith("above the 95 % interval of 100 pairs")
    assert bad["reason"].iloc[2].endswith("times ours")


def test_the_ends_belong_to_the_interval():
    frame = pairs([0.2] * 40, weights="pretrained", seed=pd.NA)
    spread = expected([frame])
    for value, verdict in ((1, "reproduced"), (1 + 1e-9, "not reproduced")):
        judged = judge(frame, box(0.2, 0.2, spread.high[2] * value, weights="pretrained"))
        assert judged["verdict"].iloc[2] == verdict


@pytest.mark.parametrize("q1", [0.99 * FLOOR, 8e-7])
def test_a_box_whose_q1_is_round_off_is_never_compared(q1):
    for frame in (seeds(q1, q1, q1), seeds(0.1, 0.1, 0.1)[:0]):
        judged = judge(frame, box(q1, 2 * FLOOR, 3 * FLOOR))
        assert set(judged["verdict"]) == {"below precision floor"}
        assert judged["reason"].str.contains("not compared").all()


def test_two_seeds_of_an_initialisation_are_not_enough():
    judged = judge(seeds(0.1, 0.1), box(0.07, 0.1, 0.14))
    assert set(judged["verdict"]) == {"not measured"}
    assert judged[["measured", "low", "high"]].isna().all(axis=None)
    assert judged["reason"].iloc[0].startswith("2 of at least 3 networks")


@pytest.mark.parametrize(
    "names",
    [
        {"checkpoint": "all-mpnet-base-v2"},
        {"reading": "as-described"},
        {"weights": "pretrained"},
        {"depth": 2},
    ],
)
def test_what_was_measured_otherwise_is_passed_over(names):
    judged = judge(seeds(0.1, 0.1, 0.1, **names), box(0.07, 0.1, 0.14))
    assert set(judged["verdict"]) == {"not measured"}


def test_each_rule_of_the_layers_is_judged_by_itself():
    frame = pd.concat([seeds(0.1, 0.1, 0.1, layers="first"), seeds(0.3, 0.3, 0.3)])
    judged = judge(frame, box(*quartiles(seeds(0.1, 0.1, 0.1)["distance"])))
    assert judged["layers"].tolist() == ["any"] * 3 + ["first"] * 3
    assert judged["verdict"].tolist() == ["not reproduced"] * 3 + ["reproduced"] * 3


def test_the_same_pairs_give_the_same_verdicts():
    frame = seeds(0.1, 0.11, 0.12)
    point = box(0.07, 0.1, 0.14)
    shuffled = frame.sample(frac=1, random_state=0)
    pd.testing.assert_frame_equal(judge(frame, point), judge(frame.copy(), point))
    first, second = judge(frame, point), judge(shuffled, point)
    np.testing.assert_allclose(first["measured"], second["measured"])


def test_all_published_quartiles_of_init_from_depth_4_lie_below_the_floor():
    judged = judge(seeds(0.1, 0.1, 0.1), read_published(PUBLISHED))
    below = judged[judged["verdict"] == "below precision floor"]
    assert set(below["weights"]) == {"init"}
    assert sorted(set(below["depth"])) == list(range(4, 13))
    assert len(judged) == 72
    assert set(judged["verdict"]) <= set(VERDICTS)


def test_verdicts_are_written_and_read_again(tmp_path):
    write_rows(tmp_path / "a.parquet", seeds(0.1, 0.1, 0.1))
    write_rows(tmp_path / "b.parquet", pairs([0.2] * 40, weights="pretrained", seed=pd.NA))
    output = tmp_path / "verdicts" / "chained_attention.csv"
    judged = write_chained_verdicts(
        [tmp_path / "a.parquet", tmp_path / "b.parquet"], PUBLISHED, output
    )
    read = read_csv(output, COLUMNS)
    assert read["verdict"].tolist() == judged["verdict"].tolist()
    np.testing.assert_allclose(read["low"], judged["low"], rtol=1e-8)
    assert [path.name for path in output.parent.iterdir()] == ["chained_attention.csv"]


def test_a_missing_table_is_one_line(tmp_path):
    with pytest.raises(TableError, match="no such table"):
        write_chained_verdicts([tmp_path / "none.parquet"], PUBLISHED, tmp_path / "out.csv")


def test_the_24_published_boxes():
    frame = read_published(PUBLISHED)
    assert frame.shape == (24, 5)
    assert frame.iloc[12].tolist() == [1, "init", 0.131, 0.1522, 0.1906]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("depth,weights", "deep,weights", "columns are"),
        ("3,init,4.954e-05,5.757e-05,7.21e-05\n", "", "23 boxes, expected one for each of 12"),
        ("3,init,", "2,init,", "24 boxes, expected one for each of 12"),
        ("0.2387,0.3474,0.5875", "0.3874,0.3474,0.5875", "line 2: not 0 < q1"),
        ("0.2387,0.3474,0.5875", "0.2387,0.3474,5.875", "line 2: not 0 < q1"),
        ("0.2387,0.3474,0.5875", "0.2387,,0.5875", "line 2: not 0 < q1"),
        ("0.1215,0.1768", "wide,0.1768", "line 3: not 0 < q1"),
    ],
)
def test_a_changed_file_is_refused_in_one_line(tmp_path, old, new, said):
    path = tmp_path / "chained_attention.csv"
    text = PUBLISHED.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(PublishedError) as caught:
        read_published(path)
    message = str(caught.value)
    assert said in message
    assert message.startswith(f"{path}: ")
    assert "restore it" in message
    assert "\n" not in message


def test_a_missing_file_says_how_to_restore_it(tmp_path):
    with pytest.raises(PublishedError, match=r"none\.csv: no such file; restore it with `git"):
        read_published(tmp_path / "none.csv")
