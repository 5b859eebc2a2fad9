import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from component_fixtures import study
from curve_fixtures import legend_labels

from rankcollapse import component_claims, components
from rankcollapse.errors import RankCollapseError
from rankcollapse.figures import components as figure
from rankcollapse.figures import output, style
from rankcollapse.precision import precision_floor


@pytest.fixture(scope="module")
def claims():
    return component_claims.claims(study())


@pytest.fixture(scope="module")
def pages(claims):
    return figure.draw(study(), claims)


def panel(page, factor):
    titles = [axes.get_legend().get_title().get_text() for axes in page.axes]
    return page.axes[titles.index(figure.TITLES[factor])]


def curves(axes):
    """Return the lines of levels, by what the legend calls them."""
    return {line.get_label(): line for line in axes.lines if line.get_label() != "floor"}


def test_a_page_for_each_network_and_one_of_effects(pages):
    assert list(pages) == ["", "post_norm", "skip", "pre_norm", "effects"]


@pytest.mark.parametrize(("page", "condition"), figure.PAGES.items())
def test_a_panel_for_each_piece_and_a_line_for_each_level(pages, page, condition):
    factors = components.CHANGED[condition]
    assert len(pages[page].axes) == len(factors)
    for factor in factors:
        axes = panel(pages[page], factor)
        shown = [text.get_text() for text in axes.get_legend().get_texts()]
        assert list(curves(axes)) == shown
        assert len(shown) == len(components.FACTORS[factor])


def test_lines_are_medians_over_the_seeds(pages):
    frame = study()
    rows = frame[(frame["condition"] == "baseline") & (frame["level"] == "skip=1")]
    expected = rows.groupby("layer")["ratio"].median()
    line = curves(panel(pages[""], "skip"))["1"]
    np.testing.assert_allclose(line.get_ydata(), expected)
    assert list(line.get_xdata()) == list(range(13))


def test_the_network_that_is_changed_looks_the_same_in_every_panel(pages):
    looks = {
        (line.get_color(), line.get_linestyle(), line.get_marker())
        for factor in ("skip", "norm", "query_key", "tokens")
        for label, line in curves(panel(pages[""], factor)).items()
        if label in ("0", "none", "24") or (factor, label) == ("query_key", "1")
    }
    assert len(looks) == 1


def test_levels_of_a_panel_differ_in_more_than_colour(pages):
    for axes in pages[""].axes:
        lines = curves(axes).values()
        assert len({line.get_marker() for line in lines}) == len(lines)
        assert len({line.get_color() for line in lines}) == len(lines)


def test_a_ratio_of_zero_leaves_the_axis_below(pages):
    line = curves(panel(pages[""], "skip"))["0"]
    assert min(line.get_ydata()) > 0
    assert min(line.get_ydata()) < panel(pages[""], "skip").get_ylim()[0]


def test_the_round_off_of_a_plain_pass_is_shown(pages):
    floors = [line for line in panel(pages[""], "mlp").lines if line.get_label() == "floor"]
    assert [line.get_ydata()[0] for line in floors] == [precision_floor("float64")]
    assert "below the round-off of a plain float64 pass" in legend_labels(pages[""])
    # Where nothing falls so far the axis ends above it.
    assert pages["skip"].axes[0].get_ylim()[0] > 1e-15
    assert legend_labels(pages["skip"]) == ["10 % to 90 % of the seeds, line: median"]


def test_every_effect_is_drawn_with_its_interval(pages, claims):
    axes = pages["effects"].axes
    assert [one.get_xlabel().replace("\n", " ") for one in axes] == [
        "contraction, decades a layer",
        "rate",
        "change of rate",
        "change of layer where ratio passes 0.001",
        "change of layer where ratio passes 0.001, mean over the factorial",
    ]
    assert sum(len(one.get_yticks()) for one in axes) == len(claims)
    what = claims["condition"].str.split(": ").str[1]
    rows = claims[what == "rate"]
    drawn = [line for line in axes[1].lines if line.get_label() != "limit"]
    ends = [tuple(line.get_xdata()) for line in drawn[::2]]
    np.testing.assert_allclose(ends, rows[["low", "high"]])
    np.testing.assert_allclose([line.get_xdata()[0] for line in drawn[1::2]], rows["effect"])


def test_what_an_effect_belongs_to(pages):
    labels = [text.get_text() for text in pages["effects"].axes[0].get_yticklabels()]
    assert labels[0] == "skip 0.1"
    assert "skip 1 (post-norm)" in labels
    assert "layers: 48 (pre-norm with skip)" in labels
    assert "LayerNorm after" in labels
    assert len(set(labels)) == len(labels)


def test_claims_on_whole_models_are_not_among_the_effects(claims, pages):
    other = pd.DataFrame([["a claim", "here", "MPNet, pretrained", 1.0, 0.5, 1.5, "supported"]])
    both = pd.concat([claims, other.set_axis(claims.columns, axis=1)], ignore_index=True)
    drawn = figure.draw(study(), both)["effects"]
    assert len(drawn.axes) == len(pages["effects"].axes)
    for axes, expected in zip(drawn.axes, pages["effects"].axes, strict=True):
        assert len(axes.get_yticks()) == len(expected.get_yticks())


def test_verdicts_look_different(pages):
    labels = legend_labels(pages["effects"])
    assert set(labels) <= {"supported", "not supported", "opposite"}
    opposite = [line for line in pages["effects"].axes[0].lines if line.get_marker() == "s"]
    assert {line.get_color() for line in opposite} == {style.ACCENT}


def test_the_table_by_hand(claims):
    found = figure.table(study(), claims)
    assert list(found.columns) == figure.COLUMNS
    assert components.FACTORIAL not in set(found["condition"])
    row = found[(found["condition"] == "baseline") & (found["level"] == "skip=0")].iloc[1]
    ratios = [0.3**3, 0.31**3]
    assert row["median"] == pytest.approx(np.mean(ratios))
    assert row["low"] == pytest.approx(0.9 * ratios[0] + 0.1 * ratios[1])
    assert row["high"] == pytest.approx(0.1 * ratios[0] + 0.9 * ratios[1])
    assert row["seeds"] == 2


def test_one_seed_has_effects_without_intervals():
    frame = study()
    frame = frame[frame["seed"] == 0]
    pages = figure.draw(frame, component_claims.claims(frame))
    assert legend_labels(pages["effects"]) == ["one seed"]


def test_only_what_was_measured_is_drawn():
    frame = study()
    frame = frame[frame["condition"] == "post-norm"]
    pages = figure.draw(frame, component_claims.claims(frame))
    assert list(pages) == ["post_norm", "effects"]


def test_nothing_measured_is_one_line(claims):
    with pytest.raises(RankCollapseError, match="no network was measured") as caught:
        figure.draw(study()[:0], claims)
    assert "\n" not in str(caught.value)


def test_it_can_be_written_and_is_the_same_twice(tmp_path, pages, claims):
    kept = {"": pages["skip"], "effects": pages["effects"]}
    names = [file.name for file in output.save(kept, tmp_path / "components")]
    assert names == ["components.pdf", "components.png", "components_effects.png"]
    output.save({"": figure.draw(study(), claims)["skip"]}, tmp_path / "again")
    assert (tmp_path / "again.png").read_bytes() == (tmp_path / "components.png").read_bytes()


def test_it_needs_no_torch():
    code = "import sys, rankcollapse.figures.components; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
