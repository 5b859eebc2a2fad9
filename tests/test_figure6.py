import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from curve_fixtures import legend_labels, lines
from matplotlib.colors import to_rgb

from rankcollapse.chained_tables import CHAINED_COLUMNS, read_published, summarise
from rankcollapse.errors import RankCollapseError
from rankcollapse.figures import figure6, output, style
from rankcollapse.precision import precision_floor
from rankcollapse.vocabulary import READINGS

PUBLISHED = Path(__file__).parents[1] / "data" / "published" / "chained_attention.csv"
FLOOR = precision_floor("float64")
NETWORKS = {  # seeds, depth, factor a layer, spread of the logarithms
    ("bert-base-cased", "init"): ((0, 1, 2), 12, 0.019, 0.2),
    ("all-mpnet-base-v2", "pretrained"): ((pd.NA,), 12, 0.35, 0.8),
    ("all-minilm-l6-v2", "pretrained"): ((pd.NA,), 6, 0.4, 0.6),
    ("bert-base-cased", "pretrained"): ((pd.NA,), 12, 0.45, 0.7),
}
ROUND_OFF = 1.9e-15


def network(checkpoint, weights, *, count=300, layers="any"):
    """Return pairs of every seed of a network that nobody measured."""
    seeds, deepest, factor, spread = NETWORKS[checkpoint, weights]
    generator = np.random.default_rng(deepest)
    frames = []
    for seed in seeds:
        for reading in READINGS:
            for depth in range(1, deepest + 1):
                logs = spread * np.sqrt(depth) * generator.standard_normal(count)
                drop = factor ** (depth - 1) * (0.8 if reading == READINGS[1] else 1)
                distance = np.minimum(0.15 * drop * np.exp(logs), 1.4) + ROUND_OFF
                frame = pd.DataFrame({"pair": range(count), "distance": distance})
                names = {
                    "checkpoint": checkpoint,
                    "weights": weights,
                    "seed": seed,
                    "layers": layers,
                    "reading": reading,
                    "depth": depth,
                    "sequence": frame["pair"] % 32,
                    "dobrushin": np.minimum(1.3 * distance, 1),
                }
                frames.append(frame.assign(**names)[CHAINED_COLUMNS].astype({"seed": "Int64"}))
    return pd.concat(frames, ignore_index=True)


@pytest.fixture(scope="module")
def summary():
    return summarise(network(*names) for names in NETWORKS)


@pytest.fixture(scope="module")
def published():
    return read_published(PUBLISHED)


@pytest.fixture(scope="module")
def pages(summary, published):
    return figure6.draw(summary, published)


def panel(page, title):
    (found,) = [axes for axes in page.axes if axes.get_title().startswith(title)]
    return found


def boxes_of(axes):
    """Return the boxes of each reading, by depth."""
    colors = {reading: to_rgb(figure6._COLORS[reading]) for reading in READINGS}
    return {
        reading: [patch for patch in axes.patches if to_rgb(patch.get_facecolor()) == color]
        for reading, color in colors.items()
    }


def test_a_panel_for_each_network_and_two_pages(pages):
    assert list(pages) == ["", "dobrushin"]
    for page in pages.values():
        assert [axes.get_title() for axes in page.axes] == [
            "BERT at initialisation  (900 pairs, 3 seeds)",
            "BERT pretrained  (300 pairs)",
            "MPNet pretrained  (300 pairs)",
            "MiniLM pretrained  (300 pairs)",
        ]
        assert all(axes.get_yscale() == "log" for axes in page.axes)
        assert page.get_size_inches()[0] == style.DOUBLE_COLUMN


def test_boxes_are_the_quartiles_of_both_readings(pages, summary):
    for name, page in pages.items():
        rows = summary[
            (summary["checkpoint"] == "all-mpnet-base-v2")
            & (summary["measure"] == (name or "distance"))
        ]
        for reading, drawn in boxes_of(panel(page, "MPNet")).items():
            assert len(drawn) == 12
            heights = [patch.get_path().vertices[:, 1] for patch in drawn]
            expected = rows[rows["reading"] == reading].sort_values("depth")
            np.testing.assert_allclose([h.min() for h in heights], expected["q1"])
            np.testing.assert_allclose([h.max() for h in heights], expected["q3"])


def test_a_network_of_six_layers_has_six_depths(pages):
    axes = panel(pages[""], "MiniLM")
    assert [tick.get_text() for tick in axes.get_xticklabels()] == list("123456")
    assert [len(boxes) for boxes in boxes_of(axes).values()] == [6, 6]


def test_published_quartiles_stand_beside_bert_alone(pages, published):
    for axes in pages[""].axes:
        found = [c for c in axes.containers if c.get_label() == figure6.PUBLISHED]
        medians = sorted(y for container in found for y in container.lines[0].get_ydata())
        weights = "init" if "init" in axes.get_title() else "pretrained"
        expected = published.loc[published["weights"] == weights, "median"]
        if axes.get_title().startswith("BERT"):
            np.testing.assert_allclose(medians, sorted(expected))
        else:
            assert medians == []
    assert all(not axes.containers for axes in pages["dobrushin"].axes)


def test_published_boxes_of_round_off_are_faded(pages):
    axes = panel(pages[""], "BERT at initialisation")
    faded, clear = sorted(axes.containers, key=lambda container: container.lines[0].get_alpha())
    assert faded.lines[0].get_xdata().tolist() == list(range(4, 13))
    assert clear.lines[0].get_xdata().tolist() == [1, 2, 3]
    assert faded.lines[0].get_alpha() < 0.5 < clear.lines[0].get_alpha()


def test_the_floor_is_shown_where_it_is_reached(pages):
    for page in pages.values():
        for axes in page.axes:
            (line,) = lines(axes, "floor")
            assert line.get_ydata()[0] == FLOOR
            reached = axes.get_ylim()[0] < FLOOR
            assert reached == ("at initialisation" in axes.get_title())
        assert any(label.startswith("float64 round-off") for label in legend_labels(page))


def test_no_box_is_cut_off(pages, summary):
    for name, page in pages.items():
        rows = summary[summary["measure"] == (name or "distance")]
        for axes in page.axes:
            low, high = axes.get_ylim()
            of_model = rows[
                rows["checkpoint"].map(style.label).eq(axes.get_title().split()[0])
                & rows["weights"].eq("init" if "init" in axes.get_title() else "pretrained")
            ]
            assert low < of_model["p05"].min()
            assert of_model["p95"].max() < high


def test_the_legend_names_what_is_drawn(pages, summary, published):
    assert legend_labels(pages[""])[:3] == [
        "as published: earliest layer on the left",
        "as described: latest on the left",
        figure6.PUBLISHED,
    ]
    assert figure6.PUBLISHED not in legend_labels(pages["dobrushin"])
    without = figure6.draw(summary[summary["checkpoint"] == "all-minilm-l6-v2"], published)
    assert len(legend_labels(without[""])) == 2
    assert len(without[""].axes) == 1


def test_distances_of_zero_can_be_drawn(summary, published):
    names = ["p05", "q1", "median"]
    zero = summary.assign(**{name: summary[name].where(summary["depth"] < 3, 0) for name in names})
    axes = figure6.draw(zero, published)[""].axes[0]
    assert axes.get_ylim()[0] > 0


def test_table_has_measured_and_published_numbers(summary, published):
    rows = figure6.table(summary, published)
    assert len(rows) == len(summary)
    assert rows["published_median"].notna().sum() == 24
    beside = rows.dropna(subset="published_median")
    assert set(beside["reading"]) == {"as-published"}
    assert set(beside["measure"]) == {"distance"}
    first = beside[(beside["weights"] == "init") & (beside["depth"] == 1)].iloc[0]
    assert first["published_q1"] == 0.131
    lone = figure6.table(summary[summary["checkpoint"] == "all-minilm-l6-v2"], published)
    assert (lone.loc[lone["checkpoint"] == "bert-base-cased", "pairs"] == 0).all()
    for _, boxes in rows.groupby(["checkpoint", "weights", "reading", "measure"]):
        assert boxes["depth"].is_monotonic_increasing


def test_the_other_rule_of_layers_is_drawn_when_asked_for(summary, published):
    first = summarise([network("bert-base-cased", "init", layers="first")])
    both = pd.concat([summary, first])
    assert len(figure6.draw(both, published, layers="first")[""].axes) == 1
    assert len(figure6.draw(both, published)[""].axes) == 4
    with pytest.raises(RankCollapseError, match="no attention was chained with the layers 'first'"):
        figure6.draw(summary, published, layers="first")
    with pytest.raises(ValueError, match="unknown layers 'last'"):
        figure6.draw(summary, published, layers="last")


def test_nothing_measured_is_one_line(summary, published):
    with pytest.raises(RankCollapseError, match="run `make reproduce`") as caught:
        figure6.draw(summary[:0], published)
    assert "\n" not in str(caught.value)


def test_it_can_be_written(tmp_path, summary, published):
    pages = figure6.draw(summary[summary["checkpoint"] == "all-minilm-l6-v2"], published)
    files = output.save(pages, tmp_path / "figure6")
    names = ["figure6.pdf", "figure6.png", "figure6_dobrushin.png"]
    assert [file.name for file in files] == names


def test_the_figure_does_not_need_torch():
    code = (
        "import sys, rankcollapse.figures.figure6, rankcollapse.chained_verdicts;"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
