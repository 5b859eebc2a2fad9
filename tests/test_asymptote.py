import functools
import math

import mpmath
import numpy as np
import pytest

from rankcollapse import asymptote as module
from rankcollapse.asymptote import draw_network, factor_limit
from rankcollapse.relative_tables import ASYMPTOTE_COLUMNS

asymptote = functools.cache(module.asymptote)
CASES = [(heads, seed) for heads in (1, 2) for seed in (0, 1, 2)]


def ratios_in_float64(network, layers):
    """The same network in numpy, written anew."""
    x, ratios = network.x, []
    for _ in range(layers + 1):
        ratios.append(composite(x - x.mean(0)) / composite(x))
        heads = zip(network.scores, network.values, network.term, strict=True)
        x = sum(softmax(x @ q @ x.T / 2 + term) @ x @ value for q, value, term in heads)
    return np.array(ratios)


def softmax(scores):
    weights = np.exp(scores)
    return weights / weights.sum(-1, keepdims=True)


def composite(x):
    return math.sqrt(abs(x).sum(0).max() * abs(x).sum(1).max())


@pytest.mark.parametrize(("heads", "seed"), CASES)
@pytest.mark.parametrize("scale", [0.0, 1.0])
def test_above_the_floor_it_is_the_network_in_float64(heads, seed, scale):
    found = 10 ** asymptote(heads=heads, scale=scale, seed=seed)["log10_ratio"].to_numpy()
    expected = ratios_in_float64(draw_network(heads=heads, scale=scale, seed=seed), 8)
    above = expected[: len(found)] > 1e-11
    np.testing.assert_allclose(found[: len(above)][above], expected[: len(found)][above], 1e-4)
    assert above.sum() >= 3


@pytest.mark.parametrize(("heads", "seed"), CASES)
def test_pure_attention_tends_to_rate_three_below_sixty_decades(heads, seed):
    found = asymptote(heads=heads, seed=seed)
    assert list(found.columns) == ASYMPTOTE_COLUMNS
    assert found["layer"].tolist() == list(range(len(found)))
    deep = found[found["log10_ratio"] < -60]
    assert len(deep) >= 2
    assert deep["rate"].to_numpy() == pytest.approx(3, abs=0.1)
    off = (deep["rate"] - 3).abs().to_numpy()
    assert off[-1] < off[0]
    assert off[-1] < 0.04


@pytest.mark.parametrize(("heads", "seed"), CASES)
def test_the_bound_holds_and_comes_within_a_few_decades(heads, seed):
    found = asymptote(heads=heads, seed=seed).iloc[1:]
    margin = found["bound_log10"] - found["log10_ratio"]
    assert (margin >= 0).all()
    assert (margin < 5).all()


def test_more_digits_change_nothing():
    few, many = (asymptote(heads=1, limit=limit) for limit in (100, 400))
    common = few["log10_ratio"].to_numpy()
    np.testing.assert_allclose(many["log10_ratio"][: len(common)], common, rtol=1e-14)
    assert len(many) > len(common)


@pytest.mark.parametrize(("heads", "seed"), CASES)
def test_a_relative_term_makes_it_exponential_at_the_limit(heads, seed):
    found = asymptote(heads=heads, scale=1.0, seed=seed)
    assert len(found) == 61
    assert found["rate"].iloc[-1] == pytest.approx(1, abs=0.06)
    logs = found["log10_ratio"].to_numpy()
    assert 10 ** ((logs[60] - logs[30]) / 30) == pytest.approx(found["limit"][0], rel=0.05)
    assert found["bound_log10"].isna().all()


@pytest.mark.parametrize("seed", range(6))
def test_of_one_head_the_limit_is_the_second_eigenvalue_and_at_most_tau(seed):
    network = draw_network(heads=1, scale=1.0, seed=seed)
    attention = softmax(network.term[0])
    second = np.sort(abs(np.linalg.eigvals(attention)))[-2]
    assert factor_limit(network) == pytest.approx(second)
    tau = asymptote(heads=1, scale=1.0, seed=seed, limit=1)["tau"][0]
    pairs = [abs(a - b).sum() / 2 for a in attention for b in attention]
    assert tau == pytest.approx(max(pairs))
    assert second <= tau


def test_the_term_depends_on_the_offset_alone_and_the_rest_not_on_its_scale():
    one, none = (draw_network(heads=2, scale=scale, seed=5) for scale in (1.0, 0.0))
    half = draw_network(heads=2, scale=0.5, seed=5)
    assert not none.term.any()
    np.testing.assert_array_equal(half.term * 2, one.term)
    for term in one.term:
        assert all(len(set(np.diagonal(term, offset))) == 1 for offset in range(-3, 4))
        assert len(set(term.ravel())) == 7
    for name in ("x", "scores", "values"):
        np.testing.assert_array_equal(getattr(one, name), getattr(none, name))
    assert abs(np.linalg.eigvals(one.values.sum(0))).max() == pytest.approx(1)


def test_a_stronger_term_is_slower():
    last = [asymptote(heads=1, scale=scale)["limit"][0] for scale in (0.25, 0.5, 1.0)]
    assert last == sorted(last)
    assert last[0] < last[2] / 2


def test_it_is_deterministic_and_leaves_the_precision_alone():
    before = mpmath.mp.dps
    first, second = (module.asymptote(heads=2, scale=0.5, limit=5) for _ in range(2))
    assert first.equals(second)
    assert mpmath.mp.dps == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"heads": 0}, "heads is 0"),
        ({"heads": 1, "scale": -1.0}, "scale -1.0"),
        ({"heads": 1, "scale": math.nan}, "scale nan"),
        ({"heads": 1, "limit": 0}, "at least 1 decade"),
    ],
)
def test_wrong_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        asymptote(**arguments)
