import jaxtyping
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from scipy.optimize import minimize

from rankcollapse import composite_norm, measures, residual_ratio
from rankcollapse.measures import (
    composite_ratio,
    effective_rank,
    frobenius_ratio,
    mean_cosine,
    minimiser_bracket,
    numerical_rank,
    participation_ratio,
    rate,
    residual,
    singular_values,
    stable_rank,
)

A = torch.tensor([[1.0, 2.0], [3.0, -4.0]])
LINE = torch.tensor([[0.0], [0.0], [3.0]])
RATIOS = (composite_ratio, frobenius_ratio)

numbers = st.floats(-100, 100, width=32).map(lambda x: x if abs(x) > 1e-3 else 0.0)
matrices = arrays(
    np.float64, array_shapes(min_dims=2, max_dims=2, min_side=2, max_side=6), elements=numbers
).map(torch.from_numpy)
quickly = settings(max_examples=60, deadline=None, derandomize=True)


def noise(*shape, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


def value(tensor):
    assert tensor.dtype == torch.float64
    return tensor.item()


def test_composite_norm_by_hand():
    # Columns sum to 4 and 6, rows to 3 and 7.
    assert value(composite_norm(A)) == pytest.approx(42**0.5, rel=1e-15)


def test_composite_norm_is_not_a_norm():
    row, column = torch.tensor([[1.0, 1.0], [0.0, 0.0]]), torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    assert value(composite_norm(row)) == value(composite_norm(column)) == 2**0.5
    assert value(composite_norm(row + column)) == 3.0  # > 2 sqrt(2)


def test_composite_norm_takes_any_number_of_matrices():
    stack = torch.stack([A, 2 * A, 0 * A])[None]
    assert composite_norm(stack).tolist() == [[42**0.5, 2 * 42**0.5, 0.0]]


def test_composite_ratio_by_hand():
    # The residual is [[-1, 3], [1, -3]]: columns 2 and 6, rows 4 and 4.
    assert value(composite_ratio(A)) == pytest.approx((24 / 42) ** 0.5, rel=1e-15)


def test_composite_ratio_may_exceed_one():
    x = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    # Columns and rows of the residual sum to 4/3.
    assert value(composite_ratio(x)) == pytest.approx(4 / 3, rel=1e-15)


def test_frobenius_ratio_by_hand():
    assert value(frobenius_ratio(A)) == pytest.approx((20 / 30) ** 0.5, rel=1e-15)


def test_residual_is_what_the_column_mean_leaves():
    assert residual(A).tolist() == [[-1.0, 3.0], [1.0, -3.0]]
    assert residual(A).dtype == torch.float64


def test_mean_cosine_by_hand():
    assert value(mean_cosine(A)) == pytest.approx(-(5**-0.5), rel=1e-15)
    three = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    assert value(mean_cosine(three)) == pytest.approx(2**0.5 / 3, rel=1e-14)


def test_mean_cosine_of_a_zero_token_is_zero_and_of_one_token_undefined():
    assert value(mean_cosine(torch.tensor([[1.0, 0.0], [0.0, 0.0]]))) == 0.0
    assert mean_cosine(torch.ones(1, 3)).isnan()


def test_mean_cosine_of_tiny_tokens_is_that_of_large_ones():
    tiny = A.double() * 1e-30
    assert value(mean_cosine(tiny)) == pytest.approx(-(5**-0.5), rel=1e-14)


def test_effective_rank_of_diag_2_1():
    spectrum = singular_values(torch.diag(torch.tensor([2.0, 1.0])))
    assert value(effective_rank(spectrum)) == pytest.approx(1.889881574842, abs=5e-13)


def test_ranks_by_hand():
    spectrum = torch.tensor([2.0, 1.0, 1e-9], dtype=torch.float64)
    assert value(stable_rank(spectrum[:2])) == 5 / 4
    assert value(participation_ratio(spectrum[:2])) == pytest.approx(25 / 17, rel=1e-15)
    assert value(numerical_rank(spectrum, tolerance=1e-6)) == 2
    assert value(numerical_rank(spectrum, tolerance=1e-10)) == 3


@pytest.mark.parametrize("rank", [effective_rank, stable_rank, participation_ratio])
def test_equal_singular_values_count_themselves(rank):
    assert value(rank(torch.full((7,), 3.0, dtype=torch.float64))) == pytest.approx(7, rel=1e-14)


@pytest.mark.parametrize("rank", [effective_rank, stable_rank, participation_ratio])
def test_ranks_of_zeros_are_zero(rank):
    assert value(rank(torch.zeros(4, dtype=torch.float64))) == 0.0
    assert value(numerical_rank(torch.zeros(4, dtype=torch.float64), tolerance=1e-6)) == 0.0


def test_singular_values_descend_and_keep_the_frobenius_norm():
    x = noise(3, 5, 4)
    spectrum = singular_values(x)
    assert spectrum.shape == (3, 4)
    assert (spectrum.diff(dim=-1) <= 0).all()
    torch.testing.assert_close(spectrum.square().sum(-1), x.square().sum((-2, -1)))


def test_participation_ratio_of_tokens_on_a_line_is_one():
    line = torch.arange(5.0)[:, None] * torch.tensor([[1.0, 2.0, -1.0]]) + 7
    assert value(participation_ratio(singular_values(residual(line)))) == pytest.approx(1)


@pytest.mark.parametrize("ratio", RATIOS)
def test_a_matrix_of_zeros_has_ratio_zero(ratio):
    assert value(ratio(torch.zeros(3, 2))) == 0.0
    assert [value(bound) for bound in minimiser_bracket(torch.zeros(3, 2))] == [0.0, 0.0]


@pytest.mark.parametrize("ratio", RATIOS)
def test_nan_gives_nan(ratio):
    x = torch.ones(3, 2)
    x[1, 1] = torch.nan
    assert ratio(x).isnan()


@quickly
@given(arrays(np.float64, st.integers(1, 6), elements=numbers), st.integers(1, 7))
def test_equal_rows_leave_no_residual(row, tokens):
    x = torch.from_numpy(row).repeat(tokens, 1)
    for ratio in RATIOS:
        assert value(ratio(x)) <= 1e-14
    low, high = minimiser_bracket(x)
    assert value(low) == value(high) == 0.0


@quickly
@given(matrices, st.sampled_from([1e-20, 0.3, 7.0, 1e20]))
def test_ratios_do_not_depend_on_scale(x, factor):
    for ratio in RATIOS:
        assert value(ratio(x * factor)) == pytest.approx(value(ratio(x)), rel=1e-11, abs=1e-14)
    for scaled, bound in zip(minimiser_bracket(x * factor), minimiser_bracket(x), strict=True):
        assert value(scaled) == pytest.approx(value(bound), rel=1e-11, abs=1e-14)
    assert value(mean_cosine(x * factor)) == pytest.approx(value(mean_cosine(x)), abs=1e-12)


@quickly
@given(matrices, st.randoms(use_true_random=False))
def test_the_order_of_tokens_does_not_matter(x, random):
    order = random.sample(range(len(x)), len(x))
    for measure in (*RATIOS, composite_norm, mean_cosine):
        same = pytest.approx(value(measure(x)), rel=1e-11, abs=1e-13)
        assert value(measure(x[order])) == same


@quickly
@given(matrices, st.data())
def test_the_bracket_holds_for_any_centre(x, data):
    low, high = minimiser_bracket(x)
    assert value(low) <= value(high)
    assert value(high) <= value(composite_ratio(x))
    shape = x.shape[-1]
    centre = torch.from_numpy(data.draw(arrays(np.float64, shape, elements=numbers)))
    norm = value(composite_norm(x))
    if norm:
        assert value(low) <= value(composite_norm(x - centre)) / norm * (1 + 1e-12)


def test_bracket_by_hand():
    # On a line a centre c between 0 and 3 gives (3 + c) max(c, 3 - c), least at 3/2: 6.75.
    # Mean: 4 x 2. Median: 3 x 3. Below: 3 x 3/2.
    low, high = minimiser_bracket(LINE)
    assert value(low) == pytest.approx(4.5**0.5 / 3, rel=1e-15)
    assert value(high) == pytest.approx(8**0.5 / 3, rel=1e-15)


def test_the_bounds_of_two_tokens_agree_and_keep_their_order():
    low, high = minimiser_bracket(noise(5000, 2, 3))
    torch.testing.assert_close(low, high, rtol=1e-14, atol=0)
    assert (low <= high).all()


def test_the_upper_bound_takes_the_median_where_it_is_better():
    x = torch.tensor([[0.0, 0.0, 0.0]] * 3 + [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    _, high = minimiser_bracket(x)
    # The median is the row of zeros, so its ratio is 1; the mean's is sqrt(10/6 x 8/6) > 1.
    assert value(composite_ratio(x)) > 1
    assert value(high) == 1.0


@pytest.mark.parametrize("seed", range(5))
def test_a_numeric_minimum_lies_in_the_bracket(seed):
    x = noise(5, 3, seed=seed)
    norm = value(composite_norm(x))

    def ratio(centre):
        return value(composite_norm(x - torch.from_numpy(centre))) / norm

    starts = (x.mean(0).numpy(), x.median(0).values.numpy())
    best = min(minimize(ratio, start, method="Nelder-Mead").fun for start in starts)
    low, high = (value(bound) for bound in minimiser_bracket(x))
    assert low <= best <= high
    assert low > 0.5 * high


def test_rate_of_a_cubic_sequence_is_three():
    ratios = [0.4]
    for _ in range(4):
        ratios.append(ratios[-1] ** 3)
    rates = rate(torch.tensor(ratios, dtype=torch.float64)[:, None])[:, 0]
    assert rates[0].isnan()
    assert rates[1:].tolist() == pytest.approx([3.0] * 4, rel=1e-12)


def test_rate_of_a_cubic_sequence_with_a_constant_tends_to_three():
    ratios = [0.1]
    for _ in range(4):
        ratios.append(5 * ratios[-1] ** 3)
    rates = rate(torch.tensor(ratios, dtype=torch.float64)[:, None])[1:, 0]
    distance = (rates - 3).abs().tolist()
    assert distance == sorted(distance, reverse=True)
    assert distance[-1] < 0.04


def test_rate_of_an_exponential_sequence_tends_to_one():
    ratios = 0.4 * 0.1 ** torch.arange(30, dtype=torch.float64)
    rates = rate(ratios[:, None])[1:, 0]
    assert (rates > 1).all()
    assert (rates.diff() < 0).all()
    assert rates[-1] < 1.04


def test_rate_is_undefined_before_collapse_and_after_the_last_digit():
    ratios = torch.tensor([[0.9], [0.5], [0.4], [0.1], [0.0], [0.0], [torch.nan], [0.1]])
    defined = rate(ratios.double())[:, 0].isfinite().tolist()
    assert defined == [False, False, False, True, False, False, False, False]


def test_residual_ratio_of_states_by_hand():
    states = torch.stack([torch.stack([A, 0 * A]), torch.stack([A[[0, 0]], 3 * A])])
    expected = [[(24 / 42) ** 0.5, 0.0], [0.0, (24 / 42) ** 0.5]]
    ratios = residual_ratio(states)
    assert ratios.dtype == torch.float64
    torch.testing.assert_close(ratios, torch.tensor(expected, dtype=torch.float64))


def test_residual_ratio_of_each_sequence_is_its_own():
    states = noise(3, 5, 4, 6)
    together = residual_ratio(states)
    assert together.shape == (3, 5)
    for b in range(5):
        assert torch.equal(residual_ratio(states[:, [b]]), together[:, [b]])


@pytest.mark.parametrize("padding", [0.0, 1e6, torch.nan, torch.inf])
def test_padding_never_enters(padding):
    states = noise(3, 2, 6, 4)
    mask = torch.tensor([[1, 1, 1, 1, 0, 0], [0, 1, 0, 1, 1, 1]]).bool()
    padded = torch.where(mask[None, :, :, None], states, padding)
    masked = residual_ratio(padded, mask=mask)
    for b, real in enumerate(mask):
        alone = residual_ratio(states[:, [b]][:, :, real])
        torch.testing.assert_close(masked[:, [b]], alone, rtol=0, atol=1e-15)


def test_an_attention_mask_of_integers_is_a_mask():
    states = noise(2, 1, 4, 3)
    mask = torch.tensor([[1, 1, 0, 0]])
    assert torch.equal(residual_ratio(states, mask=mask), residual_ratio(states[:, :, :2]))


def test_a_mask_of_ones_changes_nothing():
    states = noise(2, 3, 4, 5)
    masked = residual_ratio(states, mask=torch.ones(3, 4).bool())
    torch.testing.assert_close(masked, residual_ratio(states), rtol=0, atol=1e-15)


def test_a_mask_that_does_not_fit_is_refused():
    states = noise(2, 3, 4, 5)
    with pytest.raises(ValueError, match=r"mask is \(3, 5\), expected \(3, 4\)"):
        measures.by_sequence(measures.composite_ratio, states, torch.ones(3, 5).bool())
    empty = torch.ones(3, 4).bool()
    empty[1] = False
    with pytest.raises(ValueError, match="mask leaves a sequence without tokens"):
        residual_ratio(states, mask=empty)


def test_shapes_are_checked_in_tests():
    with pytest.raises(jaxtyping.TypeCheckError):
        residual_ratio(noise(3, 4, 5))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_low_precision_does_not_overflow(dtype):
    # 128 x 768 entries of 60,000: a column's sum is 7.7e6, float16 ends at 65,504.
    states = (30_000 * noise(1, 1, 128, 768, seed=3).sign() + 30_000).to(dtype)
    wide = states.double()
    assert torch.equal(residual_ratio(states), residual_ratio(wide))
    assert composite_norm(states).isfinite().all()
    for measure in (composite_ratio, frobenius_ratio, mean_cosine):
        assert torch.equal(measure(states), measure(wide))
    for bound, exact in zip(minimiser_bracket(states), minimiser_bracket(wide), strict=True):
        assert torch.equal(bound, exact)


def test_measuring_changes_no_state():
    states = noise(2, 2, 4, 3)
    before = states.clone()
    residual_ratio(states)
    minimiser_bracket(states)
    assert torch.equal(states, before)
