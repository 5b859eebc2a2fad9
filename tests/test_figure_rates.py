import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from curve_fixtures import legend_labels

from rankcollapse.errors import RankCollapseError
from rankcollapse.figures import output
from rankcollapse.figures import rates as figure_rates
from rankcollapse.precision import precision_floor
from rankcollapse.rates import ORDER_COLUMNS, RATE_COLUMNS
from rankcollapse.relative_tables import (
    ASYMPTOTE_COLUMNS,
    CONTRACTION_COLUMNS,
    RELATIVE_COLUMNS,
)

FACTORS = {1.0: 0.5, 0.5: 0.25, 0.25: 0.1}
NAN = np.nan


def rate_rows(checkpoint, weights, values, *, variant="san", reading="as-published"):
    curve = (checkpoint, weights, variant, reading, "wikibio", "float64")
    return [
        (*curve, layer, value, 1, 2, value - 0.1, value + 0.1, 0.5, "cubic")
        for layer, value in enumerate(values, start=1)
    ]


def all_rates():
    rows = rate_rows("all-minilm-l6-v2", "pretrained", [NAN, 3.4, 3.1])
    rows += rate_rows("all-mpnet-base-v2", "pretrained", [1.5, 1.2, 1.1])
    rows += rate_rows("all-mpnet-base-v2", "pretrained", [7.3, 1.0, 1.0], variant="san_skip")
    rows += rate_rows("all-mpnet-base-v2", "pretrained", [2.0] * 3, reading="as-described")
    rows += rate_rows("bert-base-cased", "init", [NAN] * 3)
    return pd.DataFrame(rows, columns=RATE_COLUMNS)


def all_orders():
    curve = ("all-minilm-l6-v2", "pretrained", "san", "as-published", "wikibio", "float64")
    return pd.DataFrame(
        [(*curve, 2, 3, 2.97, 1, 2, 2.91, 3.03, 0.1, "cubic")], columns=ORDER_COLUMNS
    )


def all_relative():
    rows = []
    for checkpoint, weights, seed in (
        ("all-mpnet-base-v2", "pretrained", None),
        ("xlnet-base-cased", "init", 0),
        ("xlnet-base-cased", "init", 1),
    ):
        for scale in (1.0, 0.5, 0.25, 0.0):
            for sequence in (0, 1):
                ratio = 0.01 * (1 + sequence)
                for layer in range(6):
                    rate = NAN if layer == 0 or ratio < 1e-15 else 1.2 + sequence
                    rows.append((checkpoint, weights, seed, scale, layer, sequence, ratio, rate))
                    ratio = ratio * FACTORS[scale] if scale else max(ratio**3, 1e-16)
    return pd.DataFrame(rows, columns=RELATIVE_COLUMNS)


def all_contraction():
    rows = [
        (checkpoint, weights, seed, scale, layer, head, 0.9 * scale, 0.5 * scale, 1.0 + head)
        for checkpoint, weights, seed in (
            ("all-mpnet-base-v2", "pretrained", None),
            ("xlnet-base-cased", "init", 0),
        )
        for scale in (1.0, 0.5, 0.25, 0.0)
        for layer in range(1, 6)
        for head in (0, 1)
    ]
    return pd.DataFrame(rows, columns=CONTRACTION_COLUMNS)


def all_asymptote():
    rows = []
    for heads in (1, 2):
        for layer, log in enumerate([-0.1, -1.0, -4.0, -13.0, -40.0, -121.0, -364.0]):
            rows.append((heads, 0.0, 0, layer, log, 3.0, 0.1, NAN, NAN, NAN))
        for layer in range(61):
            rows.append((heads, 1.0, 0, layer, -0.3 * layer, 1.1, 0.5, NAN, 0.6, 0.5))
    return pd.DataFrame(rows, columns=ASYMPTOTE_COLUMNS)


def draw(**replaced):
    tables = {
        "rates": all_rates(),
        "orders": all_orders(),
        "relative": all_relative(),
        "contraction": all_contraction(),
        "asymptote": all_asymptote(),
        **replaced,
    }
    return figure_rates.draw(*tables.values())


@pytest.fixture(scope="module")
def pages():
    return draw()


def lines(axes, label):
    return [line for line in axes.get_lines() if line.get_label() == label]


def test_a_panel_for_each_model_that_has_a_rate(pages):
    titles = [axes.get_title() for axes in pages[""].axes]
    assert titles == ["MPNet, pretrained", "MiniLM, pretrained"]


def test_lines_are_the_rates_as_published_and_bands_their_intervals(pages):
    mpnet, minilm = pages[""].axes
    (san,) = lines(mpnet, "SAN")
    np.testing.assert_array_equal(san.get_ydata(), [1.5, 1.2, 1.1])
    (san,) = lines(minilm, "SAN")
    np.testing.assert_array_equal(san.get_ydata(), [NAN, 3.4, 3.1])
    (band,) = minilm.collections
    heights = band.get_paths()[0].vertices[:, 1]
    assert (heights.min(), heights.max()) == pytest.approx((3.0, 3.5))
    assert not lines(minilm, "SAN + skip")
    assert legend_labels(pages[""]) == ["SAN", "SAN + skip", "95 % interval, texts and seeds"]


def test_no_rate_is_cut_off_and_three_and_one_are_marked(pages):
    for axes in pages[""].axes:
        assert axes.get_ylim() == (0, 8)
        assert [lines(axes, name)[0].get_ydata()[0] for name in ("cubic", "exponential")] == [3, 1]


def test_the_order_of_the_san_is_written_where_it_is_known(pages):
    mpnet, minilm = ([text.get_text() for text in axes.texts] for axes in pages[""].axes)
    assert "float64\norder of the SAN: 2.97 (2.91 to 3.03)" in minilm
    assert "float64" in mpnet


def test_the_table_is_what_is_drawn():
    rows = figure_rates.table(all_rates(), all_orders(), text="wikibio")
    assert list(rows.columns) == RATE_COLUMNS
    assert set(rows["reading"]) == {"as-published"}
    assert "bert-base-cased" not in set(rows["checkpoint"])
    assert len(rows) == 9


def test_the_second_page_shows_each_model_at_each_scale(pages):
    axes = pages["relative"].axes
    titles = [panel.get_title() for panel in axes[:3]]
    assert titles[:2] == ["MPNet, pretrained", "XLNet, at initialisation"]
    for panel in axes[:2]:
        for scale, look in figure_rates.SCALES.items():
            (curve,) = lines(panel, look.label)
            assert curve.get_ydata()[0] == pytest.approx(np.sqrt(0.01 * 0.02))
            if scale:
                factors = curve.get_ydata()[1:] / curve.get_ydata()[:-1]
                assert factors == pytest.approx(FACTORS[scale])
        assert panel.get_yscale() == "log"
        assert lines(panel, "floor")[0].get_ydata()[0] == precision_floor("float64")


def test_below_the_floor_a_curve_is_faded(pages):
    panel = pages["relative"].axes[0]
    (faded,) = lines(panel, "below floor")
    (curve,) = lines(panel, "none")
    assert np.isnan(curve.get_ydata()[-1])
    assert faded.get_ydata()[-1] < precision_floor("float64")
    assert faded.get_alpha() < 0.5


def test_predictions_start_at_the_curve_and_have_the_factor_of_the_term(pages):
    panel = pages["relative"].axes[0]
    for name, factor in (("second eigenvalue", 0.5), ("Dobrushin coefficient", 0.9)):
        found = lines(panel, f"predicted: {name}")
        assert len(found) == 3
        for line, scale in zip(found, (1.0, 0.5, 0.25), strict=True):
            values = line.get_ydata()
            assert values[0] == pytest.approx(np.sqrt(0.01 * 0.02))
            assert values[1:] / values[:-1] == pytest.approx(factor * scale)


def test_a_curve_that_has_not_collapsed_has_no_prediction():
    high = all_relative()
    high["ratio"] = high["ratio"] + 0.06
    panel = draw(relative=high)["relative"].axes[0]
    assert not [line for line in panel.get_lines() if "predicted" in line.get_label()]


def test_the_mean_rate_needs_all_sequences(pages):
    rows = all_relative()
    one = rows[(rows["checkpoint"] == "xlnet-base-cased") & (rows["scale"] == 1.0)]
    missing = (one["layer"] == 2) & (one["sequence"] == 1) & (one["seed"] == 1)
    found = figure_rates.summary(one.assign(rate=one["rate"].mask(missing)))
    assert found["rate"].tolist() == pytest.approx([NAN, 1.7, NAN, 1.7, 1.7, 1.7], nan_ok=True)
    assert found["ratio_low"][0] == pytest.approx(0.01)
    assert found["ratio_high"][0] == pytest.approx(0.02)


def test_the_small_network_is_drawn_below_every_floor(pages):
    above, below = pages["relative"].axes[2], pages["relative"].axes[5]
    pure = lines(above, "none")
    assert [line.get_markerfacecolor() for line in pure] == [pure[0].get_color(), "white"]
    assert min(pure[0].get_ydata()) == pytest.approx(1e-121)
    assert min(pure[0].get_ydata()) > above.get_ylim()[0]
    assert set(lines(below, "none")[0].get_ydata()) == {3.0}
    assert len(lines(above, "predicted: second eigenvalue")) == 2


def test_nothing_measured_is_one_line():
    with pytest.raises(RankCollapseError, match="none was measured on text 'wikibio'") as caught:
        draw(rates=all_rates()[:0])
    assert "\n" not in str(caught.value)


def test_it_can_be_written_twice_with_the_same_bytes(tmp_path, pages):
    files = output.save(pages, tmp_path / "rates")
    assert [file.name for file in files] == ["rates.pdf", "rates.png", "rates_relative.png"]
    _, again = output.save({"": draw()["relative"]}, tmp_path / "again")
    assert files[2].read_bytes() == again.read_bytes()


def test_drawing_needs_no_torch():
    code = "import sys, rankcollapse.figures.rates; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
