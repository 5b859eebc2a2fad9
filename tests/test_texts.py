import math

import numpy as np
import pandas as pd
import pytest
from curve_fixtures import curve, legend_labels, line, model, notes

from rankcollapse.errors import RankCollapseError
from rankcollapse.figures import output, style, texts


def two_texts(**names):
    return pd.concat([model(**names), model(text="plain", shift=0.1, **names)], ignore_index=True)


def test_the_difference_is_paired_seed_by_seed():
    # The seeds lie 0.4 apart, their differences are 0.1 and 0.2: pairing keeps the seeds out.
    curves = pd.concat(
        [
            curve([0.2], seed=0),
            curve([0.6], seed=1),
            curve([0.9], seed=2),
            curve([0.3], seed=0, text="plain"),
            curve([0.8], seed=1, text="plain"),
            curve([0.1], seed=3, text="plain"),
        ]
    )
    (row,) = texts.table(curves).to_dict("records")
    assert row == {
        "checkpoint": "bert-base-cased",
        "weights": "init",
        "variant": "san",
        "layer": 0,
        "seeds": 2,
        "wikibio_mean": pytest.approx(0.4),
        "plain_mean": pytest.approx(0.55),
        "difference": pytest.approx(0.15),
        "difference_low": pytest.approx(0.1),
        "difference_high": pytest.approx(0.2),
    }


def test_pretrained_weights_without_seed_are_paired():
    rows = texts.table(two_texts(weights="pretrained", seeds=(None,)))
    assert set(rows["seeds"]) == {1}
    skip = rows[rows["variant"] == "san_skip"]
    assert skip["difference"].tolist() == pytest.approx([0.1] * 5)
    assert skip["difference_low"].tolist() == skip["difference_high"].tolist()


def test_round_off_is_not_compared():
    curves = pd.concat([curve([0.5, 1e-5, 2e-7]), curve([0.6, 1e-6, 3e-7], text="plain")])
    rows = texts.table(curves)
    assert rows["difference"].tolist() == pytest.approx([0.1, -9e-6, math.nan], nan_ok=True)
    assert rows["difference_low"].isna().tolist() == [False, False, True]
    assert rows["plain_mean"].tolist() == pytest.approx([0.6, 1e-6, 3e-7])


def test_a_line_for_each_variant_and_the_range_over_seeds():
    curves = pd.concat(
        [
            curve([0.2, 0.2], seed=0),
            curve([0.2, 0.2], seed=1),
            curve([0.3, 0.2], seed=0, text="plain"),
            curve([0.5, 0.2], seed=1, text="plain"),
        ]
    )
    (figure,) = texts.draw(curves).values()
    (axes,) = figure.axes
    assert line(axes, "SAN").get_ydata() == pytest.approx([0.2, 0.0])
    heights = axes.collections[0].get_paths()[0].vertices[:, 1]
    assert heights.min() == pytest.approx(0.0)
    assert heights.max() == pytest.approx(0.3)
    names = [look.label for look in style.VARIANTS.values()]
    assert legend_labels(figure) == [*names, "range over seeds"]


def test_a_panel_for_each_checkpoint_and_weights_that_has_both_texts():
    curves = pd.concat(
        [
            two_texts(checkpoint="xlnet-base-cased", seeds=(0, 1)),
            two_texts(checkpoint="bert-base-cased"),
            two_texts(checkpoint="bert-base-cased", weights="pretrained", seeds=(None,)),
            model(checkpoint="albert-base-v2"),
        ]
    )
    (figure,) = texts.draw(curves).values()
    assert [axes.get_title() for axes in figure.axes[:2]] == ["BERT", "XLNet"]
    assert [notes(axes) for axes in figure.axes] == [[], [], [], ["not measured here"]]
    drawn = np.asarray(line(figure.axes[1], "Transformer").get_ydata())
    assert drawn == pytest.approx([0.1] * 5)
    assert line(figure.axes[1], "no difference").get_ydata() == pytest.approx([0, 0])


def test_the_axis_names_both_texts_and_the_centre():
    curves = two_texts().replace({"text": {"plain": "rte"}})
    (figure,) = texts.draw(curves, other="rte").values()
    assert "ratio on rte minus ratio on wikibio" in figure.get_supylabel()
    assert "column mean" in figure.get_supylabel()
    assert "rte_mean" in texts.table(curves, other="rte").columns


def test_other_measures_readings_and_precisions_stay_out():
    changes = ({"measure": "cosine"}, {"reading": "as-described"}, {"precision": "float64"})
    other = [
        curve([9.0], text=text, **change) for text in ("wikibio", "plain") for change in changes
    ]
    rows = texts.table(pd.concat([two_texts(), *other]))
    assert len(rows) == 4 * 5
    assert rows["plain_mean"].max() < 1


def test_without_a_second_text_it_says_so_in_one_line():
    for draw in (texts.draw, texts.table):
        with pytest.raises(RankCollapseError, match="'wikibio' and 'plain'") as caught:
            draw(model())
        assert "\n" not in str(caught.value)


def test_it_can_be_written(tmp_path):
    files = output.save(texts.draw(two_texts()), tmp_path / "texts")
    assert [file.name for file in files] == ["texts.pdf", "texts.png"]
