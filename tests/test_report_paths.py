"""The report's sentences on paths and bounds follow the tables."""

import base64
import re
import shutil
from math import comb
from pathlib import Path

import numpy as np
import pandas as pd
import path_fixtures as made
import pytest
import report_fixtures as profile

from rankcollapse import bound_chains
from rankcollapse.bound_tables import CUBIC, DOBRUSHIN, PURE_SAN
from rankcollapse.component_claims import _statements
from rankcollapse.config import load_config
from rankcollapse.errors import RankCollapseError
from rankcollapse.jobs import pages
from rankcollapse.rates import WORDS
from rankcollapse.report import (
    bounds,
    chained,
    components,
    definitions,
    heads,
    orders,
    path_inputs,
    paths,
    pieces,
    write_report,
)
from rankcollapse.tables import write_csv

CONFIG, REPORT, DATA = Path("config.yaml"), Path("report.html"), Path("data/trial")
ANCHORS = ("path-lengths", "chained", "bounds", "orders", "components")


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    folder = tmp_path_factory.mktemp("paths") / "original"
    profile.build(folder)
    return folder


@pytest.fixture
def folder(original, tmp_path, monkeypatch):
    target = tmp_path / "copy"
    shutil.copytree(original, target)
    monkeypatch.chdir(target)
    return target


@pytest.fixture
def tables():
    return made.tables()


def page():
    """Return the words of the page."""
    write_report(CONFIG, REPORT)
    words = re.sub(r"<style>.*?</style>|<[^>]+>", " ", REPORT.read_text(), flags=re.DOTALL)
    return plain(words).replace("&#39;", "'")


def plain(text):
    return " ".join(text.replace("\N{NO-BREAK SPACE}", " ").split())


def shares(*values):
    return pd.Series(values, dtype=float)


@pytest.mark.parametrize(
    ("values", "lengths"),
    [
        ((0.9, 0.1), [0]),
        ((0.89, 0.11), [0, 1]),
        ((0.0, 0.05, 0.95), [2]),
        ((-0.5, 1.4, 0.1), [0, 1]),  # 1.9 of 2.0
        ((-0.5, 0.7, 0.8), [0, 1, 2]),  # 1.5 of 2.0 is too little
        ((0.0, 0.0), []),
    ],
)
def test_the_lengths_that_carry_are_the_fewest(values, lengths):
    assert paths.carrying(shares(*values)) == lengths


def test_the_median_path_is_not_exceeded_by_half_of_them():
    assert paths.median_length(shares(1, 2, 1)) == 1
    assert paths.median_length(shares(2, 1, 1)) == 0
    assert paths.median_length(shares(1, 1)) == 0
    # BERT: 13^12 paths, of which 13^12 - 12^12 (62 %) skip a layer.
    assert paths.median_length(shares(*(comb(12, k) * 12**k for k in range(13)))) == 11


def test_the_sentences_on_a_model_by_hand(tables):
    models = dict(paths.section(tables)["models"])
    assert list(models) == ["BERT at initialisation", "MPNet pretrained", "MiniLM pretrained"]
    # Paths by length: 1, 36, 432, 1728.
    assert [plain(sentence) for sentence in models["MiniLM pretrained"]] == [
        "lengths 0 and 1 carry 90 % of the residual of the last state; the median path has length "
        "3.",
        "Length 3 points against the state: shares that sum to −0.03.",
        "Without length 0 the last state keeps a cosine of 0.700 with itself, without length 3, "
        "the longest, 1.000; the cosine of two sentences moves by 0.1 and 0.0001, most without "
        "length 0, by 0.1 (root mean square over pairs).",
        "Of the residual of these terms 10 % to 20 % starts at biases, most at those of the "
        "normalisations (the first few of the texts).",
        "With each MLP's output as a source of its own, lengths 0 and 1 carry as much, and 10 % of "
        "the share is at other lengths (half the sum of the differences).",
    ]
    assert "lengths 0 to 2 carry 90 %" in plain(models["MPNet pretrained"][0])
    assert (
        "Length 0 points against the state: shares that sum to −0.4." in models["MPNet pretrained"]
    )
    assert models["BERT at initialisation"][0].endswith("(mean over 2 seeds).")


def test_other_shares_make_other_sentences(tables):
    late = {(made.MINILM, "pretrained", None): (0.0, 0.0, 0.0, 1.0)}
    section = paths.section(tables | {"decomposition": made.decomposition(late)})
    ((_, sentences),) = section["models"]
    assert plain(sentences[0]).startswith("length 3 carries 90 % of the residual")
    assert paths.summary(section) == (
        "In 0 of 2 networks the lengths that carry are all shorter than the median path; not in "
        "MiniLM pretrained, SAN + skip; MiniLM pretrained, Transformer."
    )
    assert paths.summary(paths.section(tables)).startswith("In all of 6 networks the lengths that")


def test_without_pairs_of_sentences_or_biases_nothing_is_said_of_them(tables):
    left = tables["left_out"].assign(similarity_error=np.nan)
    bare = tables["sources"].assign(share=(tables["sources"]["source"] == "embedding") * 1.0)
    models = dict(paths.section(tables | {"left_out": left, "sources": bare})["models"])
    text = plain(" ".join(models["MiniLM pretrained"]))
    assert "the cosine of two sentences" not in text
    assert (
        "Of the residual of these terms 0 % starts at biases (the first few of the texts)." in text
    )


def test_the_row_of_a_network_has_its_ends(tables):
    rows = {row["name"]: row for row in paths.section(tables)["rows"]}
    row = rows["BERT at initialisation, SAN + skip"]
    assert (row["seeds"], row["carrying"], row["median"], row["longest"]) == (2, "0", 3, 3)
    assert row["share"] == pytest.approx(0.95)
    assert row["rank_one"] == pytest.approx([0.9, 0.9 / 64])
    assert row["cosine"] == pytest.approx([0.7, 0.9997])
    assert rows["MPNet pretrained, Transformer"]["negative"] == pytest.approx(-0.4)


def test_the_heads_that_carry_by_hand(tables):
    ((name, said),) = heads.sentences(tables["heads"])
    assert name == "MiniLM pretrained"
    most = ["layer 1 head 0 ({0})", "layer 1 head 1 ({0})", "layer 2 head 0 ({0})"]
    alike = (
        "Length {1}: 3 of 6 heads hold half of the shares (of their magnitudes); the largest are "
        + ", ".join(most[:2])
    )
    assert said == [
        "Length 1: 1 of 6 heads hold half of the shares (of their magnitudes); the largest are "
        "layer 3 head 1 (0.75), layer 1 head 0 (0.05) and layer 1 head 1 (0.05).",
        f"{alike} and {most[2]}.".format("0.33", 2),
        f"{alike} and {most[2]}.".format("0.5", 3),
    ]
    assert heads.sentences(tables["heads"].iloc[:0]) == []


@pytest.mark.parametrize(
    ("values", "count"), [((1.0,), 1), ((0.5, 0.5), 1), ((-0.6, 0.4, 0.1), 1), ((0.0, 0.0), 0)]
)
def test_half_is_held_by_the_fewest_heads(values, count):
    assert heads.halves(shares(*values)) == count


def test_what_is_proven_of_pieces_by_hand(tables):
    section = pieces.section(tables["bound_pieces"])
    kept, stretched = map(plain, section["sentences"])
    assert kept.endswith(
        "mean over texts; seeds counted one by one): BERT at initialisation, Transformer (3 of 3 "
        "layers, 10 %)."
    )
    assert stretched.startswith("Of 12 LayerNorms in a layer of these networks 6 stretch the")
    assert stretched.endswith(": that they cannot is not a theorem.")
    shrunk = tables["bound_pieces"].assign(measured_log10=-0.3)
    shrunk.loc[shrunk.index[-1], "measured_log10"] = np.nan  # one MLP's norm
    said = pieces.sentences(shrunk)[1]
    assert said.startswith("Of 11 LayerNorms in a layer of these networks 0 stretch")
    assert "theorem" not in said
    rows = {(row["network"], row["piece"]): row for row in section["rows"]}
    least = rows["MiniLM pretrained, Transformer", "skip, at least"]
    assert (least["layers"], least["holds"], least["measured"]) == (3, 0, "–")
    mlp = rows["BERT at initialisation, Transformer", "MLP, at most"]
    assert (mlp["measured"], mlp["limit"], mlp["margin"]) == ("0.316", "100", 2.5)
    bare = tables["bound_pieces"].assign(verdict="vacuous")
    assert "in no layer measured here" in pieces.sentences(bare)[0]
    assert pieces.section(bare.iloc[:0]) == {"sentences": [], "rows": []}


def test_quartiles_are_counted_by_rule(tables):
    verdicts = tables["chained_verdicts"]
    expected = (
        "of 72 published quartiles 9 could be compared; 8 reproduce, 1 does not; 27 lie below the "
        "precision floor of float32; 36 were not measured."
    )
    (said,) = chained.counts(verdicts)
    assert (
        said == f"A path of depth k passes any k of the layers, each choice as likely: {expected}"
    )
    both = pd.concat([verdicts, verdicts.assign(layers="first", verdict="not measured")])
    _, first = chained.counts(both)
    assert first == (
        "A path of depth k passes the first k layers: of 72 published quartiles 0 could be "
        "compared; 72 were not measured."
    )
    assert len(chained.section(tables)["quartiles"]) == 9


def test_what_gets_through_is_the_median_as_published(tables):
    said = chained.certificates(tables["chained"])
    assert said == [
        "BERT at initialisation (6000 pairs a depth): the median coefficient goes from 0.9 at "
        "depth 1 to 0.009 at depth 3, the median distance to rank one from 0.2 to 0.002.",
        "MiniLM pretrained (2000 pairs a depth): the median coefficient goes from 0.9 at depth 1 "
        "to 0.009 at depth 3, the median distance to rank one from 0.2 to 0.002.",
    ]
    low = tables["chained"].assign(floor=0.005)
    assert "0.002, below the floor" in chained.certificates(low)[0]


def test_verdicts_on_bounds_are_counted(tables):
    forms = tables["bound_forms"]
    rows = {(row["model"], row["form"], row["chain"]): row for row in bounds.verdict_counts(forms)}
    assert len(rows) == 2 * 7 * 3
    tight = rows[("MiniLM pretrained", bounds.FORMS["tight"], "one step")]
    assert (tight["layers"], tight["counts"], tight["margin"]) == (2, [1, 1, 0, 0, 0], 1.0)
    paper = rows[("MiniLM pretrained", bounds.FORMS["paper"], "closed")]
    assert paper["counts"] == [0, 0, 2, 0, 0]
    assert np.isnan(paper["margin"])
    small = rows[(bounds.model_name(PURE_SAN, "init"), bounds.FORMS["paper"], "closed")]
    assert small["counts"] == [2, 0, 0, 0, 0]
    # ours has a margin of 2.5, sharp of 2.
    assert bounds.gain(forms) == pytest.approx(0.5)


def test_a_violated_bound_is_said(tables):
    forms = tables["bound_forms"]
    assert bounds.violated(forms).startswith("None of 84 bounds (one a network,")
    forms.loc[3, "verdict"] = "violated"
    assert bounds.violated(forms) == "1 bound of 84 is violated."


def test_quantities_are_ranges_over_layers(tables):
    (minilm, small) = bounds.quantities(tables["bounds"])
    assert minilm["model"] == "MiniLM pretrained"
    assert (minilm["beta"], minilm["gamma"], minilm["margin"]) == ("2 to 4", "1.5", "1.5 to 2")
    assert "small weights" in small["model"]


def test_every_form_verdict_and_word_is_explained():
    assert list(bounds.FORMS) == [*CUBIC, DOBRUSHIN]
    assert set(definitions.BOUND_VERDICTS) == set(bound_chains.VERDICTS)
    assert tuple(definitions.RATE_WORDS) == WORDS


def test_orders_are_told_by_word(tables):
    section = orders.section(tables, text="wikibio")
    assert section["summary"] == (
        "Order of the collapse of attention alone (SAN): cubic in MiniLM pretrained 2.97 (2.91 to "
        "3.03); exponential in MPNet pretrained 0.98 (0.97 to 0.98)."
    )
    assert [row["curve"] for row in section["orders"]] == [
        "MPNet pretrained, SAN",
        "MPNet pretrained, SAN + skip",
        "MiniLM pretrained, SAN",
    ]
    assert section["orders"][2]["by_layer"] == "cubic at 3 and 4"
    assert section["others"] == 1
    none = orders.section(tables | {"orders": tables["orders"][4:]}, text="wikibio")
    assert none["summary"] == orders.NOTHING
    assert none["orders"] == []


def test_the_scaled_term_is_beside_its_prediction(tables):
    own, none = orders.scales(tables["relative"], tables["contraction"])
    # 0.4 halved three times; of the cubed ones a rate is missing at layer 3.
    assert (own["model"], own["scale"], own["layer"]) == ("MPNet pretrained", 1.0, 3)
    assert own["rate"] == pytest.approx(np.log(0.05) / np.log(0.1))
    assert own["factor"] == pytest.approx(0.5)
    assert own["ratio"] == pytest.approx(0.05)
    assert (own["eigenvalue"], own["tau"]) == pytest.approx((0.55, 0.75))
    assert (none["scale"], none["layer"]) == (0.0, 2)
    assert none["rate"] == pytest.approx(3)


def test_the_small_networks_end_where_they_end(tables):
    without, with_term = orders.asymptote(tables["asymptote"])
    assert without == (
        "1 head, no relative term: rate 3.14 at layer 3, log₁₀ of the ratio −22, never nearer to "
        "the bound than 3 decades."
    )
    assert "rate 1.2 at layer 3" in with_term
    # From layer 2 to 3 the logarithm falls by 0.2.
    assert with_term.endswith("factor a layer over the second half 0.63 where 0.6 is predicted.")


def test_pieces_and_answers_count_the_verdicts(tables):
    section = components.section(tables)
    assert len(section["claims"]) == len(made.CLAIMS)
    assert dict(section["pieces"]) == {
        "skip": ["–", "1 of 1", "–", "1 of 2"],
        "MLP": ["1 of 1", "–", "–", "–"],
        "rotary positions": ["–", "0 of 1", "–", "–"],
    }
    assert (
        "Skip stops it (Dong): supported in “skip=1, baseline”; opposite in “skip=0.1, baseline”."
        in section["answers"]
    )
    claims = tables["component_claims"].assign(verdict="supported")
    answers = components.section({"component_claims": claims})["answers"]
    assert (
        "Skip stops it (Dong): supported in all of 2 networks: “skip=1, baseline” and “skip=0.1, "
        "baseline”." in answers
    )


def test_every_claim_on_a_piece_fits_an_effect():
    claims = pd.DataFrame(_statements())["claim"].drop_duplicates()
    left = claims[~claims.str.match(components._CLAIM)]
    assert left.tolist() == ["attention alone is doubly exponential"]


def test_the_page_has_each_section_once_and_in_the_contents(folder):
    text = page()
    html = REPORT.read_text()
    for anchor in ANCHORS:
        assert html.count(f'<h2 id="{anchor}">') == 1
        assert html.count(f'<li><a href="#{anchor}">') == 1
    assert [html.index(f'id="{anchor}"') for anchor in ANCHORS] == sorted(
        html.index(f'id="{anchor}"') for anchor in ANCHORS
    )
    for said in (
        "lengths 0 and 1 carry 90 % of the residual of the last state",
        "9 could be compared; 8 reproduce, 1 does not",
        "None of 84 bounds (one a network, layer, form and chain) is violated.",
        "the refined one of pretrained MiniLM (layer 1)",
        "it lies 0.5 decades below",
        "cubic in MiniLM pretrained 2.97 (2.91 to 3.03)",
        "4 heads, 32 features, 24 random tokens, 12 layers",
        "Another way to split the nonlinearities gives other terms",
        "no independent evidence",
        "with its relative term the collapse is exponential all-mpnet-base-v2, pretrained +0.873",
    ):
        assert said in text


def test_every_page_of_the_figures_is_in_the_report(folder):
    write_report(CONFIG, REPORT)
    html = REPORT.read_text()
    found = pages(load_config(CONFIG))
    names = [page for figure in made.FIGURES for page in found[figure]]
    assert len(names) == 14
    for name in names:
        encoded = base64.b64encode(made.picture(name)).decode()
        assert html.count(f"data:image/png;base64,{encoded}") == 1
        assert html.count(f'id="picture-{name}"') == 1


def test_the_page_follows_the_tables(folder):
    verdicts = made.chained_verdict_rows().assign(verdict="not measured")
    claims = made.component_claims().assign(verdict="opposite")
    forms = made.bound_forms()
    forms.loc[0, "verdict"] = "violated"
    made.write(
        DATA, {"chained_verdicts": verdicts, "component_claims": claims, "bound_forms": forms}
    )
    text = page()
    assert "of 72 published quartiles 0 could be compared; 72 were not measured." in text
    assert "Opposite in all" not in text
    assert "opposite in all of 2 networks" in text
    assert "1 bound of 84 is violated." in text


def test_a_last_ratio_below_the_floor_is_not_shown_as_a_number(folder):
    table = made.relative()
    table.loc[(table["scale"] == 0) & (table["layer"] == 3), "ratio"] = 1e-16
    assert "0.75 0.05" in page()
    made.write(DATA, {"relative": table})
    text = page()
    assert "0.75 below floor" in text
    assert "10⁻¹⁶" not in text


def test_a_profile_that_studied_nothing_says_so(folder):
    for name, (file, _, columns, _) in path_inputs.TABLES.items():
        if name != "chained_verdicts":
            write_csv(DATA / file, pd.DataFrame(columns=columns))
    text = page()
    for said in (
        paths.NOTHING,
        "No bound was evaluated on a real model.",
        orders.NOTHING,
        components.NOTHING,
        "No attention was chained in this profile.",
        "No model with a relative term was measured in this profile.",
    ):
        assert text.count(said) == 1


@pytest.mark.parametrize("name", path_inputs.TABLES)
def test_a_missing_table_is_named_with_its_rule(folder, name):
    file, rule, columns, words = path_inputs.TABLES[name]
    path = DATA / file
    table = pd.read_csv(path)
    column = next(one for one in reversed(columns) if one not in words and table[one].notna().any())
    write_csv(path, table.astype({column: object}).assign(**{column: "much"}))
    with pytest.raises(RankCollapseError, match=f"^{path}: column {column} holds something that"):
        write_report(CONFIG, REPORT)
    path.unlink()
    message = f"^{re.escape(str(path))}: no such file; rule {rule} of the workflow makes it$"
    with pytest.raises(RankCollapseError, match=message):
        write_report(CONFIG, REPORT)


@pytest.mark.parametrize(
    "file", ["figure6_dobrushin.png", "bounds.pdf", "components_effects.png", "rates.csv"]
)
def test_a_missing_picture_is_named_with_its_figure(folder, file):
    path = Path("figures/trial", file)
    path.unlink()
    figure = path.stem.split("_")[0]
    with pytest.raises(RankCollapseError, match=f"^{path}: no such file; rule {figure} of"):
        write_report(CONFIG, REPORT)
