import math
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from curve_fixtures import COLLAPSING, STEADY, curve, legend_labels, line, lines, model, notes
from curve_fixtures import published as published_table
from matplotlib.colors import to_hex

from rankcollapse.errors import RankCollapseError
from rankcollapse.figures import figure2, output, style
from rankcollapse.precision import precision_floor

FLOOR = precision_floor("float32")


def panel(figure, title, row):
    titles = [axes.get_title() for axes in figure.axes]
    columns = len(figure.axes) // 2
    return figure.axes[titles.index(title) + row * columns]


@pytest.fixture
def bert():
    return published_table("bert-base-cased")


def test_two_pages_with_a_column_for_each_model_in_the_order_of_the_paper():
    curves = pd.concat(
        [
            model(checkpoint="all-minilm-l6-v2"),
            model(checkpoint="of-a-user"),
            model(checkpoint="all-mpnet-base-v2"),
        ]
    )
    published = published_table("xlnet-base-cased", "albert-base-v2", "bert-base-cased")
    pages = figure2.draw(curves, published)
    assert list(pages) == ["", "log"]
    for figure in pages.values():
        assert len(figure.axes) == 2 * 6
        titles = [axes.get_title() for axes in figure.axes[:6]]
        assert titles == ["BERT", "ALBERT", "XLNet", "MPNet", "MiniLM", "of-a-user"]
        labels = [axes.get_ylabel() for axes in figure.axes]
        assert [label for label in labels if label] == ["at initialisation", "pretrained"]


def test_the_axis_names_the_norm_and_the_centre(bert):
    for figure in figure2.draw(model(), bert).values():
        label = figure.get_supylabel()
        assert r"\|\mathrm{res}(X)\|_{1,\infty}" in label
        assert "column mean" in label
        assert [axes.get_xlabel() for axes in figure.axes] == ["", "layer"]


def test_the_curve_is_the_mean_over_seeds(bert):
    axes = figure2.draw(model(seeds=(0, 1, 2)), bert)[""].axes[0]
    expected = [mean + 0.01 for mean in STEADY]
    assert line(axes, "Transformer").get_ydata() == pytest.approx(expected)
    assert list(line(axes, "Transformer").get_xdata()) == [0, 1, 2, 3, 4]


def test_the_band_is_one_standard_deviation_over_seeds_and_texts():
    # Means 0.5 and 0.7 vary by 0.02, texts by (0.03^2 + 0.01^2) / 2 = 0.0005: together 0.0205.
    curves = pd.concat([curve([0.5], seed=0, std=0.03), curve([0.7], seed=1, std=0.01)])
    rows = figure2.table(curves, published_table())
    assert rows["mean"].tolist() == pytest.approx([0.6])
    assert rows["std"].tolist() == pytest.approx([math.sqrt(0.0205)])
    assert rows["seeds"].tolist() == [2]
    axes = figure2.draw(curves, published_table())[""].axes[0]
    heights = axes.collections[0].get_paths()[0].vertices[:, 1]
    assert heights.max() == pytest.approx(0.6 + math.sqrt(0.0205))
    assert heights.min() == pytest.approx(0.6 - math.sqrt(0.0205))


def test_one_seed_has_the_spread_over_texts_only():
    rows = figure2.table(curve([0.5], std=0.03), published_table())
    assert rows["std"].tolist() == pytest.approx([0.03])


def test_pretrained_weights_without_seed_are_drawn():
    curves = model(weights="pretrained", seeds=(None,))
    figure = figure2.draw(curves, published_table())[""]
    assert line(figure.axes[1], "Transformer").get_ydata() == pytest.approx(STEADY)
    assert notes(figure.axes[0]) == ["not measured here"]


def test_the_published_curve_is_dashed_black_and_on_top(bert):
    axes = figure2.draw(model(), bert)[""].axes[0]
    ours = line(axes, "SAN + skip")
    theirs = line(axes, "SAN + skip, published")
    assert theirs.get_linestyle() == "--"
    assert to_hex(theirs.get_color()) == "#000000"
    assert theirs.get_zorder() > ours.get_zorder()
    assert theirs.get_ydata() == pytest.approx(STEADY)
    assert theirs.get_marker() == ours.get_marker() == style.variant("san_skip").marker


def test_the_four_curves_differ_without_colour():
    axes = figure2.draw(model(), published_table())[""].axes[0]
    drawn = [line(axes, look.label) for look in style.VARIANTS.values()]
    assert len({drawn_line.get_marker() for drawn_line in drawn}) == 4


def test_a_panel_without_weights_shows_the_published_curve_and_what_measures_it(bert):
    for figure in figure2.draw(model(), bert, measure_command="make all of it").values():
        above, below = figure.axes
        assert notes(above) == []
        assert notes(below) == ["not measured here:\nmake all of it"]
        assert lines(below, "Transformer") == []
        assert line(below, "Transformer, published").get_ydata() == pytest.approx(STEADY)


def test_a_panel_without_any_curve_promises_no_command():
    figure = figure2.draw(model(checkpoint="tiny"), published_table("bert-base-cased"))[""]
    assert notes(panel(figure, "tiny", 1)) == ["not measured here"]
    assert notes(panel(figure, "BERT", 1)) == ["not measured here:\nmake paper"]


def test_without_any_measured_curve_the_published_ones_are_drawn(bert):
    figure = figure2.draw(model().iloc[:0], bert)[""]
    assert [notes(axes) for axes in figure.axes] == [["not measured here:\nmake paper"]] * 2


def test_without_any_curve_there_is_no_figure():
    with pytest.raises(RankCollapseError, match=r"figure 2: .*'wikibio'") as caught:
        figure2.draw(model(text="plain"), published_table())
    assert "\n" not in str(caught.value)


def test_the_log_page_marks_the_floor_and_fades_what_is_below(bert):
    pages = figure2.draw(model(), bert)
    axes = pages["log"].axes[0]
    assert axes.get_yscale() == "log"
    assert line(axes, "floor").get_ydata() == pytest.approx([FLOOR, FLOOR])
    above = [mean if mean >= FLOOR else math.nan for mean in COLLAPSING]
    for label in ("SAN", "SAN, published"):
        assert np.asarray(line(axes, label).get_ydata()) == pytest.approx(above, nan_ok=True)
    faded = lines(axes, "below floor")
    assert len(faded) == 4  # SAN and SAN + MLP, ours and published
    assert all(drawn.get_alpha() < 0.5 for drawn in faded)
    assert faded[0].get_ydata() == pytest.approx(COLLAPSING)
    assert any("1.9" in label and "float32" in label for label in legend_labels(pages["log"]))


def test_the_linear_page_fades_nothing(bert):
    axes = figure2.draw(model(), bert)[""].axes[0]
    assert lines(axes, "below floor") == lines(axes, "floor") == []
    assert line(axes, "SAN").get_ydata() == pytest.approx(COLLAPSING)


def test_the_band_on_the_log_page_ends_at_the_floor():
    axes = figure2.draw(curve([0.5, 1e-3], std=0.01), published_table())["log"].axes[0]
    heights = axes.collections[0].get_paths()[0].vertices[:, 1]
    assert heights.min() == pytest.approx(FLOOR)


def test_a_layer_without_value_is_a_gap():
    figure = figure2.draw(curve([0.5, math.nan, 0.3]), published_table())[""]
    drawn = np.asarray(line(figure.axes[0], "SAN").get_ydata())
    assert drawn == pytest.approx([0.5, math.nan, 0.3], nan_ok=True)


def test_each_column_ends_at_its_own_last_layer():
    curves = pd.concat([curve([0.5] * 13), curve([0.5] * 7, checkpoint="all-minilm-l6-v2")])
    figure = figure2.draw(curves, published_table())[""]
    for title, depth in (("BERT", 12), ("MiniLM", 6)):
        assert depth < panel(figure, title, 1).get_xlim()[1] < depth + 1


def test_a_ratio_above_one_stays_on_the_page():
    axes = figure2.draw(curve([1.3, 0.9], std=0.1), published_table())[""].axes[0]
    assert axes.get_ylim()[1] > 1.4


def test_only_the_published_measure_reading_text_and_precision_are_taken():
    other = [
        curve([9.0], measure="cosine"),
        curve([9.0], reading="as-described"),
        curve([9.0], text="plain"),
        curve([9.0], precision="float64"),
    ]
    rows = figure2.table(pd.concat([curve([0.5]), *other]), published_table())
    assert rows["mean"].tolist() == [0.5]
    rows = figure2.table(pd.concat(other), published_table(), text="plain")
    assert rows["mean"].tolist() == [9.0]


def test_the_table_joins_measured_and_published_in_the_order_of_the_figure(bert):
    curves = pd.concat([model(checkpoint="all-minilm-l6-v2"), model()])
    rows = figure2.table(curves, bert)
    assert list(rows.columns) == [
        "checkpoint",
        "weights",
        "variant",
        "layer",
        "mean",
        "std",
        "seeds",
        "published_mean",
        "published_std",
    ]
    assert len(rows) == 4 * 5 * 3
    assert rows["checkpoint"].iloc[0] == "bert-base-cased"
    assert rows["variant"].iloc[:20].drop_duplicates().tolist() == list(style.VARIANTS)
    assert rows["layer"].iloc[:5].tolist() == [0, 1, 2, 3, 4]
    unmeasured = rows[(rows["checkpoint"] == "bert-base-cased") & (rows["weights"] == "pretrained")]
    assert unmeasured["mean"].isna().all()
    assert (unmeasured["seeds"] == 0).all()
    assert unmeasured["published_mean"].notna().all()


def test_the_legend_is_shared_and_complete(bert):
    (figure, log) = figure2.draw(model(), bert).values()
    names = [look.label for look in style.VARIANTS.values()]
    assert legend_labels(figure) == [*names, "published", "one s.d., seeds and texts"]
    assert legend_labels(log)[:6] == legend_labels(figure)
    assert all(axes.get_legend() is None for axes in figure.axes)


def test_five_models_fit_the_width_of_a_page_and_more_get_panels_of_that_size():
    five = figure2.draw(model(), published_table(*style.MODELS))[""]
    assert five.get_size_inches()[0] == pytest.approx(style.DOUBLE_COLUMN)
    six = figure2.draw(model(checkpoint="of-a-user"), published_table(*style.MODELS))[""]
    assert six.get_size_inches()[0] == pytest.approx(style.DOUBLE_COLUMN * 6 / 5)


def test_the_same_curves_give_the_same_bytes(tmp_path, bert):
    contents = []
    for folder in ("a", "b"):
        files = output.save(figure2.draw(model(), bert), tmp_path / folder / "figure2")
        contents.append([file.read_bytes() for file in files])
    assert contents[0] == contents[1]
    names = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert names == ["figure2.pdf", "figure2.png", "figure2_log.png"]


@pytest.mark.parametrize("name", ["figure2", "readings", "texts"])
def test_the_figures_of_curves_need_no_torch(name):
    code = f"import sys, rankcollapse.figures.{name}; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_titles_stand_in_line_above_the_notes():
    curves = model(checkpoint="all-mpnet-base-v2")
    figure = figure2.draw(curves, published_table("bert-base-cased"))[""]
    figure.draw_without_rendering()
    noted, measured = figure.axes[:2]
    title = noted.title.get_window_extent()
    assert title.y0 >= noted.texts[0].get_window_extent().y1
    assert title.y0 == pytest.approx(measured.title.get_window_extent().y0, abs=1)
