"""The report's sentences on trained networks follow the numbers."""

import re
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import report_fixtures as profile
import task_fixtures
import yaml
from task_fixtures import FALLING, RISING, curve, line, scores

from rankcollapse.claims import VERDICTS, judge
from rankcollapse.config import parse_config
from rankcollapse.errors import RankCollapseError
from rankcollapse.jobs import pages
from rankcollapse.report import causes, circle, definitions, trained, write_report
from rankcollapse.tables import write_csv
from rankcollapse.task_tables import (
    ACCURACY_COLUMNS,
    CIRCLE_COLUMNS,
    CLAIM_COLUMNS,
    CONTROLS,
    LENGTH_COLUMNS,
    accuracy,
    typed,
)
from rankcollapse.vocabulary import TRAININGS

CONFIG, REPORT = Path("config.yaml"), Path("report.html")
NO_CIRCLE = pd.DataFrame(columns=CIRCLE_COLUMNS)
FLAT = (0.35, 0.3, 0.3, 0.3, 0.3, 0.3, 0.3)
KEPT = ("published", "residual_kept", "frozen", "reread")


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained") / "original"
    profile.build(folder)
    return folder


@pytest.fixture
def folder(original, tmp_path, monkeypatch):
    target = tmp_path / "copy"
    shutil.copytree(original, target)
    monkeypatch.chdir(target)
    return target


def page():
    """Return the words of the page."""
    write_report(CONFIG, REPORT)
    words = re.sub(r"<style>.*?</style>|<[^>]+>", " ", REPORT.read_text(), flags=re.DOTALL)
    return plain(words).replace("&#39;", "'")


def plain(text):
    return " ".join(text.replace("\N{NO-BREAK SPACE}", " ").split())


def found(*frames):
    """Return the settings of these scores."""
    rows = pd.concat(frames, ignore_index=True)
    claims = trained.read_claims(judge(rows, NO_CIRCLE))
    return trained.settings(typed(accuracy([rows])), claims)


def exact(shapes, *, seeds=(0, 1, 2), shift=0.01, entire=0.57, **names):
    """Return scores without noise: the same curve for each seed, a little higher each time."""
    frames = []
    for seed in seeds:
        level = shift * seed
        names["seed"] = seed
        frames += [line(entire + level, control="entire", **names)]
        frames += [line(0.346, control="trivial", ratio=np.nan, **names)]
        for control, means in shapes.items():
            paths = "only" if control == "frozen" else "20"
            frames.append(curve(np.add(means, level), control=control, paths=paths, **names))
    return pd.concat(frames, ignore_index=True)


def test_the_sentences_of_a_task_by_hand():
    # Short: mean of .50 .26 .18 = .31333; long: mean of .14 .12 .10 = .12. No spread in the
    # difference, so the interval is a point. Levels lie 0.01 higher, the mean over the seeds.
    (one,) = found(exact({"published": FALLING, "residual_kept": RISING}))
    assert one.name == "as published, 65 epochs, 3 training seeds"
    whole, fall, controls = trained.sentences(one)
    assert whole == (
        "The entire network gets 0.580 of the tokens right (standard deviation over the seeds "
        "0.010), the trivial predictor 0.346."
    )
    assert plain(fall) == (
        "Evaluated as published, sets of 20 paths get 0.510 at length 1 and 0.110 at length 6; "
        "short minus long +0.193, 95 % interval +0.193 to +0.193 over 3 training seeds: supported "
        "(residual ratio of long paths 0.024)."
    )
    # .36 .38 .39 against .40 .42 .44: .37667 - .42.
    assert controls == (
        "Short minus long under the controls, with the residual ratio of long paths: residual kept "
        "−0.043, opposite (0.024); frozen not measured; re-read not measured."
    )


def test_one_seed_has_no_interval():
    (one,) = found(exact({"published": FALLING, "reread": FALLING}, seeds=[0]))
    whole, fall, controls, kept, back = trained.sentences(one)
    assert whole.startswith("The entire network gets 0.570 of the tokens right, the trivial")
    assert "short minus long +0.193 from one seed, so no interval is claimed" in fall
    assert "re-read +0.193, one seed (0.024)" in controls
    assert kept.endswith("−0.226 from one seed, so no interval is claimed.")
    assert "+0.000 from one seed" in back
    assert not any("95" in sentence for sentence in trained.sentences(one))
    assert "sorting (65 epochs; one seed, no interval)" in causes.summary([one])


def test_a_network_that_beats_no_trivial_predictor_has_not_learned():
    (one,) = found(exact({"published": FALLING}, entire=0.2))
    assert trained.sentences(one)[0].endswith("predictor 0.346: it has not learned the task.")
    assert "sorting (65 epochs; not learned)" in causes.answer([one])[0]


def test_frozen_terms_are_added_up():
    terms = curve(np.linspace(0.1, 0.7, 7), control="frozen_cumulative", paths="up_to")
    (one,) = found(exact({"published": FALLING}, seeds=[0]), terms)
    assert (
        "Added up, the frozen terms of length 0 to 3 get 0.400; all of them, which is the entire "
        "network, 0.700."
    ) in trained.sentences(one)


@pytest.mark.parametrize(
    ("shapes", "cause", "said"),
    [
        ({"residual_kept": RISING, "reread": FALLING}, "both", "Both, in sorting"),
        ({"residual_kept": RISING, "reread": FLAT}, "breaks", "The network breaks when its"),
        ({"residual_kept": FALLING, "reread": np.add(FALLING, 0.2)}, "both", "Both, in sorting"),
        ({"residual_kept": FALLING, "reread": FALLING}, "loses", "Long paths keep less of what"),
        ({"residual_kept": FLAT, "reread": np.subtract(FLAT, 0.25)}, "neither", "Neither is shown"),
        ({"published": RISING, "residual_kept": RISING}, "no fall", "No fall is shown"),
        ({"frozen": FALLING}, "unknown", "The controls were not measured, in sorting"),
    ],
)
def test_the_cause_follows_the_curves(shapes, cause, said):
    (one,) = found(exact({"published": FALLING} | shapes))
    assert causes.cause(one) == cause
    assert causes.answer([one])[0].startswith(said)


def test_each_task_stands_where_its_curves_put_it():
    both = exact({"published": FALLING, "residual_kept": RISING, "reread": FALLING})
    hull = {"task": "convex_hull"}
    loses = exact({"published": FALLING, "residual_kept": FALLING, "reread": FALLING}, **hull)
    text = causes.summary(found(both, loses))
    assert text == (
        "What makes accuracy fall with path length in trained networks (Figure 4): broken networks "
        "and lost information, both, in sorting (65 epochs); information that long paths lose, in "
        "convex hull (70 epochs)."
    )


def test_networks_trained_otherwise_are_told_apart():
    rows = scores(controls=(*KEPT, "layer_drop", "pure"))
    settings = found(rows)
    assert [one.training for one in settings] == list(TRAININGS)
    text = " ".join(causes.answer(settings))
    assert "In networks trained with layer drop: short paths do better in sorting" in text
    assert "In networks trained without residuals: long paths do better in sorting" in text
    assert "(frozen): short paths do better in sorting." in text
    assert "at all: no, or not linearly, in sorting." in text
    assert settings[1].trivial == pytest.approx(0.346)
    assert trained.absent(settings, "sorting") == ""
    fewer = found(scores(controls=KEPT))
    assert "In networks trained with layer drop: not measured." in causes.answer(fewer)
    assert trained.absent(fewer, "sorting") == (
        "Not measured in this profile: networks trained with layer drop and trained without "
        "residuals."
    )


def test_the_ratio_stands_beside_the_answer():
    (one,) = found(exact({"published": FALLING, "residual_kept": RISING}, ratios=[0.5] * 7))
    assert causes.ratios([one]).endswith("sorting, residual cut 0.5 and 0.5, kept 0.5 and 0.5.")
    (row, _) = trained.halves_table([one])
    assert (row["control"], row["ratio_short"], row["ratio_long"]) == ("as published", 0.5, 0.5)
    assert row["short"] == pytest.approx(0.94 / 3 + 0.01)
    assert row["long"] == pytest.approx(0.13)


def test_runs_on_the_circle_are_counted():
    runs = task_fixtures.circle(readings=["as-published"])
    claims = trained.read_claims(judge(scores(), runs))
    (reading,) = circle.readings(runs, claims)
    shares, learned, judged = map(plain, reading.sentences)
    assert "SAN 18 of 24 (95 % interval 55 to 88 %); SAN + skip 0 of 24" in shares
    assert learned.startswith("0 of 72 runs learned the step that they are to repeat (error below")
    assert "SAN ends in one point more often than SAN + skip: supported (+0.750" in judged
    runs.loc[runs["seed"] == 0, "one_step_error"] = 5e-4
    runs.loc[(runs["variant"] == "san") & (runs["seed"] == 0), "collapsed"] = False
    (reading,) = circle.readings(runs, claims)
    assert "SAN 16 of 24" in reading.sentences[0]
    assert reading.sentences[1].startswith("6 of 72 runs learned")


def test_every_control_training_and_verdict_is_defined():
    labels = {trained.CONTROLS.get(name, name) for name in CONTROLS} - {"frozen_cumulative"}
    assert labels <= set(definitions.TRAINED)
    assert set(definitions.TRAININGS) == set(TRAININGS)
    assert set(definitions.CLAIM_VERDICTS) == set(VERDICTS)


def test_rules_are_numbered_once():
    claims = judge(scores(), NO_CIRCLE)
    rows, rules = trained.claims_table(claims)
    assert len(rows) == len(claims)
    assert len(rules) == claims["rule"].nunique()
    assert [rules[row["note"] - 1] for row in rows] == claims["rule"].tolist()


def test_the_page_has_it_all_and_follows_the_tables(folder):
    before = page()
    assert "Figures 1 to 5 of Dong et al. 2021" in before
    assert "(Figure 4): broken networks and lost information, both, in sorting (65 epochs) and" in (
        before
    )
    assert "All 36 claims" in before
    assert "from 2 to 12 layers, the mean path length that the network uses goes from" in before
    assert "deeper networks use relatively shorter paths" in before
    shapes = {"residual_kept": FALLING, "reread": FLAT, "published": RISING}
    lengths = task_fixtures.lengths(networks={(2, 2, 84): 0.6, (2, 12, 34): 0.9})
    profile.judge_trained(
        scores(shapes=shapes, controls=KEPT), task_fixtures.circle(shares={"san": 0.0}), lengths
    )
    after = page()
    assert (
        "(Figure 4): no fall is shown with the training seeds there are in sorting (65 epochs)."
        in after
    )
    assert "SAN ends in one point more often than not: opposite" in after
    assert "deeper networks use relatively longer paths" in after
    assert "Not measured in this profile: networks trained with residuals, trained" in after


def test_a_profile_without_trained_networks_says_so(folder):
    for path, columns in {
        profile.TASKS / "accuracy.csv": ACCURACY_COLUMNS,
        profile.TASKS / "circle.csv": CIRCLE_COLUMNS,
        profile.TASKS / "lengths.csv": LENGTH_COLUMNS,
        Path("data/trial/verdicts/claims.csv"): CLAIM_COLUMNS,
    }.items():
        write_csv(path, pd.DataFrame(columns=columns))
    text = page()
    assert text.count(causes.NOTHING) == 2
    assert "No run on the circle was measured in this profile." in text
    assert "No network was measured for this in this profile." in text
    assert "No claim on trained networks was judged in this profile." in text


def test_few_claims_are_not_folded(folder):
    path = Path("data/trial/verdicts/claims.csv")
    assert '<details id="all-claims">' in html()
    write_csv(path, pd.read_csv(path).head(12))
    assert '<details open id="all-claims">' in html()


def html():
    write_report(CONFIG, REPORT)
    return REPORT.read_text()


def test_the_pages_follow_the_profile(folder):
    settings = profile.settings()
    settings["circle"]["epochs"] = {"as-published": 70}
    del settings["trainings"]["sorting-650"]
    of_figure = pages(parse_config(settings, where="here"))
    assert of_figure["figure3"] == ["figure3", "figure3_threshold"]
    assert of_figure["figure4"] == ["figure4", "figure4_controls"]
    of_figure = pages(parse_config(profile.settings(), where="here"))
    drawn = {path.stem for path in Path("figures/trial").glob("*.png")}
    assert {page for of_one in of_figure.values() for page in of_one} == drawn
    CONFIG.write_text(yaml.safe_dump(settings))
    assert html().count("<img") == 25


@pytest.mark.parametrize(
    ("path", "rule"),
    [
        ("data/trial/tasks/accuracy.csv", "accuracy"),
        ("data/trial/tasks/circle.csv", "join"),
        ("data/trial/tasks/lengths.csv", "join"),
        ("data/trial/verdicts/claims.csv", "claims"),
        ("figures/trial/figure3_threshold.png", "figure3"),
        ("figures/trial/figure4_controls_as_described.png", "figure4"),
        ("figures/trial/figure4.pdf", "figure4"),
        ("figures/trial/width_depth.csv", "width_depth"),
    ],
)
def test_a_missing_file_is_named_with_its_rule(folder, path, rule):
    Path(path).unlink()
    message = f"^{re.escape(path)}: no such file; rule {rule} of the workflow makes it$"
    with pytest.raises(RankCollapseError, match=message):
        write_report(CONFIG, REPORT)


@pytest.mark.parametrize(
    ("path", "rule", "problem"),
    [
        ("data/trial/tasks/accuracy.csv", "accuracy", "accuracy_mean"),
        ("data/trial/tasks/circle.csv", "join", "one_step_error"),
        ("data/trial/verdicts/claims.csv", "claims", "effect"),
    ],
)
def test_a_word_among_the_numbers_is_refused(folder, path, rule, problem):
    table = pd.read_csv(path).astype({problem: object})
    table.loc[0, problem] = "much"
    write_csv(Path(path), table)
    message = f"^{path}: column {problem} holds something that is no number; delete it, and rule "
    with pytest.raises(RankCollapseError, match=f"{message}{rule} of"):
        write_report(CONFIG, REPORT)
    write_csv(Path(path), table.drop(columns=problem))
    with pytest.raises(RankCollapseError, match=f"^{path}: has no column {problem}"):
        write_report(CONFIG, REPORT)
