import numpy as np
import pytest
from curve_fixtures import legend_labels, line
from scipy import stats
from task_fixtures import circle, trajectories

from rankcollapse.errors import RankCollapseError
from rankcollapse.figures import figure3, output, style
from rankcollapse.tasks import circle as task

WIDTHS = (32, 64, 128)


@pytest.fixture(scope="module")
def pages():
    return figure3.draw(trajectories(widths=WIDTHS), circle(widths=WIDTHS))


def test_pages_in_order(pages):
    assert list(pages) == ["", "as_described", "threshold"]
    assert {figure.get_size_inches()[0] for figure in pages.values()} == {style.DOUBLE_COLUMN}


def test_a_reading_that_was_not_measured_has_no_page():
    published = ["as-published"]
    drawn = figure3.draw(trajectories(readings=published), circle(readings=published))
    assert list(drawn) == ["", "threshold"]
    assert len(drawn["threshold"].axes) == 1


def test_rows_are_variants_and_columns_are_widths(pages):
    axes = pages[""].axes
    assert len(axes) == 9
    assert [axes[index].get_ylabel() for index in (0, 3, 6)] == ["SAN", "SAN + skip", "SAN + MLP"]
    assert [panel.get_title().splitlines()[0] for panel in axes[:3]] == [
        "width 32",
        "width 64",
        "width 128",
    ]


def test_each_panel_shows_both_trajectories(pages):
    rows = trajectories(widths=WIDTHS)
    panel = pages[""].axes[1]
    for point in (0, 1):
        chosen = (rows["reading"] == "as-published") & (rows["variant"] == "san")
        chosen &= (rows["width"] == 64) & (rows["point"] == point)
        drawn = line(panel, f"point {point + 1}")
        assert len(drawn.get_xdata()) == 300
        np.testing.assert_array_equal(drawn.get_xdata(), rows.loc[chosen, "x"])
        np.testing.assert_array_equal(drawn.get_ydata(), rows.loc[chosen, "y"])


def test_start_and_end_are_marked(pages):
    panel = pages[""].axes[0]
    starts = [drawn for drawn in panel.get_lines() if drawn.get_label() == "start"]
    ends = [drawn for drawn in panel.get_lines() if drawn.get_label() == "end"]
    assert [drawn.get_xdata()[0] for drawn in starts] == pytest.approx([0.3, -0.3])
    assert {drawn.get_markerfacecolor() for drawn in starts} == {"white"}
    assert np.abs([drawn.get_xdata()[0] for drawn in ends]).max() < 0.01
    assert [drawn.get_marker() for drawn in ends] == ["s", "D"]


def test_the_circle_is_drawn_and_round(pages):
    for panel in pages[""].axes:
        (round_one,) = panel.patches
        assert round_one.get_radius() == 0.3
        assert panel.get_aspect() == 1
        assert panel.get_xlim() == panel.get_ylim()
        assert panel.get_xlim()[1] > 0.3


def test_a_panel_that_leaves_the_circle_is_not_cut():
    rows = trajectories()
    far = rows["variant"] == "san_skip"
    rows.loc[far, ["x", "y"]] *= 100
    panels = figure3.draw(rows, circle())[""].axes
    assert panels[3].get_xlim()[1] > 30
    assert panels[0].get_xlim()[1] < 1


def test_the_share_that_collapses_stands_above(pages):
    low, high = stats.binomtest(9, 12).proportion_ci(method="wilson")
    lines = pages[""].axes[0].get_title().splitlines()
    assert lines[1] == f"collapsed: 9 of 12, {100 * low:.0f} to {100 * high:.0f} %"
    assert pages[""].axes[3].get_title().startswith("collapsed: 0 of 12, 0 to 24 %")


def test_it_is_said_where_the_step_was_never_learned():
    runs = circle()
    runs.loc[runs["variant"] == "san_skip", "one_step_error"] = figure3.STEP / 4
    axes = figure3.draw(trajectories(), runs)[""].axes
    assert axes[0].get_title().splitlines()[2].startswith("learned: 0 of 12 (error 6.9")
    assert axes[3].get_title().splitlines()[1].startswith("learned: 12 of 12 (error 0.2")


def test_the_step_to_be_learned_is_that_between_neighbouring_points():
    angle = 2 * np.pi / 1000
    moved = np.hypot(0.3 * np.cos(angle) - 0.3, 0.3 * np.sin(angle))
    assert pytest.approx(moved) == figure3.STEP


def test_the_definitions_are_those_of_the_task():
    # Stated twice, so that a figure needs no torch.
    theirs = (task.RADIUS, task.STEP, task.COLLAPSED)
    assert theirs == (figure3.RADIUS, figure3.STEP, figure3.THRESHOLD)


def test_a_width_without_a_run_says_so():
    figure = figure3.draw(trajectories(widths=(32,)), circle(widths=(32,)))[""]
    assert figure.axes[2].get_title().splitlines() == ["width 128", "not measured here"]
    assert not figure.axes[2].get_lines()


def test_threshold_curves_count_the_runs_below(pages):
    published, described = pages["threshold"].axes
    assert [published.get_title(), described.get_title()] == ["as published", "as described"]
    assert published.get_xscale() == "log"
    drawn = line(published, "SAN")
    assert (drawn.get_xdata()[0], drawn.get_xdata()[-1]) == pytest.approx((1e-3, 1))
    shares = np.asarray(drawn.get_ydata())
    assert (np.diff(shares) >= 0).all()
    at_threshold = shares[np.searchsorted(drawn.get_xdata(), figure3.THRESHOLD)]
    assert at_threshold == pytest.approx(0.75)
    assert (shares[0], shares[-1]) == (0, 1)
    skip = np.asarray(line(published, "SAN + skip").get_ydata())
    assert skip[np.searchsorted(drawn.get_xdata(), 0.099)] == 0
    assert len(published.collections) == 3


def test_threshold_in_use_is_marked(pages):
    axes = pages["threshold"].axes[0]
    assert line(axes, "threshold used: 0.05").get_xdata()[0] == 0.05
    labels = legend_labels(pages["threshold"])
    assert labels[:3] == ["SAN", "SAN + skip", "SAN + MLP"]
    assert labels[-1] == "95 % interval (Wilson)"


def test_the_legend_names_the_seed_and_the_steps(pages):
    assert legend_labels(pages[""]) == [
        "point 1 (seed 3)",
        "point 2 (seed 3)",
        "start",
        "end, after 299 steps",
    ]


def test_table_counts_runs_by_hand():
    rows = figure3.table(trajectories(), circle())
    assert len(rows) == 2 * 3 * 2
    first = rows.iloc[0].to_dict()
    low, high = stats.binomtest(9, 12).proportion_ci(method="wilson")
    assert (first["reading"], first["variant"], first["width"]) == ("as-published", "san", 32)
    assert (first["runs"], first["collapsed"], first["learned"]) == (12, 9, 0)
    assert (first["low"], first["high"]) == pytest.approx((low, high))
    assert first["median_distance"] == pytest.approx(0.013)
    assert first["median_error"] == pytest.approx(0.013 / figure3.STEP)
    assert rows["variant"].unique().tolist() == ["san", "san_skip", "san_mlp"]


def test_nothing_measured_is_one_line():
    for paths, runs in ((trajectories()[:0], circle()), (trajectories(), circle()[:0])):
        with pytest.raises(RankCollapseError, match="no run of the circle") as caught:
            figure3.draw(paths, runs)
        assert "\n" not in str(caught.value)


def test_it_can_be_written(tmp_path, pages):
    files = output.save(pages, tmp_path / "figure3")
    assert [file.name for file in files] == [
        "figure3.pdf",
        "figure3.png",
        "figure3_as_described.png",
        "figure3_threshold.png",
    ]
