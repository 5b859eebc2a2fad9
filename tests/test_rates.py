import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from rankcollapse import rates
from rankcollapse.rates import ORDER_COLUMNS, RATE_COLUMNS, WORDS, Mean, mean_over, word
from rankcollapse.tables import read_csv, write_csv

FALL = Mean(-1.0, -1.1, -0.9)


def tidy(ratios, *, seed=None, floor=0.0, **names):
    """Rows of one run from ratios [L + 1][B]; what is below the floor has that status."""
    key = {
        "checkpoint": "m",
        "weights": "pretrained" if seed is None else "init",
        "seed": seed,
        "variant": "san",
        "reading": "as-published",
        "text": "wikibio",
        "precision": "float64",
        **names,
    }
    rows = [
        {
            **key,
            "layer": layer,
            "sequence": sequence,
            "measure": "composite_ratio",
            "value": value,
            "status": "below floor" if value < floor else "ok",
        }
        for layer, values in enumerate(ratios)
        for sequence, value in enumerate(values)
    ]
    return pd.DataFrame(rows).astype({"seed": "Int64"})


def follow(step, starts=(0.4, 0.3), layers=5):
    """Ratios [L + 1][B] from r_l = step(r_{l-1})."""
    ratios = [np.array(starts)]
    for _ in range(layers):
        ratios.append(step(ratios[-1]))
    return np.array(ratios)


def test_rates_by_hand():
    found = rates.rates([tidy([[0.9, 0.8], [0.1, 0.01], [1e-3, 1e-4], [1e-9, 1e-12]])])
    assert list(found.columns) == RATE_COLUMNS
    assert found["layer"].tolist() == [1, 2, 3]
    assert found["rate"].tolist() == pytest.approx([np.nan, 2.5, 3.0], nan_ok=True)
    assert found["word"].tolist() == ["not measured", "neither", "cubic"]
    assert found["sequences"].tolist() == [0, 2, 2]
    assert found["factor"][2] == pytest.approx(np.sqrt(1e-6 * 1e-8))
    low, high = stats.ttest_1samp([3.0, 2.0], 0).confidence_interval(0.95)
    assert (found["low"][1], found["high"][1]) == pytest.approx((low, high))


@pytest.mark.parametrize(("constant", "power"), [(0.7, 3), (2.0, 3), (0.3, 1), (0.05, 1)])
def test_the_order_is_free_of_constants(constant, power):
    ratios = follow(lambda r: constant * r**power, layers=4)
    found = rates.orders([tidy(ratios)])
    assert list(found.columns) == ORDER_COLUMNS
    row = found.iloc[0]
    assert row["order"] == pytest.approx(power)
    assert (row["first"], row["last"]) == (1, 4)
    assert row["word"] == ("cubic" if power == 3 else "exponential")
    if power == 1:
        assert row["factor"] == pytest.approx(constant)


@settings(deadline=None, max_examples=40)
@given(
    power=st.floats(0.8, 3.5),
    constant=st.floats(0.05, 0.5),
    starts=st.lists(st.floats(0.05, 0.45), min_size=2, max_size=4),
)
def test_any_power_law_gives_back_its_power(power, constant, starts):
    ratios = follow(lambda r: constant * r**power, starts, layers=3)
    assert rates.orders([tidy(ratios)])["order"][0] == pytest.approx(power, rel=1e-6)


def test_nothing_is_fitted_below_the_floor():
    ratios = [[0.4, 0.3], [0.4**3, 0.3**3], [0.4**9, 1e-9], [5e-16, 3e-16], [5e-16, 4e-16]]
    found = rates.rates([tidy(ratios, floor=1e-8)])
    # At layer 2 one sequence is lost: the other is the slow one and is not taken by itself.
    assert found["word"].tolist() == ["cubic", "not measured", "not measured", "not measured"]
    assert found["rate"].count() == 1
    order = rates.orders([tidy(ratios, floor=1e-8)]).iloc[0]
    assert (order["first"], order["last"], order["word"]) == (1, 1, "not measured")
    assert np.isnan(order["order"])


def test_a_layer_counts_if_half_of_its_sequences_have_begun_to_collapse():
    late = [[0.9, 0.9, 0.4], [0.3, 0.9, 0.1], [0.1, 0.3, 0.01]]
    found = rates.rates([tidy(late)])
    assert found["sequences"].tolist() == [0, 2]
    expected = [np.log(0.1) / np.log(0.3), 2.0]
    assert found["rate"][1] == pytest.approx(np.mean(expected))
    assert found["factor"][1] == pytest.approx(np.sqrt(0.1 / 0.3 * 0.1))


def test_the_most_exact_precision_is_taken_curve_by_curve():
    exact = tidy([[0.4, 0.3], [0.064, 0.027]])
    coarse = tidy([[0.4, 0.3], [0.2, 0.1]], precision="float32")
    other = tidy([[0.4, 0.3], [0.2, 0.15]], precision="float32", variant="transformer")
    found = rates.rates([coarse, exact, other])
    assert found["precision"].tolist() == ["float64", "float32"]
    assert found["variant"].tolist() == ["san", "transformer"]
    assert found["rate"][0] == pytest.approx(3)


def test_other_measures_are_passed_over():
    frame = tidy([[0.4, 0.3], [0.064, 0.027]])
    noise = frame.assign(measure="cosine", value=0.7)
    assert rates.rates([frame, noise]).equals(rates.rates([frame]))


def test_seeds_and_texts_both_widen_the_interval():
    first = tidy(follow(lambda r: r**2.9, layers=1), seed=0)
    second = tidy(follow(lambda r: r**3.1, layers=1), seed=1)
    row = rates.rates([first, second]).iloc[0]
    assert (row["seeds"], row["sequences"]) == (2, 4)
    assert row["rate"] == pytest.approx(3.0)
    # No spread over the texts: Student's interval of the two seeds.
    low, high = stats.ttest_1samp([2.9, 3.1], 0).confidence_interval(0.95)
    assert (row["low"], row["high"]) == pytest.approx((low, high))


def test_mean_over_by_hand():
    values = np.array([[1.0, 2.0, 3.0], [2.0, 4.0, 6.0]])
    found = mean_over(values)
    seeds, texts = 2.0 / 2, (1 / 3 + 4 / 3) / 2  # variances of the mean
    degrees = (seeds + texts) ** 2 / (seeds**2 / 1 + texts**2 / 2)
    half = stats.t.ppf(0.975, degrees) * np.sqrt(seeds + texts)
    assert found == pytest.approx((3.0, 3.0 - half, 3.0 + half))


def test_mean_over_one_seed_is_students_interval():
    values = [1.0, 2.0, 4.0, np.nan]
    low, high = stats.ttest_1samp(values[:3], 0).confidence_interval(0.95)
    assert mean_over(np.array([values])) == pytest.approx((7 / 3, low, high))


def test_one_value_has_no_interval_and_equal_values_a_point():
    assert np.isnan(mean_over(np.array([[2.0]])).low)
    assert mean_over(np.array([[2.0, 2.0], [2.0, 2.0]])) == (2.0, 2.0, 2.0)
    assert rates.rates([tidy([[0.4], [0.064]])])["word"].tolist() == ["not measured"]


def test_the_interval_holds_the_truth_in_at_least_nineteen_of_twenty_cases():
    random = np.random.default_rng(0)
    held = 0
    for _ in range(1000):
        seeds, texts = random.normal(0, 0.5, (6, 1)), random.normal(0, 1, (1, 32))
        found = mean_over(seeds + texts + random.normal(0, 0.3, (6, 32)))
        held += found.low <= 0 <= found.high
    assert 940 <= held <= 995


@pytest.mark.parametrize(
    ("interval", "expected"),
    [
        ((2.9, 3.1), "cubic"),
        ((2.6, 2.74), "between"),
        ((2.6, 2.76), "cubic"),
        ((3.26, 3.3), "neither"),
        ((3.24, 3.3), "cubic"),
        ((1.05, 1.15), "exponential"),
        ((1.24, 1.5), "exponential"),
        ((1.26, 2.7), "between"),
        ((0.5, 0.74), "neither"),
        ((0.5, 0.76), "exponential"),
        ((0.9, 3.1), "neither"),
        ((1.2, 2.8), "neither"),
        ((1.9, 2.9), "neither"),
        ((2.1, 4.9), "cubic"),
        ((2.5, 20.0), "neither"),
        ((0.5, 2.1), "neither"),
        ((np.nan, np.nan), "not measured"),
    ],
)
def test_words(interval, expected):
    assert expected in WORDS
    assert word(Mean(float(np.mean(interval)), *interval), FALL) == expected


def test_a_ratio_that_stays_is_no_exponential_collapse():
    steady = tidy([[0.4, 0.3], [0.41, 0.29], [0.4, 0.3]])
    found = rates.rates([steady])
    assert found["rate"].tolist() == pytest.approx([1, 1], abs=0.05)
    assert found["word"].tolist() == ["no collapse", "no collapse"]


def test_a_ratio_that_grows_is_no_collapse():
    growing = tidy([[0.4, 0.3], [0.6, 0.5]])
    assert rates.rates([growing])["word"].tolist() == ["no collapse"]


def test_few_texts_of_unlike_depth_are_no_reason_against_cubic():
    # log(r_1 / r_0) of these spreads so widely that its interval holds 0.
    frame = tidy([[0.4, 1e-3], [0.064, 1e-9]])
    assert rates.rates([frame])["word"].tolist() == ["cubic"]


def test_a_missing_value_is_no_rate():
    frame = tidy([[0.4, 0.3, 0.2], [0.064, 0.027, 0.008]])
    broken = (frame["layer"] == 1) & (frame["sequence"] == 0)
    frame.loc[broken, ["value", "status"]] = [np.nan, "not finite"]
    row = rates.rates([frame]).iloc[0]
    assert (row["sequences"], row["word"]) == (2, "cubic")


def test_tables_survive_being_written(tmp_path):
    frame = tidy(follow(lambda r: r**3, layers=2), seed=3)
    for table, columns in ((rates.rates, RATE_COLUMNS), (rates.orders, ORDER_COLUMNS)):
        write_csv(tmp_path / "t.csv", table([frame]))
        back = read_csv(tmp_path / "t.csv", columns)
        expected = table([frame]).astype(back.dtypes.to_dict())
        pd.testing.assert_frame_equal(back, expected)
