import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rankcollapse.chained import (
    ChainedError,
    chained,
    draw_walks,
    products,
)
from rankcollapse.chained_measures import dobrushin, rank_one_distance
from rankcollapse.chained_tables import (
    CHAINED_COLUMNS,
    SUMMARY_COLUMNS,
    read_chained,
    read_summary,
    summarise,
)
from rankcollapse.path_tables import write_rows
from rankcollapse.precision import precision_floor
from rankcollapse.tables import TableError, write_csv

FLOOR = precision_floor("float64")
NAMES = {"checkpoint": "bert-base-cased", "weights": "init", "seed": 0}


def matrix(*rows):
    return torch.tensor([rows], dtype=torch.float64)


def attention(layers, sequences, heads, tokens, *, sharpness=2.0, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    shape = (layers, sequences, heads, tokens, tokens)
    scores = torch.randn(shape, generator=generator, dtype=torch.float64)
    return torch.softmax((sharpness * scores).to(dtype), -1)


def plain_distance(p):
    """Return the distance as the words define it, by numpy's SVD."""
    u, s, v = np.linalg.svd(p)
    rest = p - s[0] * np.outer(u[:, 0], v[0])

    def norm(m):
        return np.sqrt(np.abs(m).sum(0).max() * np.abs(m).sum(1).max())

    return norm(rest) / norm(p)


def plain_dobrushin(p):
    return max(0.5 * np.abs(a - b).sum() for a in p for b in p)


def test_distance_of_a_2x2_matrix_by_hand():
    # Symmetric: eigenvalues 1 and 0.6, so the rest is 0.6 u u^T with u = (1, -1) / sqrt 2: entries
    # of 0.3, column and row sums 0.6; those of P are 1.
    assert rank_one_distance(matrix([0.8, 0.2], [0.2, 0.8])).item() == pytest.approx(0.6, rel=1e-12)


def test_distance_of_a_3x3_matrix_by_hand():
    # Circulant: (1/4) I + (1/4) 11^T. The rest is (I - 11^T / 3) / 4, sums (2/3 + 2/3) / 4 = 1/3.
    circulant = matrix([0.5, 0.25, 0.25], [0.25, 0.5, 0.25], [0.25, 0.25, 0.5])
    assert rank_one_distance(circulant).item() == pytest.approx(1 / 3, rel=1e-12)
    assert dobrushin(circulant).item() == pytest.approx(0.25, rel=1e-14)


def test_dobrushin_by_hand():
    # Rows 1 and 3 differ most: (0.6 + 0.1 + 0.5) / 2.
    rows = matrix([0.7, 0.2, 0.1], [0.4, 0.4, 0.2], [0.1, 0.3, 0.6])
    assert dobrushin(rows).item() == pytest.approx(0.6, rel=1e-14)


def test_rank_one_has_distance_and_coefficient_zero():
    row = torch.softmax(torch.randn(64, generator=torch.Generator().manual_seed(0)).double(), 0)
    equal = row.expand(1, 64, 64).contiguous()
    assert rank_one_distance(equal).item() < FLOOR
    assert dobrushin(equal).item() == 0


@pytest.mark.parametrize("order", [[1, 0, 2, 3], [1, 2, 3, 0], [0, 1, 2, 3]])
def test_a_permutation_lets_everything_through(order):
    permutation = torch.eye(4, dtype=torch.float64)[order][None]
    assert dobrushin(permutation).item() == 1
    # All singular values are 1; the column sums choose 11^T / 4. Sums of the rest: 3/4 + 3 * 1/4.
    assert rank_one_distance(permutation).item() == pytest.approx(1.5, rel=1e-12)


def test_hidden_states_of_two_tokens_shrink_by_the_coefficient():
    p = matrix([0.9, 0.1], [0.4, 0.6])
    x = torch.tensor([3.0, -2.0]).double()
    y = p[0] @ x
    assert (y[0] - y[1]).abs().item() == pytest.approx(dobrushin(p).item() * 5)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    tokens=st.integers(2, 24),
    sharpness=st.sampled_from([1e-3, 0.1, 1.0, 4.0, 30.0]),
)
def test_measures_against_plain_numpy(seed, tokens, sharpness):
    matrices = attention(1, 1, 3, tokens, sharpness=sharpness, seed=seed)[0, 0]
    plain = matrices.numpy()
    for p, tau in zip(plain, dobrushin(matrices).tolist(), strict=True):
        assert tau == pytest.approx(plain_dobrushin(p), rel=1e-12, abs=1e-15)
    spectra = np.linalg.svd(plain, compute_uv=False)
    for p, s, distance in zip(plain, spectra, rank_one_distance(matrices).tolist(), strict=True):
        if s[1] < (1 - 1e-6) * s[0]:  # else there are two nearest matrices
            assert distance == pytest.approx(plain_distance(p), rel=1e-8, abs=1e-14)


@pytest.mark.parametrize("decades", range(1, 15))
def test_distance_is_exact_down_to_the_floor(decades):
    # 1 q^T + e d c^T with d orthogonal to 1 and c to q: e is the second singular value up to scale,
    # and the rest is e d c^T exactly. Column and row sums of d c^T by hand: all entries +-1.
    size, small = 16, 10.0**-decades
    signs = torch.ones(size, dtype=torch.float64)
    signs[1::2] = -1
    other = torch.ones(size, dtype=torch.float64)
    other[size // 2 :] = -1
    p = torch.full((size, size), 1 / size, dtype=torch.float64)
    p += small / size * torch.outer(signs, other)
    assert rank_one_distance(p[None]).item() == pytest.approx(small, rel=1e-9, abs=FLOOR)


def test_distance_of_matrices_far_from_rank_one_next_to_near_ones():
    near = attention(1, 1, 1, 12, sharpness=1e-3)[0, 0]
    far = attention(1, 1, 1, 12, sharpness=30)[0, 0]
    together = rank_one_distance(torch.cat([near, far]))
    assert together[1].item() == pytest.approx(plain_distance(far[0].numpy()), rel=1e-9)
    assert together[0].item() == pytest.approx(plain_distance(near[0].numpy()), rel=1e-9)


def test_products_of_2x2_matrices_by_hand():
    a, b = [[1.0, 0.0], [0.5, 0.5]], [[0.5, 0.5], [0.0, 1.0]]
    layers = torch.tensor([a, b], dtype=torch.float64)
    published = list(products(layers, [0, 1], reading="as-published"))
    assert published[0].tolist() == a
    assert published[1].tolist() == [[0.5, 0.5], [0.25, 0.75]]
    described = list(products(layers, [1, 0], reading="as-described"))
    assert described[0].tolist() == b
    assert described[1].tolist() == [[0.75, 0.25], [0.5, 0.5]]


@pytest.mark.parametrize("reading", ["as-published", "as-described"])
@pytest.mark.parametrize("layers", [1, 2, 3, 6, 7, 12])
def test_products_against_a_plain_loop(layers, reading):
    matrices = attention(layers, 1, 1, 5)[:, 0, 0]
    order = np.random.default_rng(layers).permutation(layers).tolist()
    found = list(products(matrices, order, reading=reading))
    assert len(found) == layers
    for depth, product in enumerate(found, start=1):
        expected = np.eye(5)
        for layer in sorted(order[:depth]):
            m = matrices[layer].numpy()
            expected = expected @ m if reading == "as-published" else m @ expected
        np.testing.assert_allclose(product, expected, rtol=1e-13)


def test_an_unknown_reading_is_refused():
    with pytest.raises(ValueError, match="unknown reading 'described': known are as-published"):
        next(products(attention(2, 1, 1, 3)[:, 0, 0], [0, 1], reading="described"))


@pytest.mark.parametrize("rule", ["any", "first"])
def test_the_table_against_plain_numpy(rule):
    given_attention = attention(3, 4, 2, 5)
    frame = chained(given_attention, **NAMES, pairs=30, rule=rule)
    assert list(frame.columns) == CHAINED_COLUMNS
    assert len(frame) == 2 * 3 * 30
    assert set(frame["layers"]) == {rule}
    walks = draw_walks(layers=3, heads=2, sequences=4, pairs=30, rule=rule)
    for row in frame.itertuples():
        path = sorted(walks.order[row.pair, : row.depth])
        assert row.sequence == walks.sequence[row.pair]
        if rule == "first":
            assert path == list(range(row.depth))
        ms = [given_attention[n, row.sequence, walks.heads[row.pair, n]].numpy() for n in path]
        if row.reading == "as-described":
            ms = ms[::-1]
        p = np.linalg.multi_dot(ms) if len(ms) > 1 else ms[0]
        assert row.distance == pytest.approx(plain_distance(p), rel=1e-9, abs=1e-14)
        assert row.dobrushin == pytest.approx(plain_dobrushin(p), rel=1e-9, abs=1e-15)


def test_parts_give_what_the_whole_gives():
    whole = attention(3, 5, 2, 4)
    parts = (part for part in torch.split(whole, [2, 1, 2], dim=1))
    frame = chained(parts, **NAMES, sequences=5, pairs=40)
    pd.testing.assert_frame_equal(frame, chained(whole, **NAMES, pairs=40), rtol=1e-12)


def test_the_depth_can_be_limited():
    deep, shallow = (chained(attention(4, 2, 2, 4), **NAMES, pairs=9, depth=d) for d in (None, 2))
    assert shallow["depth"].max() == 2
    expected = deep[deep["depth"] <= 2].reset_index(drop=True)
    pd.testing.assert_frame_equal(shallow, expected, rtol=1e-12)


def test_float32_probabilities_have_the_floor_of_float64():
    frame = chained(attention(12, 1, 2, 32, sharpness=0.2, dtype=torch.float32), **NAMES, pairs=4)
    deepest = frame[frame["depth"] == 12]
    assert (deepest["distance"] < FLOOR).all()
    assert (deepest["dobrushin"] < FLOOR).all()


def test_the_coefficient_of_a_product_is_at_most_the_product_of_coefficients():
    layers = attention(4, 1, 1, 6)
    frame = chained(layers, **NAMES, pairs=1, rule="first")
    limits = dobrushin(layers[:, 0, 0]).cumprod(0).tolist()
    for _, rows in frame.groupby("reading"):
        assert (rows.sort_values("depth")["dobrushin"] <= np.array(limits) * (1 + 1e-12)).all()


def test_draws_do_not_depend_on_how_many_there_are():
    few, many = (
        draw_walks(layers=3, heads=4, sequences=5, pairs=pairs, rule="any") for pairs in (7, 50)
    )
    for short, long in zip(few, many, strict=True):
        np.testing.assert_array_equal(short, long[:7])


def test_models_share_sequences_and_heads():
    deep = draw_walks(layers=12, heads=12, sequences=32)
    shallow = draw_walks(layers=6, heads=12, sequences=32)
    np.testing.assert_array_equal(deep.sequence, shallow.sequence)
    np.testing.assert_array_equal(deep.heads[:, :6], shallow.heads)
    assert len(deep.sequence) == 2000


def test_every_choice_of_layers_head_and_sequence_is_as_likely():
    walks = draw_walks(layers=4, heads=3, sequences=2, pairs=6000)
    choices = pd.Series([tuple(sorted(order)) for order in walks.order[:, :2].tolist()])
    counts = choices.value_counts()  # 6 choices, 1000 each, standard deviation 29
    assert len(counts) == 6
    assert counts.between(880, 1120).all()
    assert np.bincount(walks.heads.ravel()) == pytest.approx([8000] * 3, rel=0.05)
    assert np.bincount(walks.sequence) == pytest.approx([3000] * 2, rel=0.06)


@pytest.mark.parametrize("number", ["layers", "heads", "sequences", "pairs"])
def test_numbers_below_one_are_refused(number):
    numbers = {"layers": 2, "heads": 2, "sequences": 2, "pairs": 2} | {number: 0}
    with pytest.raises(ValueError, match="each must be at least 1"):
        draw_walks(**numbers)


def test_an_unknown_rule_is_refused():
    with pytest.raises(ValueError, match="unknown layers 'last': known are any, first"):
        chained(attention(2, 1, 1, 3), **NAMES, rule="last")


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (float("nan"), "layer 2, sequence 1, head 0: row 2 is no distribution (sum nan)"),
        (float("inf"), "row 2 is no distribution (sum inf)"),
        (0.9, "row 2 is no distribution"),
        (-0.5, "row 2 is no distribution"),
    ],
)
def test_rows_that_are_no_distribution_are_named(value, said):
    broken = attention(3, 2, 1, 4)
    broken[1, 1, 0, 2, 3] = value
    with pytest.raises(ChainedError) as caught:
        chained(broken, **NAMES)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_negative_probability_is_refused_though_its_row_sums_to_one():
    broken = attention(2, 1, 1, 2)
    broken[0, 0, 0, 0] = torch.tensor([1.5, -0.5])
    with pytest.raises(ChainedError, match=r"layer 1, sequence 0, head 0: row 0 .*sum 1\)"):
        chained(broken, **NAMES)


def test_a_sequence_is_named_by_its_place_in_the_whole():
    whole = attention(2, 4, 1, 3)
    whole[0, 3, 0, 0] = 0  # a row that is all masked
    with pytest.raises(ChainedError, match=r"layer 1, sequence 3, head 0: row 0 .*\(sum 0\)"):
        chained(iter(whole.split(2, dim=1)), **NAMES, sequences=4)


def test_one_token_is_refused():
    with pytest.raises(ChainedError, match="give sequences of at least 2 tokens"):
        chained(torch.ones(2, 1, 1, 1, 1), **NAMES)


@pytest.mark.parametrize("depth", [0, 4, -1])
def test_a_depth_beyond_the_layers_is_refused(depth):
    with pytest.raises(ValueError, match=f"depth is {depth}; a path passes 1 to 3 layers"):
        chained(attention(3, 1, 1, 3), **NAMES, depth=depth)


@pytest.mark.parametrize("shape", [(3,), (3, 3), (2, 1, 1, 3, 4), (2, 0, 1, 3, 3)])
def test_another_shape_is_refused(shape):
    with pytest.raises(ValueError, match=r"expected \[L, B, H, T, T\]"):
        chained(torch.ones(shape), **NAMES)


def test_parts_must_hold_the_sequences_that_were_said():
    whole = attention(2, 3, 1, 3)
    with pytest.raises(ValueError, match="hold 3 sequences, not 4"):
        chained([whole], **NAMES, sequences=4, pairs=5)
    with pytest.raises(ValueError, match="hold 0 sequences, not 4"):
        chained([], **NAMES, sequences=4)
    with pytest.raises(ValueError, match="need `sequences=`"):
        chained([whole], **NAMES)


def test_a_summary_by_hand():
    frame = chained(attention(1, 1, 1, 3), **NAMES, pairs=5)
    frame["distance"] = [0.1, 0.2, 0.3, 0.4, 1e-16] * 2
    other = frame.assign(seed=1, distance=0.5)
    summary = summarise([frame, other])
    assert list(summary.columns) == SUMMARY_COLUMNS
    assert len(summary) == 4
    row = summary[(summary["measure"] == "distance") & (summary["reading"] == "as-published")]
    row = row.iloc[0]
    assert (row["seeds"], row["pairs"], row["below_floor"]) == (2, 10, 1)
    # In order: 0, .1, .2, .3, .4, .5 x 5; the quartiles lie at places 2.25, 4.5 and 6.75.
    assert row["q1"] == pytest.approx(0.225)
    assert row["median"] == pytest.approx(0.45)
    assert row["q3"] == pytest.approx(0.5)
    assert row["p05"] == pytest.approx(0.045)
    assert row["floor"] == FLOOR


def test_pretrained_weights_count_as_one_network(tmp_path):
    frame = chained(attention(2, 1, 2, 3), checkpoint="x", weights="pretrained", pairs=4)
    summary = summarise([frame])
    assert set(summary["seeds"]) == {1}
    write_rows(tmp_path / "chained.parquet", frame)
    write_csv(tmp_path / "summary.csv", summary)
    read = read_chained(tmp_path / "chained.parquet")
    pd.testing.assert_frame_equal(read, frame, check_dtype=False)
    pd.testing.assert_frame_equal(
        read_summary(tmp_path / "summary.csv"), summary, rtol=1e-8, check_dtype=False
    )


def test_a_table_given_twice_is_refused():
    frame = chained(attention(1, 1, 1, 3), **NAMES, pairs=2)
    with pytest.raises(TableError, match="any as-published 1 0 0 occurs twice"):
        summarise([frame, frame])


def test_tables_of_another_kind_are_refused_in_one_line(tmp_path):
    frame = chained(attention(1, 1, 1, 3), **NAMES, pairs=2)
    write_rows(tmp_path / "other.parquet", frame.drop(columns="pair"))
    with pytest.raises(TableError, match="columns are"):
        read_chained(tmp_path / "other.parquet")
    with pytest.raises(TableError, match="no such table"):
        read_chained(tmp_path / "x.parquet")
    (tmp_path / "text.parquet").write_text("depth,pair\n1,2\n")
    with pytest.raises(TableError, match="not a Parquet table") as caught:
        read_chained(tmp_path / "text.parquet")
    assert "\n" not in str(caught.value)
    frame.drop(columns="pair").to_parquet(tmp_path / "other.parquet")
    with pytest.raises(TableError, match="columns are"):
        read_chained(tmp_path / "other.parquet")
