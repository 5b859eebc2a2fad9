import math

import numpy as np
import pandas as pd
import pytest
from curve_fixtures import curve, legend_labels, line, lines, model, notes

from rankcollapse.errors import RankCollapseError
from rankcollapse.figures import output, readings, style
from rankcollapse.precision import precision_floor

CUBIC = (0.99, 0.75, 0.3, 1.4e-2, 6e-6, 1e-16)
RATE = (math.nan, 28.6, 4.2, 3.5, 2.8, math.nan)
LACKING = (32, 0, 0, 0, 0, 32)


def both_readings(**names):
    described = curve((0.6, 0.4, 0.2), reading="as-described", **names)
    return pd.concat([curve((0.6, 0.5, 0.4), **names), described], ignore_index=True)


def deep(**names):
    names = {"checkpoint": "all-minilm-l6-v2", "weights": "pretrained", "seed": None} | names
    names["precision"] = "float64"
    rate = curve(RATE, measure="rate", below_floor=[0] * 6, missing=LACKING, **names)
    return pd.concat([curve(CUBIC, **names), rate], ignore_index=True)


def parts(curves):
    (figure,) = readings.draw(curves).values()
    return figure.subfigs


def test_one_page():
    pages = readings.draw(pd.concat([both_readings(variant="san_mlp"), deep()]))
    assert list(pages) == [""]
    assert pages[""].get_size_inches()[0] == pytest.approx(style.DOUBLE_COLUMN)
    assert len(pages[""].subfigs) == 2


def test_both_readings_of_a_curve_stand_in_one_panel():
    (part,) = parts(both_readings(variant="san_mlp"))
    (axes,) = part.axes
    published = line(axes, "SAN + MLP, as published")
    described = line(axes, "SAN + MLP, as described")
    assert published.get_ydata() == pytest.approx([0.6, 0.5, 0.4])
    assert described.get_ydata() == pytest.approx([0.6, 0.4, 0.2])
    assert published.get_linestyle() != described.get_linestyle()
    assert described.get_markerfacecolor() == "white"
    assert published.get_markerfacecolor() == published.get_color()
    assert "column mean" in part.get_supylabel()


def test_curves_that_are_the_same_in_both_readings_are_left_out():
    curves = pd.concat([model(), both_readings(variant="san_mlp", checkpoint="albert-base-v2")])
    (part,) = parts(curves)
    assert [axes.get_title() for axes in part.axes] == ["ALBERT"]
    assert "SAN + MLP" in legend_labels(part)
    assert "Transformer" not in legend_labels(part)


def test_albert_shows_each_variant_in_which_its_readings_differ():
    variants = ("san", "san_mlp", "san_skip")
    curves = [both_readings(variant=name, checkpoint="albert-base-v2") for name in variants]
    (part,) = parts(pd.concat(curves))
    for variant in variants:
        for reading in ("as published", "as described"):
            assert line(part.axes[0], f"{style.variant(variant).label}, {reading}")


def test_only_seeds_that_have_both_readings_are_compared():
    curves = pd.concat([both_readings(seed=0), curve((9.0, 9.0, 9.0), seed=1)])
    rows = readings.table(curves)
    assert set(rows["seeds"]) == {1}
    published = rows[rows["reading"] == "as-published"]
    assert published["mean"].tolist() == pytest.approx([0.6, 0.5, 0.4])


def test_a_pair_of_pretrained_weights_without_seed_is_found():
    rows = readings.table(both_readings(weights="pretrained", seed=None))
    assert len(rows) == 6


def test_weights_without_a_second_reading_leave_a_panel_that_says_so():
    curves = pd.concat(
        [
            both_readings(),
            both_readings(checkpoint="all-mpnet-base-v2"),
            both_readings(checkpoint="all-mpnet-base-v2", weights="pretrained", seed=None),
        ]
    )
    (part,) = parts(curves)
    assert [notes(axes) for axes in part.axes] == [[], [], ["not measured here"], []]


def test_below_the_floor_of_float32_the_curves_are_faded():
    curves = pd.concat([curve((0.5, 1e-7), reading=name) for name in readings._READINGS])
    (part,) = parts(curves)
    (axes,) = part.axes
    solid = np.asarray(line(axes, "SAN, as described").get_ydata())
    assert solid == pytest.approx([0.5, math.nan], nan_ok=True)
    assert len(lines(axes, "below floor")) == 2


def test_the_ratio_in_float64_ends_at_the_floor():
    (part,) = parts(deep())
    above, _ = part.axes
    assert above.get_title() == "MiniLM\npretrained"
    assert above.get_yscale() == "log"
    drawn = np.asarray(line(above, "SAN").get_ydata())
    assert drawn == pytest.approx([*CUBIC[:5], math.nan], nan_ok=True)
    floor = precision_floor("float64")
    assert line(above, "floor").get_ydata() == pytest.approx([floor, floor])
    assert any("3.6" in label and "float64" in label for label in legend_labels(part))


def test_the_rate_has_its_references_and_marks_what_is_off_the_scale():
    (part,) = parts(deep())
    _, below = part.axes
    assert line(below, "cubic").get_ydata() == pytest.approx([3, 3])
    assert line(below, "exponential").get_ydata() == pytest.approx([1, 1])
    drawn = np.asarray(line(below, "SAN").get_ydata())
    assert drawn == pytest.approx([math.nan, math.nan, 4.2, 3.5, 2.8, math.nan], nan_ok=True)
    off_scale = line(below, "SAN, off the scale")
    assert list(off_scale.get_xdata()) == [1]
    assert list(off_scale.get_ydata()) == [below.get_ylim()[1]]


def test_a_rate_that_some_sequences_lack_is_not_drawn():
    curves = curve(
        (2.0, 3.0, 3.5),
        precision="float64",
        measure="rate",
        below_floor=[0, 0, 1],
        missing=[0, 2, 0],
    )
    rows = readings.table(curves)
    assert rows["mean"].tolist() == pytest.approx([2.0, math.nan, math.nan], nan_ok=True)


def test_the_panels_of_the_rates_reach_the_last_layer():
    (part,) = parts(deep())
    assert all(5 < axes.get_xlim()[1] < 6 for axes in part.axes)


def test_san_lies_on_top_and_the_curves_that_do_not_collapse_are_left_out():
    curves = pd.concat([deep(variant=name) for name in style.VARIANTS])
    (part,) = parts(curves)
    above, below = part.axes
    for axes in (above, below):
        labels = [drawn.get_label() for drawn in axes.get_lines()]
        assert labels.index("SAN") > labels.index("SAN + MLP")
        assert "Transformer" not in labels


def test_each_model_in_float64_has_a_column():
    curves = pd.concat([deep(), deep(checkpoint="all-mpnet-base-v2")])
    (part,) = parts(curves)
    titles = [axes.get_title() for axes in part.axes]
    assert titles == ["MPNet\npretrained", "MiniLM\npretrained", "", ""]


def test_the_table_has_what_is_drawn():
    rows = readings.table(pd.concat([both_readings(variant="san_mlp"), deep()]))
    assert list(rows.columns) == [
        "checkpoint",
        "weights",
        "variant",
        "reading",
        "precision",
        "measure",
        "layer",
        "mean",
        "std",
        "seeds",
    ]
    assert rows.groupby(["precision", "measure"]).size().to_dict() == {
        ("float32", "composite_ratio"): 6,
        ("float64", "composite_ratio"): 6,
        ("float64", "rate"): 6,
    }


def test_with_nothing_to_draw_it_says_so_in_one_line():
    for draw in (readings.draw, readings.table):
        with pytest.raises(RankCollapseError, match=r"second reading.*'wikibio'") as caught:
            draw(pd.concat([model(), both_readings(text="plain")]))
        assert "\n" not in str(caught.value)


def test_it_can_be_written(tmp_path):
    files = output.save(readings.draw(pd.concat([both_readings(), deep()])), tmp_path / "readings")
    assert [file.name for file in files] == ["readings.pdf", "readings.png"]
