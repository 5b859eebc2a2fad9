"""Maps of heads, and what is proven of pieces."""

import numpy as np
import path_fixtures as made
import pytest
from curve_fixtures import legend_labels

from rankcollapse.errors import RankCollapseError
from rankcollapse.figures import heads, output, pieces


def test_a_map_for_each_length_with_layers_upwards():
    figure = heads.draw(made.heads())
    maps = [axes for axes in figure.axes if axes.images]
    assert [axes.get_title() for axes in maps] == ["length 1", "length 2", "length 3"]
    picture = np.asarray(maps[0].images[0].get_array())
    assert picture.shape == (made.LAYERS, 2)
    assert picture[-1, 1] == 0.75  # the last layer's second head
    assert maps[0].images[0].origin == "lower"
    assert maps[0].images[0].get_extent() == [-0.5, 1.5, 0.5, 3.5]
    low, high = maps[0].images[0].get_clim()
    assert low == -high
    assert "MiniLM, pretrained" in maps[0].get_ylabel()


def test_seeds_are_averaged_and_other_variants_left_out():
    rows = made.heads()
    more = [rows, rows.assign(seed=1, share=rows["share"] + 1), rows.assign(variant="san_skip")]
    table = heads.table(made.pd.concat(more, ignore_index=True))
    assert set(table["seeds"]) == {2}
    last = table[(table["layer"] == 3) & (table["head"] == 1) & (table["length"] == 1)]
    assert last["share"].tolist() == [1.25]
    assert set(table["length"]) == {1, 2, 3}


def test_each_model_has_a_column_of_pieces():
    figure = pieces.draw(made.bound_pieces())
    above, below = figure.axes[:2], figure.axes[2:]
    assert [axes.get_title() for axes in above] == [
        "BERT\nat initialisation",
        "MiniLM\npretrained",
    ]
    for axes in above:
        (skip,) = [line for line in axes.get_lines() if line.get_label() == "skip, transformer"]
        assert skip.get_ydata().tolist() == [0.01] * 3
    band = [axes.collections[0].get_paths()[0].vertices[:, 1] for axes in above]
    assert (band[0].min(), band[0].max()) == (-1.0, 0.2)
    assert band[1].min() == above[1].get_ylim()[0]  # nothing is proven: down to the bottom
    labels = [line.get_label() for line in below[0].get_lines()]
    assert labels.count(pieces.LIMIT) == 3
    assert {"MLP", "norm after MLP", pieces.PROVEN} <= set(legend_labels(figure))


@pytest.mark.parametrize(("module", "rows"), [(heads, made.heads()), (pieces, made.bound_pieces())])
def test_nothing_measured_is_said_and_the_same_rows_give_the_same_bytes(module, rows, tmp_path):
    with pytest.raises(RankCollapseError, match="none were measured; run `make reproduce`"):
        module.draw(rows.iloc[:0])
    for name in ("a", "b"):
        output.save({"": module.draw(rows)}, tmp_path / name)
    for ending in (".png", ".pdf"):
        first, second = ((tmp_path / f"{name}{ending}").read_bytes() for name in ("a", "b"))
        assert first == second
