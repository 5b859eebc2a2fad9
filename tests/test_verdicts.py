import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from rankcollapse.precision import precision_floor
from rankcollapse.published import PublishedError, read_figure2
from rankcollapse.tables import CURVE_COLUMNS, TableError, read_csv, write_csv
from rankcollapse.verdicts import (
    COLUMNS,
    VERDICTS,
    judge,
    summarise,
    totals,
    write_verdicts,
)

FIGURE2 = Path(__file__).parents[1] / "data" / "published" / "figure2.csv"
FLOOR = precision_floor("float32")
BERT = ("bert-base-cased", "init", "transformer")


def curve_rows(**columns):
    """Rows of the curve table, with the setting that is compared unless told otherwise."""
    setting = {
        "checkpoint": BERT[0],
        "weights": BERT[1],
        "seed": pd.NA,
        "variant": BERT[2],
        "reading": "as-published",
        "text": "wikibio",
        "precision": "float32",
        "layer": 0,
        "measure": "composite_ratio",
        "sequences": 32,
        "below_floor": 0,
        "missing": 0,
    }
    given = pd.DataFrame(columns)
    frame = given.assign(**{name: x for name, x in setting.items() if name not in given})
    return frame[CURVE_COLUMNS].astype({"seed": "Int64"})


def seeds(means, stds, **columns):
    return curve_rows(seed=range(len(means)), mean=means, std=stds, **columns)


def point(mean, std=0.01, weights="init", layer=0):
    return pd.DataFrame(
        [(BERT[0], weights, BERT[2], layer, mean, std)],
        columns=["model", "weights", "variant", "layer", "mean", "std"],
    )


def verdict(curves, published, **options):
    frame = judge(curves, published, **options)
    assert len(frame) == 1
    return frame.iloc[0]


# The spread over seeds: var(y) = 0.01; over texts: 40 % of each mean. By hand, n = 32 and S = 3:
# Var = 0.01 * 4/3 + 0.16 * 2/32 = 0.0233333, degrees = Var^2 / (0.0133333^2/2 + 0.01^2/31)
# = 5.910494, t = 2.455905, half width 0.375143 on the log scale.
MEANS = 0.5 * np.exp([-0.1, 0.0, 0.1])
THREE_SEEDS = seeds(MEANS, 0.4 * MEANS)


def test_prediction_interval_by_hand():
    row = verdict(THREE_SEEDS, point(0.5))
    assert row["measured_mean"] == pytest.approx(0.5)
    assert row["measured_low"] == pytest.approx(0.5 * np.exp(-0.375143), rel=1e-5)
    assert row["measured_high"] == pytest.approx(0.5 * np.exp(0.375143), rel=1e-5)
    assert stats.t.ppf(0.975, 6) < 0.375143 / np.sqrt(0.0233333) < stats.t.ppf(0.975, 5)


@pytest.mark.parametrize(
    ("published", "expected", "reason"),
    [
        (0.727, "reproduced", "inside the 95 % prediction interval of 3 seeds"),
        (0.344, "reproduced", "inside the 95 % prediction interval of 3 seeds"),
        (0.729, "not reproduced", "above the 95 % prediction interval of 3 seeds: 2.47 standard"),
        (0.343, "not reproduced", "below the 95 % prediction interval of 3 seeds: 2.47 standard"),
    ],
)
def test_a_point_is_reproduced_if_and_only_if_it_lies_inside(published, expected, reason):
    row = verdict(THREE_SEEDS, point(published))
    assert row["verdict"] == expected
    assert row["reason"].startswith(reason)


def test_fewer_texts_widen_the_interval():
    few = seeds(MEANS, 0.4 * MEANS, sequences=4)
    # Var = 0.0133333 + 0.16 * (1/4 + 1/32) = 0.0583333
    # degrees = Var^2 / (0.0133333^2/2 + 0.045^2/3) = 4.454545
    half = stats.t.ppf(0.975, 4.454545) * np.sqrt(0.0583333)
    assert verdict(few, point(0.5))["measured_high"] == pytest.approx(0.5 * np.exp(half), rel=1e-5)


def test_welch_interval_by_hand():
    ours = curve_rows(mean=[0.5], std=[0.08], weights="pretrained")
    # error^2 = 0.08^2/32 + 0.06^2/32 = 3.125e-4; degrees = 31 * (64 + 36)^2 / (64^2 + 36^2)
    half = stats.t.ppf(0.975, 31 * 100**2 / (64**2 + 36**2)) * np.sqrt(3.125e-4)
    inside = verdict(ours, point(0.5 + 0.99 * half, 0.06, "pretrained"))
    assert inside["verdict"] == "reproduced"
    assert inside["measured_mean"] == 0.5
    assert inside["measured_low"] == pytest.approx(0.5 - half)
    assert inside["measured_high"] == pytest.approx(0.5 + half)
    outside = verdict(ours, point(0.5 + 1.01 * half, 0.06, "pretrained"))
    assert outside["verdict"] == "not reproduced"
    assert outside["reason"].startswith("above the 95 % interval: 2.02 standard errors")


def test_a_published_value_below_the_floor_is_never_compared():
    for curves in (THREE_SEEDS, THREE_SEEDS[:0]):
        row = verdict(curves, point(0.99 * FLOOR))
        assert row["verdict"] == "below precision floor"
        assert "not compared" in row["reason"]
    assert verdict(seeds([2e-7] * 3, [1e-8] * 3), point(2e-7))["measured_mean"] == pytest.approx(
        2e-7
    )


@pytest.mark.parametrize(("centre", "high"), [(3e-7, FLOOR), (2e-6, 2e-6 * np.exp(0.375143))])
def test_an_interval_that_reaches_below_the_floor_ends_at_least_there(centre, high):
    means = centre * np.exp([-0.1, 0.0, 0.1])
    row = verdict(seeds(means, 0.4 * means), point(0.5))
    assert row["verdict"] == "not reproduced"
    assert row["measured_low"] == pytest.approx(centre * np.exp(-0.375143), rel=1e-5)
    assert row["measured_high"] == pytest.approx(high, rel=1e-5)


@pytest.mark.parametrize(
    "curves",
    [
        THREE_SEEDS[:0],
        THREE_SEEDS[:2],
        seeds([*MEANS[:2], np.nan], 0.4 * MEANS),
        seeds([*MEANS[:2], np.inf], 0.4 * MEANS),
        seeds(MEANS, [0.1, 0.1, np.nan]),
        seeds(MEANS, 0.4 * MEANS, layer=1),
        seeds(MEANS, 0.4 * MEANS, sequences=1),
        THREE_SEEDS.assign(reading="as-described"),
        THREE_SEEDS.assign(precision="float64"),
        THREE_SEEDS.assign(measure="cosine"),
        THREE_SEEDS.assign(text="plain"),
        THREE_SEEDS.assign(checkpoint="all-minilm-l6-v2"),
    ],
)
def test_without_three_usable_seeds_of_the_compared_setting_nothing_is_measured(curves):
    row = verdict(curves, point(0.5))
    assert row["verdict"] == "not measured"
    assert "`make paper`" in row["reason"]
    assert row[["measured_mean", "measured_low", "measured_high"]].isna().all()


def test_seeds_say_nothing_about_pretrained_weights():
    row = verdict(THREE_SEEDS, point(0.5, weights="pretrained"))
    assert row["verdict"] == "not measured"
    assert row["reason"] == "0 usable runs of at least 1: `make paper` measures this curve"


def test_the_other_text_can_stand_for_the_published_one():
    plain = THREE_SEEDS.assign(text="plain")
    assert verdict(plain, point(0.5), text="plain")["verdict"] == "reproduced"
    with pytest.raises(ValueError, match=r"unknown text 'wikibo': .*did you mean 'wikibio'"):
        judge(plain, point(0.5), text="wikibo")


def test_without_any_spread_only_the_value_itself_reproduces():
    same = seeds([0.5] * 3, [0.0] * 3)
    for published, expected in ((0.5, "reproduced"), (0.51, "not reproduced")):
        curves = curve_rows(mean=[0.5], std=[0.0], weights="pretrained")
        row = verdict(curves, point(published, 0.0, "pretrained"))
        assert row["verdict"] == expected
    row = verdict(same, point(0.51))
    assert row["verdict"] == "not reproduced"
    assert row["measured_low"] == pytest.approx(0.5)
    assert "inf standard errors" in row["reason"]
    summary = summarise(judge(same, point(0.51)), same)
    assert summary["p_value"].item() == pytest.approx(1 / 4001)


def test_a_mean_of_zero_is_a_value_below_the_floor():
    row = verdict(seeds([0.0] * 4, [0.0] * 4), point(0.5))
    assert row["verdict"] == "not reproduced"
    assert row["measured_high"] == FLOOR


def simulated(points, count, *, seed_sd, text_sd, shift=0.0, correlation=0.0, layers=1):
    """Log-normal seeds and texts: our curves and published points from the same distribution.

    The layers of a curve are a stationary sequence of the given lag-one correlation; the shift is
    in standard deviations of one published draw.
    """
    rng = np.random.default_rng(7)
    curves = points // layers

    def moving_together(*shape):
        noise = rng.standard_normal((curves, *shape, layers))
        for layer in range(1, layers):
            fresh = np.sqrt(1 - correlation**2) * noise[..., layer]
            noise[..., layer] = correlation * noise[..., layer - 1] + fresh
        return noise

    def ratios(drawn):  # [curve, seed, text, layer]
        texts = text_sd * moving_together(1, 32)
        return 0.3 * np.exp(seed_sd * drawn[:, :, None, :] + texts)

    ours, theirs = ratios(moving_together(count)), ratios(moving_together(1))
    deviation = np.sqrt(seed_sd**2 + text_sd**2 / 32)
    names = [f"model-{i}" for i in range(curves)]
    layer = np.tile(np.arange(layers), curves)
    measured = curve_rows(
        checkpoint=np.repeat(names, count * layers),
        seed=np.tile(np.repeat(np.arange(count), layers), curves),
        layer=np.tile(layer, count),
        mean=ours.mean(2).ravel(),
        std=ours.std(2, ddof=1).ravel(),
    )
    published = pd.DataFrame(
        {
            "model": np.repeat(names, layers),
            "weights": "init",
            "variant": BERT[2],
            "layer": layer,
            "mean": theirs.mean(2).ravel() * np.exp(shift * deviation),
            "std": theirs.std(2, ddof=1).ravel(),
        }
    )
    return measured, published


@pytest.mark.parametrize(
    ("seed_sd", "text_sd"), [(0.05, 0.1), (0.05, 0.3), (0.3, 0.1), (0.01, 0.3)]
)
def test_one_right_point_in_twenty_fails(seed_sd, text_sd):
    curves, published = simulated(3000, 6, seed_sd=seed_sd, text_sd=text_sd)
    share = (judge(curves, published)["verdict"] == "not reproduced").mean()
    assert share == pytest.approx(0.05, abs=0.016)  # four Monte-Carlo errors


def test_with_three_seeds_the_error_rate_is_still_below_a_tenth():
    # The worst case of Welch's approximation: a text error of a quarter of the spread over seeds.
    curves, published = simulated(3000, 3, seed_sd=0.1, text_sd=0.025 * np.sqrt(32))
    share = (judge(curves, published)["verdict"] == "not reproduced").mean()
    assert share == pytest.approx(0.075, abs=0.02)


def test_one_right_pretrained_point_in_twenty_fails():
    rng = np.random.default_rng(3)
    ours, theirs = rng.normal(0.5, 0.05, (3000, 32)), rng.normal(0.5, 0.05, (3000, 32))
    curves = curve_rows(
        layer=range(3000), mean=ours.mean(1), std=ours.std(1, ddof=1), weights="pretrained"
    )
    one = point(0.5, weights="pretrained")
    published = one.loc[[0] * 3000].assign(
        layer=range(3000), mean=theirs.mean(1), std=theirs.std(1, ddof=1)
    )
    share = (judge(curves, published)["verdict"] == "not reproduced").mean()
    assert share == pytest.approx(0.05, abs=0.016)


def test_a_point_shifted_by_three_deviations_is_caught_as_often_as_theory_says():
    curves, published = simulated(3000, 6, seed_sd=0.1, text_sd=0.02, shift=3.0)
    share = (judge(curves, published)["verdict"] == "not reproduced").mean()
    # Student's t with 5 degrees of freedom, off centre by 3 / sqrt(1 + 1/6)
    critical, offset = stats.t.ppf(0.975, 5), 3 / np.sqrt(7 / 6)
    power = stats.nct.sf(critical, 5, offset) + stats.nct.cdf(-critical, 5, offset)
    assert share == pytest.approx(power, abs=0.04)
    assert share > 0.5


def test_a_curve_shifted_by_three_deviations_is_caught():
    curves, published = simulated(
        13 * 80, 6, seed_sd=0.05, text_sd=0.1, shift=3.0, correlation=0.3, layers=13
    )
    summary = summarise(judge(curves, published), curves)
    assert (summary["p_basis"] == "simulated").all()
    assert (summary["p_value"] < 0.05).mean() > 0.95


@pytest.mark.parametrize("correlation", [0.0, 0.9])
def test_a_right_curve_is_rarely_called_unlikely(correlation):
    curves, published = simulated(
        13 * 80, 6, seed_sd=0.05, text_sd=0.1, correlation=correlation, layers=13
    )
    p_values = summarise(judge(curves, published), curves)["p_value"]
    assert (p_values < 0.05).mean() < 0.125  # three Monte-Carlo errors above 0.05
    assert (p_values > 0).all()


def test_layers_that_move_together_make_many_misses_likelier():
    rng = np.random.default_rng(0)
    alone = 0.3 * np.exp(0.05 * rng.standard_normal((6, 13)))
    together = np.repeat(alone[:, :1], 13, axis=1)
    published = pd.concat([point(0.3 * (1.5 if x < 4 else 1.0), layer=x) for x in range(13)])
    p_values = []
    for means in (alone, together):
        curves = curve_rows(
            seed=np.repeat(range(6), 13),
            layer=np.tile(range(13), 6),
            mean=means.ravel(),
            std=0.001,
        )
        summary = summarise(judge(curves, published), curves)
        assert summary["outside_layers"].item() == "0 1 2 3"
        p_values.append(summary["p_value"].item())
    assert p_values[0] < p_values[1]
    assert p_values[1] == pytest.approx(0.05, abs=0.015)


def test_without_a_known_correlation_the_chance_is_a_bound():
    layers = range(10)
    curves = curve_rows(layer=layers, mean=0.5, std=0.01, weights="pretrained")
    far = [0.9 if layer in (2, 5) else 0.5 for layer in layers]
    published = pd.concat([point(far[x], weights="pretrained", layer=x) for x in layers])
    row = summarise(judge(curves, published), curves).iloc[0]
    assert row["p_basis"] == "upper bound"
    assert row["p_value"] == pytest.approx(0.05 * 10 / 2)
    assert row["outside_layers"] == "2 5"
    right = published.assign(mean=0.5)
    assert summarise(judge(curves, right), curves)["p_value"].item() == 1.0


def test_seeds_that_miss_layers_leave_a_bound():
    curves = pd.concat(
        [seeds(MEANS, 0.4 * MEANS), seeds(MEANS, 0.4 * MEANS, layer=1).assign(seed=[0, 1, 7])]
    )
    published = pd.concat([point(0.5), point(0.9, layer=1)])
    row = summarise(judge(curves, published), curves).iloc[0]
    assert row["p_basis"] == "upper bound"
    assert row["p_value"] == pytest.approx(0.1)


def measured_as_published():
    """BERT as published in all layers, but seven; XLNet's seeds at one layer."""
    published = read_figure2(FIGURE2)
    bert = published[published["model"] == BERT[0]]
    frames = []
    for seed in range(6):
        factor = np.exp(0.05 * (seed - 2.5))
        init = bert[bert["weights"] == "init"]
        mean = init["mean"] * factor * np.where(init["layer"] == 7, 3.0, 1.0)
        columns = {"weights": "init", "variant": init["variant"], "layer": init["layer"]}
        frames.append(curve_rows(seed=seed, mean=mean, std=0.02 * mean, **columns))
    trained = bert[bert["weights"] == "pretrained"]
    columns = {"weights": "pretrained", "variant": trained["variant"], "layer": trained["layer"]}
    frames.append(curve_rows(mean=trained["mean"], std=trained["std"], **columns))
    return pd.concat(frames, ignore_index=True), published


def test_every_verdict_occurs_in_312_rows_of_the_published_order(tmp_path):
    curves, published = measured_as_published()
    write_csv(tmp_path / "curves.csv", curves)
    folder = tmp_path / "verdicts of this run"
    frame = write_verdicts(tmp_path / "curves.csv", FIGURE2, folder, text="wikibio")
    assert list(frame.columns) == COLUMNS
    assert len(frame) == 312
    names = ["model", "weights", "variant", "layer"]
    pd.testing.assert_frame_equal(frame[names], published[names])
    counts = frame["verdict"].value_counts()
    # BERT: 104 points, 35 of them below the floor; layer 7 of the two curves with skip is off.
    assert counts["not reproduced"] == 2
    assert counts["reproduced"] == 104 - 35 - 2
    assert counts["below precision floor"] == 87
    assert counts["not measured"] == 208 - (87 - 35)
    assert set(counts.index) == set(VERDICTS)
    assert frame["reason"].str.len().between(5, 120).all()


def test_what_is_written_is_what_was_judged_and_the_same_bytes_each_time(tmp_path):
    curves, _ = measured_as_published()
    write_csv(tmp_path / "curves.csv", curves)
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        frame = write_verdicts(tmp_path / "curves.csv", FIGURE2, folder, text="wikibio")
    names = ["curves.csv", "figure2.csv", "summary.json"]
    assert [sorted(path.name for path in folder.iterdir()) for folder in folders] == [names] * 2
    for name in names:
        assert (folders[0] / name).read_bytes() == (folders[1] / name).read_bytes()
    written = read_csv(folders[0] / "figure2.csv", COLUMNS)
    pd.testing.assert_frame_equal(written, frame, rtol=1e-8, check_dtype=False)
    text = (folders[0] / "summary.json").read_text()
    assert text.endswith("}\n")
    summary = json.loads(text)
    assert summary == totals(frame)
    assert text == json.dumps(summary, indent=2, sort_keys=True) + "\n"
    assert summary["overall"] == {
        "reproduced": 67,
        "not_reproduced": 2,
        "below_floor": 87,
        "not_measured": 156,
    }
    assert summary["bert-base-cased"]["init"]["san_skip"] == {
        "reproduced": 12,
        "not_reproduced": 1,
        "below_floor": 0,
        "not_measured": 0,
    }


def test_the_summary_has_one_row_for_each_of_the_24_curves():
    curves, published = measured_as_published()
    verdicts = judge(curves, published)
    summary = summarise(verdicts, curves)
    assert len(summary) == 24
    assert (summary["points"] == 13).all()
    parts = ["reproduced", "not_reproduced", "below_floor", "not_measured"]
    assert (summary[parts].sum(axis=1) == 13).all()
    assert (summary["comparable"] == summary["reproduced"] + summary["not_reproduced"]).all()
    assert summary["p_value"].isna().equals(summary["comparable"] == 0)
    assert (summary["p_basis"] == "nothing compared").sum() == 16
    misses = summary[summary["not_reproduced"] > 0]
    assert misses["variant"].tolist() == ["san_skip", "transformer"]
    assert misses["outside_layers"].tolist() == ["7", "7"]


def test_an_empty_curve_table_measures_nothing():
    empty = THREE_SEEDS[:0]
    verdicts = judge(empty, read_figure2(FIGURE2))
    assert set(verdicts["verdict"]) == {"below precision floor", "not measured"}
    assert (summarise(verdicts, empty)["comparable"] == 0).all()


def test_bad_input_leaves_nothing_behind(tmp_path):
    folder = tmp_path / "verdicts"
    with pytest.raises(TableError, match="no such table"):
        write_verdicts(tmp_path / "none.csv", FIGURE2, folder, text="wikibio")
    write_csv(tmp_path / "curves.csv", THREE_SEEDS)
    with pytest.raises(PublishedError, match="no such file"):
        write_verdicts(tmp_path / "curves.csv", tmp_path / "none.csv", folder, text="wikibio")
    with pytest.raises(ValueError, match="unknown text"):
        write_verdicts(tmp_path / "curves.csv", FIGURE2, folder, text="prose")
    assert not folder.exists()
