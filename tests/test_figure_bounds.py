import math
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from curve_fixtures import legend_labels

from rankcollapse.bound_tables import BOUND_COLUMNS, DOBRUSHIN, FORM_COLUMNS, PAPER_LIMIT, PURE_SAN
from rankcollapse.errors import RankCollapseError
from rankcollapse.figures import bounds as figure_bounds
from rankcollapse.figures import output

NAN = np.nan
BERT, MINILM = ("bert-base-cased", "init"), ("all-minilm-l6-v2", "pretrained")
PURE = (PURE_SAN, "init")
# Offsets from the measured value, one step; the layer's input is 3 above what is measured.
OFFSETS = {"paper": 6.0, "first": 5.5, "ours": 5.0, "sharp": 4.0, "refined": 2.0, "tight": 1.5}
OFFSETS[DOBRUSHIN] = 2.5
UNMET = {(1, "paper"), *((layer, "tight") for layer in (1, 2, 3))}
LIMITS_OF = {"paper": 1_762_156.0, "sharp": 1e6}


def verdict_of(bound, trivial):
    if math.isnan(bound):
        return "condition not met"
    return "vacuous" if bound >= trivial else "holds"


def forms_of(model, measured, *, seed=0, unmet=(), lost=(), chain=(), closed=LIMITS_OF):
    """Rows of one model: values after each layer, and of which layers which forms are NaN."""
    rows = []

    def add(layer, form, name, bound, trivial):
        value, said = measured[layer - 1], verdict_of(bound, trivial)
        key = (*model, seed, layer, form, name)
        rows.append((*key, value, bound, trivial, said, bound - value, layer in lost))

    for layer, value in enumerate(measured, start=1):
        for form, offset in OFFSETS.items():
            add(
                layer,
                form,
                "one step",
                NAN if (layer, form) in unmet else value + offset,
                value + 3,
            )
        for form in chain:
            add(layer, form, "chained", value + 10 * layer, 8.0)
        for form, bound in closed.items():
            add(layer, form, "closed", bound, 2.0)
    return pd.DataFrame(rows, columns=FORM_COLUMNS)


def all_forms():
    return pd.concat(
        [
            forms_of(MINILM, [1.0, 0.0, -9.0], seed=pd.NA, unmet=UNMET, closed={"paper": NAN}),
            forms_of(BERT, [0.0, -4.0, -16.0, -45.0, -45.0], lost={4, 5}, chain=[DOBRUSHIN]),
            forms_of(
                BERT, [1.0, -3.0, -15.0, -44.0, -44.0], seed=1, lost={4, 5}, chain=[DOBRUSHIN]
            ),
            forms_of(
                PURE, [-4.0, -20.0, -210.0], chain=["paper", "sharp"], closed={"paper": -29.2}
            ),
        ],
        ignore_index=True,
    )


def all_bounds(forms):
    layers = forms[["checkpoint", "weights", "seed", "layer"]].drop_duplicates()
    numbers = {"measured_log10": 0.0, "bound_log10": 1.0, "dobrushin_log10": 1.0, "beta": 0.9}
    seeds = layers["seed"].fillna(0)
    oscillation = 10.0 ** (-layers["layer"] + seeds)
    return layers.assign(**numbers, gamma=1.5, max_D=oscillation, verdict="holds")[BOUND_COLUMNS]


def draw(forms=None):
    forms = all_forms() if forms is None else forms
    return figure_bounds.draw(all_bounds(forms), forms)


@pytest.fixture(scope="module")
def pages():
    return draw()


def line(axes, label):
    (found,) = (line for line in axes.get_lines() if line.get_label() == label)
    return found


def label(form):
    return figure_bounds.FORMS[form].label


def test_a_panel_for_each_network_with_what_the_theorem_says(pages):
    titles = [axes.get_title() for axes in pages[""].axes]
    assert titles == [
        "pure SAN, small weights\ntheorem: $10^{-29}$",
        "BERT, at initialisation\ntheorem: $10^{1{,}762{,}156}$, vacuous",
        "MiniLM, pretrained\ntheorem: does not apply",
    ]


def test_lines_are_measured_values_and_bounds_with_seeds_averaged(pages):
    _, bert, minilm = pages[""].axes
    measured = line(bert, figure_bounds.MEASURED.label)
    assert measured.get_ydata().tolist() == [0.5, -3.5, -15.5]
    for form in figure_bounds.FORMS:
        found = line(bert, label(form))
        assert found.get_ydata() - measured.get_ydata() == pytest.approx(OFFSETS[form])
    assert line(minilm, label("paper")).get_ydata().tolist() == pytest.approx(
        [NAN, 6, -3], nan_ok=True
    )
    assert line(minilm, "layer's input").get_ydata().tolist() == [4, 3, -6]


def test_markers_are_filled_where_a_bound_says_something(pages):
    bert = pages[""].axes[1]
    for form, offset in OFFSETS.items():
        if form in figure_bounds.FORMS:
            filled, hollow = (line(bert, f"{label(form)} {holds}") for holds in (True, False))
            says = offset < 3
            assert (len(filled.get_xdata()), len(hollow.get_xdata())) == (
                (3, 0) if says else (0, 3)
            )
            assert hollow.get_markerfacecolor() == "white"
            assert filled.get_markerfacecolor() == figure_bounds.FORMS[form].color


def test_chained_bounds_are_drawn_thin_where_there_are_any(pages):
    pure, bert, minilm = pages[""].axes
    chain = line(bert, f"{label(DOBRUSHIN)}, chained")
    assert chain.get_ydata().tolist() == [10.5, 16.5, 14.5]
    assert chain.get_linewidth() < line(bert, label(DOBRUSHIN)).get_linewidth()
    assert line(pure, f"{label('sharp')}, chained").get_ydata().tolist() == [6, 0, -180]
    assert not [one for one in minilm.get_lines() if "chained" in one.get_label()]


def test_conditions_that_are_not_met_are_crossed(pages):
    minilm = pages[""].axes[2]
    crosses = line(minilm, f"{label('paper')}: condition not met")
    assert crosses.get_xdata().tolist() == [1]
    assert crosses.get_marker() == "x"
    other = line(minilm, f"{label('tight')}: condition not met")
    assert other.get_xdata().tolist() == [1, 2, 3]
    assert other.get_ydata()[0] < crosses.get_ydata()[0] < 1
    assert not line(minilm, f"{label('sharp')}: condition not met").get_xdata().size
    assert not [found for found in minilm.get_lines() if found.get_label() == label("tight")]


def test_layers_of_round_off_are_cut_and_named(pages):
    pure, bert, minilm = pages[""].axes
    assert [text.get_text() for text in bert.texts] == ["layers 4 to 5: round-off"]
    assert not pure.texts
    assert not minilm.texts
    span = [patch for patch in bert.patches if patch.get_label() == figure_bounds.ROUND_OFF]
    assert span[0].get_x() > 3
    assert bert.get_ylim()[0] > -20
    one = forms_of(BERT, [0.0, -4.0, -45.0], lost={3})
    assert [text.get_text() for text in draw(one)[""].axes[0].texts] == ["layer 3: round-off"]


def test_a_fall_of_hundreds_of_decades_is_drawn_so_that_it_is_a_line(pages):
    pure, bert, _ = pages[""].axes
    assert (pure.get_yscale(), bert.get_yscale()) == ("symlog", "linear")
    assert pure.get_ylim()[0] < -210


def test_nothing_is_cut_off(pages):
    for axes in pages[""].axes:
        low, high = axes.get_ylim()
        for found in axes.get_lines():
            if "condition" not in found.get_label():
                values = np.asarray(found.get_ydata(), float)
                values = values[np.isfinite(values)]
                assert ((values >= low) & (values <= high)).all(), found.get_label()


def test_legend_names_each_look_once(pages):
    labels = legend_labels(pages[""])
    assert len(set(labels)) == len(labels)
    assert {
        figure_bounds.MEASURED.label,
        figure_bounds.VACUOUS,
        figure_bounds.THROUGH_NORMS,
        *map(label, OFFSETS.keys() & figure_bounds.FORMS.keys()),
    } < {*labels}


def test_the_second_page_says_why_conditions_fail(pages):
    oscillation, gamma, beta = pages["quantities"].axes
    bert = line(oscillation, "BERT, at initialisation")
    assert bert.get_ydata().tolist() == [1.0, 0.1, 0.01]  # the larger of two seeds
    assert line(gamma, "MiniLM, pretrained").get_ydata().tolist() == [1.5] * 3
    assert line(beta, "pure SAN, small weights").get_ydata().tolist() == [0.9] * 3
    assert line(oscillation, "paper").get_ydata()[0] == PAPER_LIMIT
    assert line(oscillation, "first version").get_ydata()[0] == pytest.approx(math.log(8))


def test_the_table_is_what_is_drawn():
    forms = all_forms()
    rows = figure_bounds.table(all_bounds(forms), forms)
    expected = {*FORM_COLUMNS, "seeds", "max_D", "gamma", "beta"} - {"seed"}
    assert set(rows.columns) == expected
    assert rows["checkpoint"].unique().tolist() == [PURE_SAN, BERT[0], MINILM[0]]
    assert rows.groupby("checkpoint")["seeds"].first().to_dict() == {
        PURE_SAN: 1,
        BERT[0]: 2,
        MINILM[0]: 1,
    }


def test_one_model_of_a_users_own_is_drawn():
    figure = draw(forms_of(("mine", "pretrained"), [1.0, 0.5]))[""]
    (axes,) = figure.axes
    assert axes.get_title().startswith("mine, pretrained\n")


def test_nothing_evaluated_is_one_line():
    with pytest.raises(RankCollapseError, match=r"^bounds: none was evaluated[^\n]*$"):
        draw(all_forms()[:0])


def test_it_can_be_written_twice_with_the_same_bytes(tmp_path, pages):
    files = output.save(pages, tmp_path / "bounds")
    assert [file.name for file in files] == ["bounds.pdf", "bounds.png", "bounds_quantities.png"]
    again = output.save(draw(), tmp_path / "again")
    assert [a.read_bytes() == b.read_bytes() for a, b in zip(files, again, strict=True)] == [
        True
    ] * 3


def test_drawing_needs_no_torch():
    code = "import sys, rankcollapse.figures.bounds; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
