import math

import pytest
import torch

from rankcollapse import measures
from rankcollapse.errors import RankCollapseError
from rankcollapse.theory import (
    Head,
    column_norm,
    composite_log10,
    diameter,
    measure_head,
    measure_state,
    row_norm,
)

torch.set_num_threads(1)
EYE = torch.eye(2, dtype=torch.float64)


def matrix(*rows):
    return torch.tensor(rows, dtype=torch.float64)


def noise(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def digits(value):
    return pytest.approx(value, abs=6e-11)


FIRST = matrix([1, 0], [0, 1], [1, 1])
SECOND = matrix([0.5, -0.25], [-0.5, 0.25], [0.25, 0.5], [0, -0.5])
SECOND_HEAD = Head(matrix([1], [0.5]), matrix([0.5], [-1]), matrix([1, 0.5], [0, -1]))


def random_head(features, width, *, seed=0):
    query, key, value = (noise(features, width, seed=seed + i) for i in range(3))
    return Head(query, key, value @ noise(width, features, seed=seed + 3), noise(width, seed=9))


def stock_attention(x, head, key_bias=0.0):
    queries, keys = x @ head.query + head.query_bias, x @ head.key + key_bias
    return torch.softmax(queries @ keys.mT / math.sqrt(head.key.shape[-1]), -1)


def test_first_worked_example():
    state = measure_state(FIRST)
    head = measure_head(state, Head(EYE, EYE, EYE))
    attention = [
        [0.4011120927, 0.1977758146, 0.4011120927],
        [0.1977758146, 0.4011120927, 0.4011120927],
        [0.2482550783, 0.2482550783, 0.5034898435],
    ]
    for row, expected in zip(head.attention.tolist(), attention, strict=True):
        assert row == digits(expected)
    assert head.log_reference.exp().tolist() == digits([0.2776048148, 0.2776048148, 0.4447903705])
    assert head.oscillations.tolist() == digits([0.7071067812, 0.7071067812, 0.2357022604])
    assert head.max_oscillation.item() == digits(0.7071067812)
    assert head.spread.item() == digits(1.4142135624)
    assert head.gamma.item() == digits(1.0801234497)
    assert head.beta.item() == digits(0.7071067812)
    assert head.tau.item() == digits(0.2033362780)
    assert 10 ** state.residual_log10.item() == digits(1.1547005384)
    assert (state.oscillation.item(), state.diameter.item()) == digits((1, 2))


def test_second_worked_example():
    state = measure_state(SECOND, reference="median")
    head = measure_head(state, SECOND_HEAD)
    reference = [0.2646278951, 0.2335332978, 0.2372109121, 0.2646278951]
    assert state.row.tolist() == [[0.125, 0.0]]
    assert head.log_reference.exp().tolist() == digits(reference)
    assert head.oscillations.tolist() == digits([0.25, 0.5, 0.375, 0.375])
    assert (head.spread.item(), head.gamma.item(), head.beta.item()) == digits((1.5, 1, 2.25))
    assert head.tau.item() == digits(0.2020352728)
    assert 10 ** state.residual_log10.item() == digits(1.1456439237)
    assert (state.oscillation.item(), state.diameter.item()) == digits((1, 1.5))


def test_norms_are_those_of_the_measures():
    x = noise(3, 5, 4)
    assert torch.allclose(10 ** composite_log10(x), measures.composite_norm(x), rtol=1e-13)
    assert column_norm(SECOND).item() == row_norm(SECOND.mT).item() == 1.5
    assert diameter(SECOND).item() == 1.5


@pytest.mark.parametrize("reference", ["mean", "median", noise(3, 6, seed=5)], ids=str)
def test_attention_is_softmax_around_any_reference_and_no_key_bias_matters(reference):
    x, head = noise(3, 7, 6), random_head(6, 4)
    state = measure_state(x, reference=reference)
    quantities = measure_head(state, head)
    stock = stock_attention(x, head, key_bias=noise(4, seed=8))
    assert torch.allclose(quantities.attention, stock, rtol=1e-11, atol=1e-14)
    whole = stock @ x @ head.value_output
    gap = whole - quantities.output  # The same row for every token.
    assert torch.allclose(gap, gap[:, :1].expand_as(gap), atol=1e-12)


def test_shift_keeps_its_digits_near_collapse():
    tiny = 1e-12 * matrix([1, 0], [0, 1], [-1, -1])
    state = measure_state(tiny, reference=torch.zeros(2, dtype=torch.float64))
    shift = measure_head(state, Head(EYE, EYE, EYE)).shift
    scores = tiny @ tiny.mT / math.sqrt(2)  # Their rows sum to 0.
    assert torch.allclose(shift, scores / 3, rtol=1e-11, atol=1e-35)


def test_padding_keys_equals_dropping_them_as_keys():
    x, head = noise(4, 3), random_head(3, 2)
    padding = torch.zeros(4, 4, dtype=torch.float64)
    padding[:, 3] = -math.inf
    padded = Head(head.query, head.key, head.value_output, head.query_bias, padding)
    state = measure_state(x, reference=x[:3].mean(0))
    masked, alone = (
        measure_head(measure_state(tokens, reference=state.row[0]), one)
        for tokens, one in ((x, padded), (x[:3], head))
    )
    assert masked.covered
    assert torch.allclose(masked.attention[:3, :3], alone.attention, rtol=1e-12)
    assert masked.attention[:, 3].tolist() == [0.0] * 4
    assert masked.oscillations[:3].tolist() == pytest.approx(alone.oscillations.tolist())


def test_position_terms_and_given_probabilities_are_not_covered():
    x, head = noise(2, 4, 3), random_head(3, 2)
    causal = torch.full((4, 4), -math.inf, dtype=torch.float64).triu(1)
    state = measure_state(x)
    masked = measure_head(
        state, Head(head.query, head.key, head.value_output, head.query_bias, causal)
    )
    given = measure_head(
        state, Head(head.query, head.key, head.value_output, probabilities=masked.attention)
    )
    assert not masked.covered
    assert not given.covered
    assert masked.attention[:, 0].tolist() == [[1, 0, 0, 0]] * 2
    assert torch.allclose(given.output, masked.output, atol=1e-14)
    scores = (x @ head.query + head.query_bias) @ (x @ head.key).mT / math.sqrt(2) + causal
    assert torch.allclose(masked.attention, torch.softmax(scores, -1), atol=1e-14)


def test_tau_by_hand():
    attention = matrix([0.5, 0.5, 0], [0.25, 0.5, 0.25], [0, 0, 1])
    head = Head(EYE, EYE, EYE, probabilities=attention)
    assert measure_head(measure_state(FIRST), head).tau.item() == pytest.approx(1.0)


def test_sum_of_oscillations_exceeds_the_spread():
    # The first version's proof takes sum_i D_i <= S: here it is 1.5 against 1.
    x = torch.eye(3, dtype=torch.float64)
    state = measure_state(x, reference=torch.zeros(3, dtype=torch.float64))
    eye = torch.eye(3, dtype=torch.float64)
    head = measure_head(state, Head(eye * math.sqrt(3) / 2, eye, eye))
    assert head.oscillations.sum().item() == pytest.approx(1.5)
    assert head.spread.item() == pytest.approx(1.0)


def test_one_token_and_equal_tokens_have_nothing_left():
    for x in (noise(1, 3), noise(1, 3).expand(5, 3)):
        head = measure_head(measure_state(x, reference=x[0]), random_head(3, 2))
        assert head.output.abs().max().item() == head.tau.item() == 0.0
        assert head.gamma.item() == 1.0


BAD = math.nan, math.inf, -math.inf


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize(
    ("field", "name"),
    [("query", "query"), ("key", "key"), ("value_output", "value"), ("query_bias", "query bias")],
)
def test_weights_must_be_finite(bad, field, name):
    head = random_head(3, 2)
    broken = getattr(head, field).clone()
    broken.view(-1)[0] = bad
    with pytest.raises(RankCollapseError, match=rf"^{name}[^\n]*: 1 of \d+ values[^\n]*$"):
        measure_head(measure_state(noise(4, 3)), Head(**{**vars(head), field: broken}))


def test_states_must_be_finite():
    with pytest.raises(RankCollapseError, match=r"^state: 6 of 6 values are NaN"):
        measure_state(torch.full((2, 3), math.nan))
    with pytest.raises(RankCollapseError, match=r"^reference row: 1 of 3"):
        measure_state(noise(2, 3), reference=torch.tensor([0, math.inf, 0]))


def test_overflowing_scores_are_named():
    huge = Head(1e200 * EYE, 1e200 * EYE, EYE)
    with pytest.raises(RankCollapseError, match=r"^scores: \d of 9 values"):
        measure_head(measure_state(FIRST), huge)


def test_a_token_without_keys_is_named():
    position = torch.zeros(3, 3, dtype=torch.float64)
    position[2] = -math.inf
    with pytest.raises(RankCollapseError, match=r"^token 2 has all its keys masked[^\n]*$"):
        measure_head(measure_state(FIRST), Head(EYE, EYE, EYE, position=position))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_position_terms_must_mask_or_be_finite(bad):
    position = torch.full((3, 3), bad)
    with pytest.raises(RankCollapseError, match=r"^the position term has NaN or \+inf"):
        measure_head(measure_state(FIRST), Head(EYE, EYE, EYE, position=position))


def test_wrong_arguments_are_named():
    with pytest.raises(ValueError, match="unknown reference 'middle': known are mean, median"):
        measure_state(FIRST, reference="middle")
    both = Head(EYE, EYE, EYE, position=EYE, probabilities=EYE)
    with pytest.raises(ValueError, match="not both"):
        measure_head(measure_state(FIRST), both)
