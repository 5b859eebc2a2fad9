import numpy as np
import pandas as pd
import pytest
from curve_fixtures import legend_labels, line, lines, notes
from matplotlib.colors import to_rgb
from task_fixtures import PATHS, RATIOS, scores
from task_fixtures import line as score_line

from rankcollapse.errors import RankCollapseError
from rankcollapse.figures import figure4, output, style
from rankcollapse.precision import precision_floor
from rankcollapse.task_tables import ACCURACY_COLUMNS, accuracy

WITHOUT_PURE = [control for control in PATHS if control != "pure"]


@pytest.fixture(scope="module")
def measured():
    return accuracy(
        [
            scores(seeds=range(4)),
            scores(reading="as-described", epochs=650, seeds=(0, 1)),
            scores(task="convex_hull", controls=WITHOUT_PURE, seeds=(0,)),
        ]
    )


@pytest.fixture(scope="module")
def pages(measured):
    return figure4.draw(measured)


def mean_of(rows, control, paths, column="accuracy_mean", task="sorting"):
    chosen = (rows["control"] == control) & (rows["paths"] == paths) & (rows["task"] == task)
    chosen &= (rows["reading"] == "as-published") & rows["length"].notna()
    return rows.loc[chosen, column].tolist()


def test_pages_in_order(pages):
    assert list(pages) == ["", "controls", "as_described", "controls_as_described"]
    for figure in pages.values():
        assert figure.get_size_inches()[0] == style.DOUBLE_COLUMN


def test_a_reading_alone_is_the_first_page():
    rows = accuracy([scores(reading="as-described", epochs=650)])
    assert list(figure4.draw(rows)) == ["", "controls"]


def test_panels_are_those_of_the_paper(pages):
    titles = [axes.get_title() for axes in pages[""].axes]
    assert titles == [
        "Memorisation",
        "Sorting (65 epochs, 4 seeds)",
        "Convex hull (70 epochs, 1 seed)",
    ]
    assert pages["as_described"].axes[1].get_title() == "Sorting (650 epochs, 2 seeds)"
    assert {axes.get_xlabel() for axes in pages[""].axes} == {"path length"}


def test_lines_are_the_measured_means(pages, measured):
    axes = pages[""].axes[1]
    for paths, look in figure4.SIZES.items():
        drawn = line(axes, look.label)
        assert list(drawn.get_xdata()) == list(range(7))
        assert list(drawn.get_ydata()) == mean_of(measured, "published", paths)


def test_levels_are_measured(pages):
    axes = pages[""].axes[1]
    assert line(axes, "entire network").get_ydata()[0] == pytest.approx(0.57 + 0.015)
    assert line(axes, "trivial predictor").get_ydata()[0] == pytest.approx(0.346)
    low, high = axes.get_ylim()
    assert low == 0
    assert high > 1


def test_band_over_seeds_or_bars_over_draws(pages, measured):
    _, sorting, hull = pages[""].axes
    bands = [c for c in sorting.collections if c.get_paths()[0].vertices.shape[0] > 7]
    assert len(bands) == 3
    heights = bands[1].get_paths()[0].vertices[:, 1]
    mean = np.array(mean_of(measured, "published", "20"))
    std = np.array(mean_of(measured, "published", "20", "std_seeds"))
    assert heights.max() == pytest.approx((mean + std).max())
    assert heights.min() == pytest.approx((mean - std).min())
    assert len(hull.containers) == 2  # 5 and 20 paths; of all single paths there is no draw
    (bars,) = hull.containers[1].lines[2]
    lengths = [top[1] - bottom[1] for bottom, top in bars.get_segments()]
    assert lengths == pytest.approx([0.04] * 7)


def test_legend_says_what_a_spread_is(pages):
    labels = legend_labels(pages[""])
    assert labels[:5] == [
        "5 paths",
        "20 paths",
        "single paths, mean of all",
        "entire network",
        "trivial predictor",
    ]
    assert labels[5:] == ["one s.d., training seeds", "one s.d., draws of paths (one seed)"]
    assert "one s.d., draws of paths (one seed)" not in legend_labels(pages["as_described"])


def test_all_controls_are_in_one_panel(pages, measured):
    axes = pages["controls"].axes[1]
    for control, look in figure4.CONTROLS.items():
        paths = "only" if control == "frozen" else "20"
        assert list(line(axes, look.label).get_ydata()) == mean_of(measured, control, paths)
    looks = {
        (to_rgb(look.color), look.linestyle, look.marker) for look in figure4.CONTROLS.values()
    }
    assert len(looks) == len(figure4.CONTROLS)
    assert len({look.marker for look in figure4.CONTROLS.values()}) == len(figure4.CONTROLS)


def test_curves_stay_apart_in_grey():
    luminance = sorted(
        np.dot(to_rgb(look.color), (0.2126, 0.7152, 0.0722)) for look in figure4.SIZES.values()
    )
    assert min(np.diff(luminance)) > 0.05


def test_the_residual_ratio_stands_below(pages):
    axes = pages["controls"].axes[4]
    assert axes.get_yscale() == "log"
    kept = line(axes, "residual kept").get_ydata()
    assert list(kept) == pytest.approx(RATIOS["residual_kept"])
    assert "column mean" in pages["controls"].axes[3].get_ylabel()
    assert line(axes, "entire network").get_ydata()[0] == pytest.approx(0.7)


def test_what_is_below_the_floor_is_faded(pages):
    axes = pages["controls"].axes[4]
    solid = np.asarray(line(axes, "trained without residual").get_ydata(), dtype=float)
    floor = precision_floor("float32")
    assert np.isnan(solid).tolist() == [ratio < floor for ratio in RATIOS["pure"]]
    assert len(lines(axes, "below floor")) == 1
    assert any("round-off" in label for label in legend_labels(pages["controls"]))


def test_the_floor_is_left_out_where_nothing_is_near_it():
    page = figure4.draw(accuracy([scores(controls=WITHOUT_PURE)]))["controls"]
    assert not any("round-off" in label for label in legend_labels(page))
    assert page.axes[4].get_ylim()[0] > precision_floor("float32")


def test_a_ratio_of_zero_is_drawn_at_the_edge():
    rows = accuracy([scores()])
    pure = (rows["control"] == "pure") & (rows["length"] == 6)
    rows.loc[pure, "residual_ratio"] = 0.0
    axes = figure4.draw(rows)["controls"].axes[4]
    faded = line(axes, "below floor").get_ydata()
    assert list(faded)[-1] == pytest.approx(axes.get_ylim()[0])


def test_a_panel_says_what_was_not_measured(pages):
    memorisation, sorting, hull = pages["controls"].axes[:3]
    assert notes(memorisation) == ["not measured here: make full"]
    assert notes(sorting) == []
    assert notes(hull) == ["not measured here: no residual"]
    assert [notes(axes) for axes in pages[""].axes] == [["not measured here: make full"], [], []]


def test_a_control_with_other_epochs_is_named():
    rows = accuracy(
        [scores(controls=WITHOUT_PURE), scores(controls=["pure"], epochs=200).iloc[2::]]
    )
    page = figure4.draw(rows)["controls"]
    assert notes(page.axes[1]) == ["no residual: 200 epochs"]
    assert line(page.axes[1], "trained without residual").get_xdata().size == 7


def test_networks_with_the_fewest_epochs_are_shown():
    rows = accuracy([scores(), scores(epochs=650, seeds=(0,))])
    table = figure4.table(rows)
    assert set(table["epochs"]) == {65}
    assert figure4.draw(rows)[""].axes[1].get_title() == "Sorting (65 epochs, 3 seeds)"


def test_table_holds_what_is_drawn_and_nothing_else(measured):
    other = measured[measured["control"] == "frozen"].assign(
        control="frozen_cumulative", paths="up_to"
    )
    shuffled = measured[measured["control"] == "reread"].assign(paths="shuffled")
    rows = figure4.table(pd.concat([measured, other, shuffled]))
    assert list(rows.columns) == ACCURACY_COLUMNS
    assert "frozen_cumulative" not in set(rows["control"])
    assert "shuffled" not in set(rows["paths"])
    # The accuracy of the whole network that was trained in another way is no curve.
    special = rows[rows["control"].isin(["pure", "layer_drop"])]
    assert special["length"].notna().all()
    assert set(special["paths"]) == {"20"}


def test_nothing_measured_is_one_line():
    nothing = accuracy([scores()])[:0]
    assert figure4.table(nothing).empty
    with pytest.raises(RankCollapseError, match="no accuracy was measured") as caught:
        figure4.draw(nothing)
    assert "\n" not in str(caught.value)


def test_an_entire_network_alone_can_be_drawn():
    rows = accuracy([score_line(0.5, control="entire", ratio=float("nan"))])
    assert list(figure4.draw(rows)) == ["", "controls"]


def test_it_can_be_written(tmp_path, pages):
    files = output.save(pages, tmp_path / "figure4")
    assert [file.name for file in files] == [
        "figure4.pdf",
        "figure4.png",
        "figure4_controls.png",
        "figure4_as_described.png",
        "figure4_controls_as_described.png",
    ]
