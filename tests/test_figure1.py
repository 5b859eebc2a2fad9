import re

import numpy as np
import pytest
import torch
from matplotlib.colors import to_hex

from rankcollapse.figures import figure1, style
from rankcollapse.measures import composite_norm, residual_ratio

ACCENT = to_hex(style.ACCENT)


@pytest.fixture(scope="module")
def figure():
    return figure1.draw()


def texts(axes):
    return [text.get_text() for text in axes.texts]


def overlapping(boxes):
    return [
        (i, j)
        for i, one in enumerate(boxes)
        for j, other in enumerate(boxes[:i])
        if one.overlaps(other)
    ]


def test_table_has_all_paths_by_length():
    rows = figure1.table()
    assert list(rows.columns) == ["path", "length", "norm", "residual_ratio"]
    assert rows["path"].is_unique
    assert rows["length"].value_counts(sort=False).to_dict() == {0: 1, 1: 6, 2: 12, 3: 8}
    assert (rows["path"].map(lambda path: 3 - path.count("skip")) == rows["length"]).all()
    assert rows["length"].is_monotonic_increasing
    assert all(group["norm"].is_monotonic_decreasing for _, group in rows.groupby("length"))


def test_table_measures_terms_as_the_models_are_measured():
    rows = figure1.table(seed=3).set_index("path")
    _, _, paths = figure1._network(3)
    for path in paths:
        states = torch.from_numpy(path.term)[None, None]  # [L, B, T, D]
        row = rows.loc[figure1._name(path.heads)]
        assert row["norm"] == pytest.approx(composite_norm(states).item())
        assert row["residual_ratio"] == pytest.approx(residual_ratio(states).item())


def test_long_paths_are_nearer_to_rank_one():
    means = figure1.table().groupby("length")["residual_ratio"].mean()
    assert means.is_monotonic_decreasing
    assert means[3] < 0.1 * means[0]


def test_network_has_its_heads_and_one_path_in_bold(figure):
    network = figure.axes[0]
    for words in ("head 1", "head 2", "skip"):
        assert texts(network).count(words) == figure1.LAYERS
    assert len(network.patches) == figure1.LAYERS * (figure1.HEADS + 1)
    wide = [patch for patch in network.patches if to_hex(patch.get_edgecolor()) == ACCENT]
    assert len(wide) == figure1.LAYERS
    chosen = [text for text in network.texts if text.get_weight() == "bold"]
    by_layer = sorted(chosen, key=lambda text: text.get_position()[0])
    assert [text.get_text() for text in by_layer] == ["head 2", "skip", "head 1"]


def test_matrices_multiply_to_the_term_that_is_shown(figure):
    *factors, term = [image.get_array().data for image in figure.axes[1].images]
    product = np.linalg.multi_dot(factors)
    np.testing.assert_allclose(product, term, atol=1e-13)
    assert [matrix.shape for matrix in factors] == [(6, 6), (6, 6), (6, 8), (8, 8), (8, 8)]


def test_bars_and_dots_are_the_table(figure):
    rows = figure1.table()
    norms, ratios = figure.axes[2:]
    np.testing.assert_allclose([bar.get_height() for bar in norms.patches], rows["norm"])
    dots = ratios.collections[-1].get_offsets()
    np.testing.assert_allclose(dots[:, 1], rows["residual_ratio"])
    centers = [bar.get_x() + bar.get_width() / 2 for bar in norms.patches]
    np.testing.assert_allclose(dots[:, 0], centers)


def test_the_highlighted_path_is_the_only_accented_bar(figure):
    rows = figure1.table()
    colors = [to_hex(bar.get_facecolor()) for bar in figure.axes[2].patches]
    accented = [index for index, color in enumerate(colors) if color == ACCENT]
    assert rows["path"][accented].tolist() == ["2/skip/1"]


@pytest.mark.parametrize("seed", [0, 7])
def test_title_says_how_exactly_the_terms_sum_to_the_output(seed):
    title = figure1.draw(seed).axes[2].get_title(loc="left")
    match = re.fullmatch(r"sum of 27 terms = output, error (\S+)", title)
    assert match is not None
    assert float(match.group(1)) < 1e-14


def test_words_are_legible_and_do_not_overlap(figure):
    with style.look():
        figure.draw_without_rendering()
        for axes in figure.axes[:2]:
            boxes = [text.get_window_extent() for text in axes.texts]
            assert overlapping(boxes) == []
            assert all(figure.bbox.x0 <= box.x0 and box.x1 <= figure.bbox.x1 for box in boxes)
    assert min(text.get_size() for axes in figure.axes for text in axes.texts) >= 7
    assert figure.get_size_inches()[0] == style.SINGLE_COLUMN
