from pathlib import Path

import pytest

from rankcollapse.precision import EPS, precision_floor
from rankcollapse.published import FIGURE2_COLUMNS, PublishedError, read_figure2

FIGURE2 = Path(__file__).parents[1] / "data" / "published" / "figure2.csv"


def test_the_312_points_are_read_in_the_order_of_the_file():
    frame = read_figure2(FIGURE2)
    assert list(frame.columns) == FIGURE2_COLUMNS
    assert len(frame) == 312
    assert frame.iloc[0].tolist() == ["bert-base-cased", "init", "san", 0, 0.611750601, 0.013812779]
    curves = frame.groupby(["model", "weights", "variant"])["layer"]
    assert curves.ngroups == 24
    assert (curves.agg(list).map(lambda layers: layers == list(range(13)))).all()


@pytest.mark.parametrize("floor", [2e-6, precision_floor("float32")])
def test_87_means_are_round_off_whether_the_floor_is_2e_6_or_16_eps(floor):
    assert (read_figure2(FIGURE2)["mean"] < floor).sum() == 87


def test_no_published_mean_lies_between_saturation_and_the_floor():
    means = read_figure2(FIGURE2)["mean"]
    saturated = means[means < precision_floor("float32")]
    assert saturated.max() < 8 * EPS["float32"]
    assert saturated.min() > EPS["float32"]


def test_a_missing_file_says_how_to_restore_it(tmp_path):
    with pytest.raises(PublishedError, match=r"none\.csv: no such file; restore it with `git"):
        read_figure2(tmp_path / "none.csv")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("model,weights", "modell,weights", "columns are"),
        ("bert-base-cased,init,san,3,0.000000188,0.000000020\n", "", "311 points, expected 312"),
        ("bert-base-cased,init,san,3,", "bert-base-cased,init,san,4,", "no point for bert-base-"),
        ("bert-base-cased,init,san,0,", "bert-large,init,san,0,", "no point for bert-base-cased"),
        ("san,0,0.611750601", "san,0,6.11750601", "line 2: mean 6.11750601 is not in"),
        ("san,0,0.611750601", "san,0,", "line 2: mean nan is not in"),
        ("0.017579538,0.000991945", "0.017579538,wide", "line 3: std wide is not in"),
        ("0.017579538,0.000991945", "0.017579538,-0.1", "line 3: std -0.1 is not in"),
    ],
)
def test_a_changed_file_is_refused_in_one_line(tmp_path, old, new, said):
    path = tmp_path / "figure2.csv"
    text = FIGURE2.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(PublishedError) as caught:
        read_figure2(path)
    message = str(caught.value)
    assert said in message
    assert message.startswith(f"{path}: ")
    assert "restore it" in message
    assert "\n" not in message


def test_a_file_that_is_not_text_is_refused(tmp_path):
    path = tmp_path / "figure2.csv"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(PublishedError, match="not a CSV table"):
        read_figure2(path)


def test_floors_are_16_eps():
    assert precision_floor("float32") == pytest.approx(1.9073486e-6)
    assert precision_floor("float64") == pytest.approx(3.5527137e-15)
    assert precision_floor("bfloat16") == 0.125


def test_an_unknown_precision_lists_the_known_ones():
    with pytest.raises(ValueError, match="float32, float64, bfloat16; did you mean 'float32'"):
        precision_floor("float3")
