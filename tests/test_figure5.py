import numpy as np
import pytest
from matplotlib.colors import to_rgb

from rankcollapse.figures import figure5, style

PUBLISHED = {
    "DistilBERT": (12, 6),
    "MobileBERT": (4, 12),
    "BERT-base, ViT-B": (12, 12),
    "BERT-large, ViT-L": (16, 24),
    "ViT-H": (16, 32),
    "T5-3B": (32, 24),
    "T5-11B": (128, 24),
    "GPT-3": (96, 96),
    "DeiT-T": (3, 12),
}


@pytest.fixture(scope="module")
def axes():
    return figure5.draw().axes[0]


def test_table_has_all_lengths_of_the_nine_architectures():
    rows = figure5.table()
    assert list(rows.columns) == ["architecture", "heads", "layers", "length", "proportion"]
    groups = dict(list(rows.groupby("architecture")))
    assert {
        name: (group["heads"].iloc[0], group["layers"].iloc[0]) for name, group in groups.items()
    } == PUBLISHED
    for name, (_, layers) in PUBLISHED.items():
        assert groups[name]["length"].tolist() == list(range(layers + 1))
        assert groups[name]["proportion"].sum() == pytest.approx(1, abs=1e-12)


def test_most_paths_are_long():
    rows = figure5.table()
    rows["share"] = rows["length"] * rows["proportion"] / rows["layers"]
    mean = rows.groupby("architecture")["share"].sum()
    for name, (heads, _) in PUBLISHED.items():
        assert mean[name] == pytest.approx(heads / (heads + 1))


def test_lines_are_the_table_from_length_one(axes):
    rows = figure5.table()
    lines = {line.get_label(): line for line in axes.get_lines()}
    assert len(lines) == 9
    for name, (heads, layers) in PUBLISHED.items():
        line = lines[f"{name} ({heads}, {layers})"]
        group = rows[(rows["architecture"] == name) & (rows["length"] >= 1)]
        np.testing.assert_array_equal(line.get_xdata(), group["length"])
        np.testing.assert_array_equal(line.get_ydata(), group["proportion"])


def test_axis_is_logarithmic_from_one(axes):
    assert axes.get_xscale() == "log"
    assert axes.get_xlim()[0] == 1
    assert axes.get_xlim()[1] > 96
    assert axes.get_xlabel() == "path length"
    assert axes.get_ylabel() == "proportion of paths"


def test_no_two_lines_look_alike(axes):
    looks = {(to_rgb(e.get_color()), e.get_linestyle(), e.get_marker()) for e in axes.get_lines()}
    assert len(looks) == 9


def test_legend_names_every_line_and_the_figure_is_a_column_wide(axes):
    figure = axes.get_figure()
    (legend,) = figure.legends
    names = {text.get_text() for text in legend.get_texts()}
    assert names == {line.get_label() for line in axes.get_lines()}
    assert figure.get_size_inches()[0] == style.SINGLE_COLUMN
