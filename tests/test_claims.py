import numpy as np
import pandas as pd
import pytest
from scipy import stats
from task_fixtures import circle, curve, line, scores

from rankcollapse.claims import (
    C6_PATHS,
    VERDICTS,
    difference_interval,
    judge,
    mean_interval,
    share_interval,
    write_claims,
)
from rankcollapse.tables import TableError, read_csv, write_csv
from rankcollapse.task_tables import CIRCLE_COLUMNS, CLAIM_COLUMNS, SCORE_COLUMNS

NO_CIRCLE = pd.DataFrame(columns=CIRCLE_COLUMNS)
NO_SCORES = pd.DataFrame(columns=SCORE_COLUMNS)
SORTING = "as-published, 65 epochs"


def claim(claims, name, control="published", task="sorting"):
    chosen = claims["claim"].str.startswith(name)
    chosen &= (claims["control"] == control) & (claims["task"] == task)
    (row,) = claims[chosen].to_dict("records")
    return row


def judged(*frames):
    return judge(pd.concat(frames), NO_CIRCLE)


# Lengths 1 to 3 minus 4 to 6: 0.1 and 0.3. By hand: mean 0.2, s = 0.141421, t(1) = 12.706205,
# half width 12.706205 * 0.141421 / sqrt(2) = 1.2706205.
def test_c6_interval_by_hand():
    first = curve([0.9, 0.3, 0.2, 0.1, 0.1, 0.1, 0.1], seed=0)
    second = curve([0.0, 0.5, 0.4, 0.3, 0.1, 0.1, 0.1], seed=1)
    row = claim(judged(first, second), f"C6, {SORTING}")
    assert row["effect"] == pytest.approx(0.2)
    assert row["low"] == pytest.approx(0.2 - 1.2706205)
    assert row["high"] == pytest.approx(0.2 + 1.2706205)
    assert row["seeds"] == 2
    assert row["verdict"] == "not supported"
    assert "lengths 1 to 3 minus that of 4 to 6, 20 paths; 95 % t interval" in row["rule"]


def test_the_three_verdicts():
    claims = judged(scores(seeds=range(8)))
    assert claim(claims, "C6")["verdict"] == "supported"
    assert claim(claims, "C6", "frozen")["verdict"] == "supported"
    assert claim(claims, "C6", "residual_kept")["verdict"] == "opposite"
    flat = [curve([0.3] * 4 + [0.3 + shift] * 3, seed=seed) for seed, shift in enumerate((-1, 1))]
    assert claim(judged(*flat), "C6")["verdict"] == "not supported"


def test_a_curve_that_does_not_move_at_all_is_not_supported():
    row = claim(judged(curve([0.5] * 7, seed=0), curve([0.5] * 7, seed=1)), "C6")
    assert (row["effect"], row["low"], row["high"]) == (0, 0, 0)
    assert row["verdict"] == "not supported"


def test_one_seed_has_an_effect_and_no_interval():
    row = claim(judged(curve([0.3, 0.5, 0.4, 0.3, 0.2, 0.1, 0.0])), "C6")
    assert row["effect"] == pytest.approx(0.3)
    assert np.isnan([row["low"], row["high"]]).all()
    assert (row["seeds"], row["verdict"]) == (1, "one seed")


def test_only_the_paths_that_the_rule_names_count():
    wrong = [0, 0, 0, 0, 1, 1, 1]
    frames = [curve([0, 1, 1, 1, 0, 0, 0]), curve(wrong, paths="5"), curve(wrong, paths="all")]
    frames += [
        curve([0, 1, 1, 1, 0, 0, 0], control="frozen", paths="only"),
        curve(wrong, control="frozen_cumulative", paths="up_to"),
        curve(wrong, control="frozen_cumulative", paths="without"),
    ]
    claims = judged(*frames)
    assert claim(claims, "C6")["effect"] == 1
    assert claim(claims, "C6", "frozen")["effect"] == 1


def test_a_seed_without_all_lengths_does_not_count():
    whole = [curve([0, 1, 1, 1, 0, 0, 0], seed=seed) for seed in (0, 1)]
    row = claim(judged(*whole, curve([0, 1, 1, 1, 0, 0], seed=2)), "C6")
    assert row["seeds"] == 2


def test_networks_of_another_shape_do_not_count():
    shown = curve([0, 1, 1, 1, 0, 0, 0])
    other = curve([0, 0, 0, 0, 1, 1, 1], shape=(2, 12, 34))
    assert claim(judged(shown, other), "C6")["effect"] == 1


def test_readings_and_epochs_are_claims_of_their_own():
    claims = judged(
        curve([0, 1, 1, 1, 0, 0, 0]),
        curve([0, 0, 0, 0, 1, 1, 1], reading="as-described", epochs=650),
    )
    assert claim(claims, f"C6, {SORTING}")["effect"] == 1
    assert claim(claims, "C6, as-described, 650 epochs")["effect"] == -1


def test_layer_drop_is_named_by_its_own_epochs():
    falling = [0, 1, 1, 1, 0, 0, 0]
    claims = judged(curve(falling), curve(falling, control="layer_drop", epochs=200))
    assert claim(claims, "C6", "layer_drop")["claim"] == "C6, as-published, 200 epochs"
    assert claim(claims, "C6", "pure")["claim"] == "C6, as-published"


def test_without_any_run_everything_is_listed_as_not_measured():
    claims = judge(NO_SCORES, NO_CIRCLE)
    assert list(claims.columns) == CLAIM_COLUMNS
    assert set(claims["verdict"]) == {"not measured"}
    assert claims["effect"].isna().all()
    assert len(claims) == 2 * 3 + 3 * (len(C6_PATHS) + 2)
    assert set(claims["task"]) == {"circle", "sorting", "convex_hull", "memorization"}


def test_all_verdicts_are_known():
    claims = judge(scores(task="convex_hull"), circle())
    assert set(claims["verdict"]) <= set(VERDICTS)


def test_a_seed_given_twice_is_refused():
    with pytest.raises(TableError, match="seed 0 occurs twice"):
        judged(curve([0.1] * 7), curve([0.1] * 7))


def cause(seed, *, reread, published, trivial, shuffled=None):
    frames = [
        curve([0.9] * 4 + [reread] * 3, control="reread", seed=seed),
        curve([0.9] * 4 + [published] * 3, seed=seed),
        line(trivial, control="trivial", seed=seed),
    ]
    if shuffled is not None:
        labels = [0.9] * 4 + [shuffled] * 3
        frames.append(curve(labels, control="reread", paths="shuffled", seed=seed))
    return pd.concat(frames)


def test_what_can_be_read_again_was_not_lost():
    first = cause(0, reread=0.50, published=0.10, trivial=0.35)
    second = cause(1, reread=0.52, published=0.11, trivial=0.35)
    claims = judged(first, second)
    kept = claim(claims, "information kept", "reread")
    assert kept["effect"] == pytest.approx(0.16)
    assert kept["verdict"] == "supported"
    assert "trivial predictor" in kept["rule"]
    shifted = claim(claims, "shifted inputs", "reread")
    assert shifted["effect"] == pytest.approx(0.405)
    assert shifted["verdict"] == "supported"


def test_what_cannot_be_read_again_is_opposite():
    runs = [cause(seed, reread=0.1 + 0.01 * seed, published=0.1, trivial=0.35) for seed in (0, 1)]
    assert claim(judged(*runs), "information kept", "reread")["verdict"] == "opposite"
    assert claim(judged(*runs), "shifted inputs", "reread")["verdict"] == "not supported"


def test_shuffled_labels_are_the_base_where_they_are_better():
    runs = [
        cause(0, reread=0.7, published=0.5, trivial=0.6, shuffled=0.66),
        cause(1, reread=0.7, published=0.5, trivial=0.6, shuffled=0.54),
    ]
    row = claim(judged(*runs), "information kept", "reread")
    assert row["effect"] == pytest.approx((0.04 + 0.10) / 2)
    assert "shuffled labels" in row["rule"]


# Newcombe 1998, table II: 56/70 and 48/80 give 0.2 (0.0524 to 0.3339) by method 10.
def test_newcombe_interval_of_the_literature():
    runs = [
        ("as-published", variant, 32, seed, 0.1, seed < collapsed, 0.1)
        for variant, collapsed, count in (("san", 56, 70), ("san_skip", 48, 80))
        for seed in range(count)
    ]
    claims = judge(NO_SCORES, pd.DataFrame(runs, columns=CIRCLE_COLUMNS))
    row = claim(claims, "C5, as-published", "san_skip", "circle")
    assert row["effect"] == pytest.approx(0.2)
    assert row["low"] == pytest.approx(0.0524, abs=5e-5)
    assert row["high"] == pytest.approx(0.3339, abs=5e-5)
    assert row["verdict"] == "supported"
    assert row["seeds"] == 70


def test_c5_pools_the_widths_and_keeps_the_readings_apart():
    runs = pd.concat(
        [circle(readings=["as-published"]), circle(readings=["as-described"], shares={"san": 0})]
    )
    claims = judge(NO_SCORES, runs)
    published = claim(claims, "C5, as-published", "san", "circle")
    assert published["effect"] == pytest.approx(0.75 - 0.5)
    low, high = stats.binomtest(18, 24).proportion_ci(method="wilson")
    assert (published["low"], published["high"]) == pytest.approx((low - 0.5, high - 0.5))
    assert published["seeds"] == 12
    assert claim(claims, "C5, as-described", "san", "circle")["verdict"] == "opposite"
    mlp = claim(claims, "C5, as-described", "san_mlp", "circle")
    assert mlp["effect"] == pytest.approx(-0.25)
    assert mlp["verdict"] == "opposite"


def test_c5_claims_no_interval_from_one_seed():
    claims = judge(NO_SCORES, circle(seeds=1))
    row = claim(claims, "C5, as-published", "san_skip", "circle")
    assert (row["effect"], row["verdict"]) == (1, "one seed")
    assert np.isnan(row["low"])


@pytest.mark.parametrize(("count", "runs"), [(0, 12), (5, 12), (12, 12), (1, 1), (30, 72)])
def test_share_interval_is_that_of_scipy(count, runs):
    expected = stats.binomtest(count, runs).proportion_ci(method="wilson")
    assert share_interval(count, runs) == pytest.approx(tuple(expected), abs=1e-12)


def test_share_interval_takes_many_counts():
    low, high = share_interval(np.arange(13), 12)
    assert (np.diff(low) > 0).all()
    assert (np.diff(high) > 0).all()
    assert low[5] == pytest.approx(share_interval(5, 12)[0])


def test_mean_interval_is_that_of_scipy():
    values = [0.1, 0.4, 0.2, 0.3]
    expected = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    assert mean_interval(values) == pytest.approx(tuple(expected))


def simulated(*, seeds, fall, repeats, noise, random):
    """Return the verdicts on curves that fall by `fall` from short paths to long ones."""
    verdicts = []
    for _ in range(repeats):
        level = random.normal(0.3, 0.03, (seeds, 1))
        means = level + noise((seeds, 7)) + np.where(np.arange(7) > 3, 0.0, fall)
        tokens = random.binomial(1600, means.clip(0, 1)) / 1600
        frames = [curve(values, seed=seed) for seed, values in enumerate(tokens)]
        verdicts.append(claim(judged(*frames), "C6")["verdict"])
    return pd.Series(verdicts)


def simulate_differences(*, seeds, fall=0.0, repeats=4000, noise=None):
    """Return how often the interval of the same curves lies above 0 and below it."""
    random = np.random.default_rng(3)
    level = random.normal(0.3, 0.03, (repeats, seeds, 1))
    spread = random.normal(0, 0.03, (repeats, seeds, 6)) if noise is None else noise(random)
    tokens = random.binomial(1600, (level + spread).clip(0, 1)) / 1600
    values = tokens[..., :3].mean(-1) - tokens[..., 3:].mean(-1) + fall
    ends = np.array([mean_interval(row) for row in values])
    return (ends[:, 0] > 0).mean(), (ends[:, 1] < 0).mean()


@pytest.mark.parametrize("seeds", [2, 4, 8, 16])
def test_one_flat_curve_in_twenty_is_judged_to_rise_or_to_fall(seeds):
    supported, opposite = simulate_differences(seeds=seeds)
    assert 0.017 < supported < 0.034
    assert 0.017 < opposite < 0.034


def test_a_skewed_spread_keeps_the_error_rate_near_five_percent():
    def skewed(random):
        spread = random.exponential(0.03, (4000, 8, 6)) - 0.03
        return spread * np.array([1, 1, 1, 0.2, 0.2, 0.2])

    supported, opposite = simulate_differences(seeds=8, noise=skewed)
    assert 0.04 < supported + opposite < 0.07
    assert supported < opposite


@pytest.mark.parametrize(("seeds", "power"), [(2, 0.17), (4, 0.72), (8, 0.995)])
def test_power_against_a_fall_of_a_twentieth(seeds, power):
    supported, _ = simulate_differences(seeds=seeds, fall=0.05)
    assert supported == pytest.approx(power, abs=0.025)


def test_the_simulated_rule_is_the_one_that_judges():
    random = np.random.default_rng(5)
    options = {"repeats": 20, "noise": lambda size: random.normal(0, 0.03, size), "random": random}
    steep = simulated(seeds=8, fall=0.1, **options)
    assert (steep == "supported").all()
    rising = simulated(seeds=8, fall=-0.1, **options)
    assert (rising == "opposite").all()
    flat = simulated(seeds=8, fall=0.0, **options)
    assert (flat == "not supported").mean() >= 0.8


def judged_different(share, other, runs):
    """Return the exact probability that an interval of two shares lies above 0, and below it."""
    counts = range(runs + 1)
    weights = np.outer(stats.binom.pmf(counts, runs, share), stats.binom.pmf(counts, runs, other))
    ends = np.array(
        [[difference_interval((a, runs), (b, runs))[1:] for b in counts] for a in counts]
    )
    return weights[ends[..., 0] > 0].sum(), weights[ends[..., 1] < 0].sum()


@pytest.mark.parametrize(("runs", "largest"), [(12, 0.064), (36, 0.054), (72, 0.056)])
def test_equal_shares_are_seldom_judged_different(runs, largest):
    rates = [sum(judged_different(share, share, runs)) for share in np.linspace(0.05, 0.95, 19)]
    assert max(rates) == pytest.approx(largest, abs=0.002)
    assert min(rates) < 0.035


@pytest.mark.parametrize(("runs", "power"), [(12, 0.60), (36, 0.98)])
def test_power_against_shares_of_a_half_and_a_tenth(runs, power):
    assert judged_different(0.5, 0.1, runs)[0] == pytest.approx(power, abs=0.01)


@pytest.mark.parametrize(("runs", "rate"), [(12, 0.039), (36, 0.065), (72, 0.044)])
def test_a_share_of_one_half_is_seldom_judged_another(runs, rate):
    low, high = share_interval(np.arange(runs + 1), runs)
    weights = stats.binom.pmf(np.arange(runs + 1), runs, 0.5)
    assert weights[(low > 0.5) | (high < 0.5)].sum() == pytest.approx(rate, abs=0.001)


def test_the_claims_are_written_and_read_back(tmp_path):
    paths = [tmp_path / "sorting.csv", tmp_path / "hull.csv"]
    write_csv(paths[0], scores())
    write_csv(paths[1], scores(task="convex_hull", seeds=(0,)))
    write_csv(tmp_path / "circle.csv", circle())
    output = tmp_path / "claims.csv"
    claims = write_claims(paths, tmp_path / "circle.csv", output)
    read = read_csv(output, CLAIM_COLUMNS)
    assert read["verdict"].tolist() == claims["verdict"].tolist()
    np.testing.assert_allclose(read["effect"], claims["effect"], rtol=1e-7)
    assert claim(read, "C6", task="convex_hull")["verdict"] == "one seed"
    assert {path.name for path in tmp_path.iterdir()} == {
        "sorting.csv",
        "hull.csv",
        "circle.csv",
        "claims.csv",
    }


def test_a_missing_table_is_one_line(tmp_path):
    write_csv(tmp_path / "circle.csv", circle())
    with pytest.raises(TableError, match="no such table") as caught:
        write_claims([tmp_path / "none.csv"], tmp_path / "circle.csv", tmp_path / "claims.csv")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "claims.csv").exists()
