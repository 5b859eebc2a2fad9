import numpy as np
import pandas as pd
import pytest
from curve_fixtures import legend_labels, line
from scipy import stats
from task_fixtures import LENGTH_COLUMNS, NETWORKS, lengths

from rankcollapse.errors import RankCollapseError
from rankcollapse.figures import output, width_depth
from rankcollapse.paths import path_length_proportions


@pytest.fixture(scope="module")
def figure():
    return width_depth.draw(lengths())


def two_layers(used, *, seed=0, depth=2):
    """Return a network of one head whose paths have these shares; the binomial mean is depth/2."""
    binomial = path_length_proportions(1, depth)
    rows = [
        ("sorting", 1, depth, 10, 1000, seed, 0.5, length, share, binomial[length])
        for length, share in enumerate(used)
    ]
    return pd.DataFrame(rows, columns=LENGTH_COLUMNS)


def test_a_panel_for_each_network_the_shallowest_first(figure):
    titles = [axes.get_title().splitlines() for axes in figure.axes]
    assert [title[0] for title in titles] == [
        "2 heads, 2 layers, width 84",
        "2 heads, 6 layers, width 48",
        "4 heads, 6 layers, width 48",
        "2 heads, 12 layers, width 34",
    ]
    assert titles[0][1:] == ["87,000 parameters", "accuracy 0.58 $\\pm$ 0.01 (3 seeds)"]
    assert len(figure.axes) == len(NETWORKS)


def test_lines_are_the_mean_over_seeds_and_the_binomial_share(figure):
    rows = lengths()
    rows = rows[(rows["depth"] == 6) & (rows["heads"] == 4)]
    axes = figure.axes[2]
    used = line(axes, "used by the trained network")
    assert list(used.get_xdata()) == list(range(7))
    expected = rows.groupby("length")["share_used"].mean()
    np.testing.assert_allclose(used.get_ydata(), expected)
    binomial = line(axes, "share of all paths")
    np.testing.assert_allclose(binomial.get_ydata(), path_length_proportions(4, 6))
    assert binomial.get_linestyle() == "--"
    assert used.get_linestyle() == "-"


def test_the_band_is_one_standard_deviation_over_seeds(figure):
    rows = lengths()
    grouped = rows[rows["depth"] == 2].groupby("length")["share_used"]
    heights = figure.axes[0].collections[0].get_paths()[0].vertices[:, 1]
    assert heights.max() == pytest.approx((grouped.mean() + grouped.std()).max())
    assert "one s.d., training seeds" in legend_labels(figure)


def test_no_share_is_cut_off():
    steep = two_layers([0.05, 0.05, 0.9])
    flat = two_layers([0.3, 0.3, 0.2, 0.2], depth=3)
    axes = width_depth.draw(pd.concat([steep, flat])).axes
    assert all(panel.get_ylim()[0] == 0 for panel in axes)
    assert all(panel.get_ylim()[1] > 0.9 for panel in axes)


def test_one_seed_has_no_band_in_the_legend():
    figure = width_depth.draw(lengths(seeds=(0,)))
    assert legend_labels(figure) == ["used by the trained network", "share of all paths"]
    assert figure.axes[0].get_title().endswith("accuracy 0.57 (1 seed)")


def test_mean_length_by_hand():
    # 0 * 0.25 + 1 * 0.5 + 2 * 0.25 = 1 for all paths; 0.5 * 1 = 0.5 for those used.
    relative = width_depth.mean_lengths(two_layers([0.5, 0.5, 0.0]))
    assert relative.tolist() == pytest.approx([0.5])


def test_mean_length_does_not_need_shares_that_sum_to_one():
    relative = width_depth.mean_lengths(two_layers([1.0, 1.0, 0.0]))
    assert relative.tolist() == pytest.approx([0.5])


def test_a_network_that_uses_all_paths_alike_has_one():
    for _, rows in lengths().groupby(["depth", "heads"]):
        equal = rows.assign(share_used=rows["share_binomial"])
        assert width_depth.mean_lengths(equal).to_numpy() == pytest.approx(1)


def test_the_conclusion_pairs_the_seeds():
    shallow = [two_layers([1 - m, m, 0.0], seed=seed) for seed, m in enumerate((0.8, 0.6, 0.7))]
    # The mean of all paths is 2 at depth 4.
    deep = [
        two_layers([1 - m, m, 0.0, 0.0, 0.0], seed=seed, depth=4)
        for seed, m in enumerate((0.84, 0.40, 0.62))
    ]
    sentence = width_depth.conclusion(pd.concat([*shallow, *deep]))
    differences = [0.42 - 0.8, 0.20 - 0.6, 0.31 - 0.7]
    low, high = stats.ttest_1samp(differences, 0).confidence_interval(0.95)
    assert "from 2 to 4 layers" in sentence
    assert "from 0.70 to 0.31" in sentence
    assert f"−0.39, 95 % interval −{-low:.2f} to −{-high:.2f} over 3 training seeds" in sentence
    assert sentence.endswith("deeper networks use relatively shorter paths.")
    assert sentence.count(".") == sentence.count("0.") + 1


def test_an_interval_that_holds_zero_shows_no_change():
    shallow = [two_layers([1 - m, m, 0.0], seed=seed) for seed, m in enumerate((0.8, 0.6))]
    deep = [
        two_layers([1 - m, m, 0.0, 0.0], seed=seed, depth=3) for seed, m in enumerate((0.9, 1.0))
    ]
    assert width_depth.conclusion(pd.concat([*shallow, *deep])).endswith("no change is shown.")


def test_longer_paths_are_said_to_be_longer():
    shallow = [two_layers([0.5, 0.5, 0.0], seed=seed) for seed in (0, 1)]
    deep = [two_layers([0, 0, 0, 1.0], seed=seed, depth=3) for seed in (0, 1)]
    assert "relatively longer paths" in width_depth.conclusion(pd.concat([*shallow, *deep]))


def test_one_seed_claims_no_interval():
    sentence = width_depth.conclusion(lengths(seeds=(0,)))
    assert "1 training seed: no interval" in sentence
    assert "95 %" not in sentence


def test_one_network_cannot_be_compared():
    sentence = width_depth.conclusion(lengths(networks={(2, 6, 48): 0.7}))
    assert "cannot be compared" in sentence


def test_table_by_hand():
    frames = [two_layers([0.5, 0.5, 0.0], seed=0), two_layers([0.3, 0.5, 0.2], seed=1)]
    row = width_depth.table(pd.concat(frames)).iloc[0].to_dict()
    assert (row["heads"], row["depth"], row["width"], row["length"]) == (1, 2, 10, 0)
    assert row["seeds"] == 2
    assert row["share_used_mean"] == pytest.approx(0.4)
    assert row["share_used_std"] == pytest.approx(np.sqrt(0.02))
    assert row["share_binomial"] == pytest.approx(0.25)
    assert (row["accuracy_mean"], row["accuracy_std"]) == (0.5, 0)


def test_nothing_measured_is_one_line():
    with pytest.raises(RankCollapseError, match="no network was measured") as caught:
        width_depth.draw(lengths()[:0])
    assert "\n" not in str(caught.value)


def test_it_can_be_written(tmp_path, figure):
    files = output.save({"": figure}, tmp_path / "width_depth")
    assert [file.name for file in files] == ["width_depth.pdf", "width_depth.png"]
