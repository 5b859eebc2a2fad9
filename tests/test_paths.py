from fractions import Fraction
from itertools import product
from math import comb

import numpy as np
import pytest

from rankcollapse.paths import SmallSan, forward, path_length_proportions, path_terms, random_san

SKIP = (None, 0, 1)


def small(layers=3, seed=0):
    return random_san(layers=layers, heads=2, tokens=5, features=4, seed=seed)


@pytest.mark.parametrize(("heads", "layers"), [(1, 1), (1, 4), (2, 3), (3, 4), (4, 5)])
def test_proportions_equal_those_of_all_paths_counted_one_by_one(heads, layers):
    counts = np.zeros(layers + 1)
    for path in product(range(heads + 1), repeat=layers):
        counts[sum(choice > 0 for choice in path)] += 1
    expected = counts / counts.sum()
    np.testing.assert_allclose(path_length_proportions(heads, layers), expected, rtol=1e-13)


@pytest.mark.parametrize(("heads", "layers"), [(12, 12), (128, 24), (96, 96)])
def test_proportions_of_real_architectures_equal_exact_fractions(heads, layers):
    proportions = path_length_proportions(heads, layers)
    exact = [
        float(Fraction(comb(layers, k) * heads**k, (1 + heads) ** layers))
        for k in range(layers + 1)
    ]
    np.testing.assert_allclose(proportions, exact, rtol=2e-12)
    assert proportions.sum() == pytest.approx(1, abs=1e-12)
    assert proportions.dtype == np.float64


def test_proportions_of_a_network_too_large_to_count_sum_to_one():
    assert path_length_proportions(1000, 2000).sum() == pytest.approx(1, abs=1e-9)


@pytest.mark.parametrize(("heads", "layers"), [(0, 3), (3, 0), (-1, 3)])
def test_a_network_without_heads_or_layers_is_an_error(heads, layers):
    with pytest.raises(ValueError, match=f"got {heads} heads and {layers} layers"):
        path_length_proportions(heads, layers)


def test_random_san_is_given_by_its_seed():
    first, x = small(seed=1)
    again, same = small(seed=1)
    _, different = small(seed=2)
    assert first.query.shape == first.key.shape == first.value.shape == (3, 2, 4, 4)
    assert x.shape == (5, 4)
    np.testing.assert_array_equal(first.value, again.value)
    np.testing.assert_array_equal(x, same)
    assert not np.array_equal(x, different)


def test_forward_of_one_head_by_hand():
    # D = 1, W_Q = W_K = 1, W = 10: the scores of the tokens 0 and s are [[0, 0], [0, s^2]].
    token = np.sqrt(np.log(3))
    one = np.ones((1, 1, 1, 1))
    san = SmallSan(query=one, key=one, value=10 * one)
    x = np.array([[0.0], [token]])
    probabilities, output = forward(san, x, skip=False)
    np.testing.assert_allclose(probabilities[0, 0], [[1 / 2, 1 / 2], [1 / 4, 3 / 4]])
    np.testing.assert_allclose(output, [[5 * token], [7.5 * token]])
    _, with_skip = forward(san, x, skip=True)
    np.testing.assert_allclose(with_skip, [[5 * token], [8.5 * token]])


def test_forward_divides_the_scores_by_the_root_of_the_width():
    eye = np.eye(4)[None, None]
    x = np.diag([0.0, np.sqrt(2 * np.log(3)), 0, 0])  # one score: 2 log 3 / sqrt(4)
    probabilities, _ = forward(SmallSan(eye, eye, eye), x, skip=False)
    np.testing.assert_allclose(probabilities[0, 0, 1], [1 / 6, 1 / 2, 1 / 6, 1 / 6])


def test_large_scores_do_not_overflow():
    san, x = small()
    probabilities, output = forward(san, 1e3 * x, skip=True)
    np.testing.assert_allclose(probabilities.sum(-1), 1)
    assert np.isfinite(output).all()


@pytest.mark.parametrize("skip", [True, False])
@pytest.mark.parametrize("layers", [1, 2, 4])
def test_terms_sum_to_the_output(layers, skip):
    san, x = small(layers)
    _, output = forward(san, x, skip=skip)
    total = sum(path.term for path in path_terms(san, x, skip=skip))
    np.testing.assert_allclose(total, output, atol=1e-12 * np.abs(output).max(), rtol=0)


def test_each_term_is_the_product_along_its_path():
    san, x = small()
    probabilities, _ = forward(san, x, skip=True)
    paths = path_terms(san, x, skip=True)
    assert [path.heads for path in paths] == list(product(SKIP, repeat=3))
    for path in paths:
        left, right = np.eye(5), np.eye(4)
        for layer, head in enumerate(path.heads):
            if head is not None:
                left = probabilities[layer, head] @ left
                right = right @ san.value[layer, head]
        np.testing.assert_allclose(path.term, left @ x @ right, atol=1e-13)


def test_lengths_are_counted_by_binomials():
    san, x = small()
    lengths = [path.length for path in path_terms(san, x, skip=True)]
    assert [lengths.count(k) for k in range(4)] == [comb(3, k) * 2**k for k in range(4)]
    np.testing.assert_allclose(np.bincount(lengths) / 27, path_length_proportions(2, 3))


def test_without_skip_every_path_takes_a_head_in_each_layer():
    san, x = small()
    paths = path_terms(san, x, skip=False)
    assert [path.heads for path in paths] == list(product((0, 1), repeat=3))
    assert {path.length for path in paths} == {3}


def test_the_path_that_passes_all_layers_by_is_the_input():
    san, x = small()
    (shortest,) = [path for path in path_terms(san, x, skip=True) if path.length == 0]
    np.testing.assert_array_equal(shortest.term, x)


def test_identical_tokens_stay_identical_along_every_path():
    san, x = small()
    same = np.repeat(x[:1], 5, axis=0)
    for path in path_terms(san, same, skip=True):
        np.testing.assert_allclose(path.term, path.term[:1].repeat(5, axis=0), atol=1e-13)
