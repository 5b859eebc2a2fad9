import math
import subprocess
import sys
from dataclasses import replace

import mpmath
import numpy as np
import pandas as pd
import pytest
import torch
from reference_forward import CONFIGS, tiny_inputs, tiny_model
from transformers.activations import ACT2FN

from rankcollapse.architectures.parts import anatomy_of
from rankcollapse.bound_chains import VERDICTS, closed_form
from rankcollapse.bound_claims import BoundViolatedError, Claim, closed, tables
from rankcollapse.bound_studies import (
    PURE_DEPTH,
    PURE_HEADS,
    PURE_SCALE,
    PURE_SEEDS,
    PURE_STD,
    PURE_TOKENS,
    PURE_WIDTH,
    bounds,
    pure_layers,
    pure_san,
    require_same,
)
from rankcollapse.bound_tables import (
    BOUND_COLUMNS,
    CHAINS,
    CUBIC,
    DOBRUSHIN,
    FORM_COLUMNS,
    PURE_SAN,
    conclusion,
    over_seeds,
    over_sequences,
)
from rankcollapse.bounds import CLOSED_FORMS, FORMS, layer_bounds
from rankcollapse.errors import RankCollapseError
from rankcollapse.states import hidden_states
from rankcollapse.subjects import Subject
from rankcollapse.sublayers import heads_of, spectral_norms
from rankcollapse.tables import read_csv, write_csv
from rankcollapse.tasks import stream
from rankcollapse.trace import trace

NAMED = {"checkpoint": "tiny", "weights": "init", "seed": 0}
RELATIVE = ("mpnet", "xlnet")
LAYERS, HEADS, WIDTH = 3, 4, 8  # of the tiny models


def subject(name="bert", *, scale=1.0, sequences=2):
    model = tiny_model(name)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if "norm" not in key.lower() and "embed" not in key:
                parameter.mul_(scale)
    return Subject(model, tiny_inputs(model)["input_ids"][:sequences], NAMED)


def one(rows, **values):
    for column, value in values.items():
        rows = rows[rows[column] == value]
    (row,) = rows.to_dict("records")
    return row


def composite_log10(x):
    magnitude = np.abs(x)
    return np.log10(magnitude.sum(0).max() * magnitude.sum(1).max()) / 2


def softmax(scores):
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def distance(x, order=1):
    return max(np.linalg.norm(a - b, order) for a in x for b in x)


def bert_weights(model, layer):
    at = f"encoder.layer.{layer}.attention"
    state = model.state_dict()

    def linear(name):
        return state[f"{at}.{name}.weight"].numpy().T, state[f"{at}.{name}.bias"].numpy()

    return [linear(name) for name in ("self.query", "self.key", "self.value", "output.dense")]


def numpy_attention(model, x, layer):
    """Return BERT's attention output [T, D], and each head's P, E, r, W and W_Q W_K^T."""
    (query, query_bias), (key, key_bias), (value, value_bias), (output, bias) = bert_weights(
        model, layer
    )
    rest, total, heads = x - x.mean(0), bias, []
    for start in range(0, HEADS * WIDTH, WIDTH):
        part = slice(start, start + WIDTH)
        queries, keys = (
            x @ w[:, part] + b[part] for w, b in ((query, query_bias), (key, key_bias))
        )
        attention = softmax(queries @ keys.T / np.sqrt(WIDTH))
        total = total + attention @ (x @ value[:, part] + value_bias[part]) @ output[part]
        interaction = query[:, part] @ key[:, part].T
        scores = rest @ interaction @ rest.T / np.sqrt(WIDTH)
        anchor = x.mean(0) @ query[:, part] + query_bias[part]
        shared = rest @ key[:, part] @ anchor / np.sqrt(WIDTH)
        heads.append((attention, scores, shared, value[:, part] @ output[part], interaction))
    return total, heads


def test_one_layer_against_numpy():
    of = subject(sequences=1)
    found = bounds(of)
    x = hidden_states(of.model, input_ids=of.ids)[0, 0].detach().numpy()
    rest = x - x.mean(0)
    _, heads = numpy_attention(of.model, x, 0)
    left, betas, gammas, largest, contraction, parts = 0, [], [], [], 0, np.zeros(2)
    for attention, scores, shared, weight, interaction in heads:
        left = left + (attention - softmax(shared)) @ rest @ weight
        columns, rows = np.abs(weight).sum(0).max(), np.abs(weight).sum(1).max()
        strength = np.abs(interaction).sum(0).max() / np.sqrt(WIDTH)
        oscillation = np.ptp(scores, axis=1)
        gamma = np.sqrt(oscillation.sum() / distance(scores.T))
        betas.append(strength * np.sqrt(columns * rows))
        gammas.append(gamma)
        largest.append(oscillation.max())
        contraction += distance(attention) / 2 * rows
        constant = min(gamma**2, 2 * np.exp(oscillation.max()))
        parts += strength * np.array([constant * columns, rows])
    row = one(found["bounds"], layer=1)
    assert row["measured_log10"] == pytest.approx(composite_log10(left), abs=1e-10)
    assert row["beta"] == pytest.approx(max(betas))
    assert row["gamma"] == pytest.approx(max(gammas))
    assert row["max_D"] == pytest.approx(max(largest))
    assert row["dobrushin_log10"] == pytest.approx(np.log10(contraction * distance(x)))
    ours = one(found["bound_forms"], layer=1, form="ours", chain="one step")
    cubed = 3 * composite_log10(rest)
    assert ours["bound_log10"] == pytest.approx(np.log10(parts.prod()) / 2 + cubed)
    assert ours["trivial_log10"] == pytest.approx(min(composite_log10(rest), composite_log10(x)))
    tight = one(found["bound_forms"], layer=1, form="tight", chain="one step")
    assert (row["bound_log10"], row["verdict"]) == (tight["bound_log10"], tight["verdict"])


def test_dobrushin_goes_through_the_norms():
    of = subject(sequences=1)
    forms = bounds(of)["bound_forms"]
    x = hidden_states(of.model, input_ids=of.ids)[0, 0].detach().numpy()
    limit = distance(x, 2)
    for layer in range(LAYERS):
        output, heads = numpy_attention(of.model, x, layer)
        tau = [distance(attention) / 2 for attention, *_ in heads]
        norms = [np.linalg.norm(weight, 2) for *_, weight, _ in heads]
        limit *= np.dot(tau, norms)
        row = one(forms, layer=layer + 1, form=DOBRUSHIN, chain="chained")
        assert row["bound_log10"] == pytest.approx(np.log10(limit))
        assert row["measured_log10"] == pytest.approx(np.log10(distance(output, 2)))
        norm = of.model.encoder.layer[layer].attention.output.LayerNorm
        gain = norm.weight.detach().numpy()
        scale = 1 / np.sqrt(output.var(1) + norm.eps)
        x = (output - output.mean(1, keepdims=True)) * scale[:, None] * gain
        x = x + norm.bias.detach().numpy()
        limit *= np.abs(gain).max() * scale.max()


@pytest.mark.parametrize("scale", [1.0, 5.0, 40.0])
@pytest.mark.parametrize("name", CONFIGS)
def test_no_bound_of_a_tiny_model_is_violated(name, scale):
    found = bounds(subject(name, scale=scale))
    forms = found["bound_forms"]
    layers = forms["layer"].max()
    assert list(found["bounds"].columns) == BOUND_COLUMNS
    assert list(forms.columns) == FORM_COLUMNS
    assert found["bounds"]["layer"].tolist() == list(range(1, layers + 1))
    assert len(forms) == layers * (len(FORMS) + 1 + len(CLOSED_FORMS) + 1)
    assert set(forms["verdict"]) < {*VERDICTS} - {"violated"}
    bounded = forms[forms["margin"].notna()]
    if name.startswith("albert"):  # the chain through its norms falls below what float64 can show
        bounded = bounded[(bounded["chain"] != "chained") | (bounded["verdict"] != "below floor")]
    assert (bounded["margin"] >= -1e-9).all()
    assert bounded["measured_log10"].notna().all()
    cubic = forms[forms["form"] != DOBRUSHIN]
    assert cubic["margin"].isna().all() == (name in RELATIVE)
    steps = forms[(forms["form"] == DOBRUSHIN) & (forms["chain"] == "one step")]
    assert steps["margin"].notna().all()


def test_a_relative_term_leaves_only_dobrushin():
    for name in RELATIVE:
        found = bounds(subject(name))
        assert set(found["bounds"]["verdict"]) == {"condition not met"}
        assert found["bounds"]["bound_log10"].isna().all()
        assert found["bounds"]["dobrushin_log10"].notna().all()


def test_the_chain_goes_through_what_albert_keeps_of_its_mlp():
    of = subject("albert", sequences=1)
    chain = one_chain(bounds(of)["bound_forms"])
    block = of.model.encoder.albert_layer_groups[0].albert_layers[0]
    seen = trace(of.model, {"input_ids": of.ids}, variant="san").frozen
    # The steepest point of u + gelu_new(u).
    u = torch.linspace(-6, 6, 120_001, dtype=torch.float64, requires_grad=True)
    (slopes,) = torch.autograd.grad((u + ACT2FN["gelu_new"](u)).sum(), u)
    steps = np.diff(chain["bound_log10"])
    for layer, step in enumerate(steps):
        attention = seen[layer + 1].attention[0]
        tau = [distance(a) / 2 for a in attention.numpy()]
        norms = spectral_norms(anatomy_of("albert").parts(block)).detach().numpy()
        gains = [
            np.abs(norm.weight.detach().numpy()).max() * scale.max().item()
            for norm, scale in (
                (block.attention.LayerNorm, seen[layer].scale),
                (block.full_layer_layer_norm, seen[layer].mlp.scale),
            )
        ]
        factor = np.dot(tau, norms) * gains[0] * slopes.max().item() * gains[1]
        assert step == pytest.approx(np.log10(factor), abs=1e-6)


def one_chain(forms):
    return forms[(forms["form"] == DOBRUSHIN) & (forms["chain"] == "chained")]


def test_the_norms_of_a_real_model_leave_the_closed_form_no_condition():
    of = subject(sequences=1, scale=0.01)
    found = bounds(of)
    small = one(found["bound_forms"], layer=3, form="sharp", chain="closed")
    assert small["bound_log10"] < small["trivial_log10"]
    assert small["verdict"] == "condition not met"
    assert math.isnan(small["margin"])
    first = one(found["bound_forms"], layer=1, form="sharp", chain="closed")
    assert first["verdict"] == "holds"


def test_the_papers_closed_form_has_a_number_without_its_condition():
    found = bounds(subject(scale=5.0, sequences=1))
    rows = found["bounds"]
    assert (rows["max_D"] > 1.2564).any()
    coefficient = math.log10(4 * HEADS * rows["gamma"].max() * rows["beta"].max())
    row = one(found["bound_forms"], layer=LAYERS, form="paper", chain="closed")
    start = one(found["bound_forms"], layer=1, form="ours", chain="one step")["trivial_log10"]
    assert row["bound_log10"] == pytest.approx(closed_form(coefficient, start, depth=LAYERS))
    assert row["verdict"] == "condition not met"
    assert math.isnan(row["margin"])


def test_spectral_norms_by_numpy():
    of = subject("xlnet")
    part = anatomy_of("xlnet").parts(of.model.layer[0])
    expected = [np.linalg.norm(head.value_output.detach(), 2) for head in heads_of(part)]
    assert spectral_norms(part).tolist() == pytest.approx(expected)


def test_heads_must_give_the_models_own_output():
    of = subject()
    layer = of.model.encoder.layer[0]
    x = hidden_states(of.model, input_ids=of.ids)[0].detach()
    output = layer.attention.output.dense(layer.attention.self(x)[0]).detach()
    heads = heads_of(anatomy_of("bert").parts(layer))
    with torch.no_grad():
        require_same(x, heads, output + torch.randn(WIDTH * HEADS), "layer 1")
        for wrong in (heads[:-1], [*heads[:-1], heads[0]]):
            with pytest.raises(RankCollapseError, match=r"^layer 1: the heads'[^\n]*$"):
                require_same(x, wrong, output, "layer 1")
        with pytest.raises(RankCollapseError, match="differ from the attention's by nan"):
            require_same(x, heads, output * math.nan, "layer 1")


def test_a_model_is_left_as_it_was_and_must_be_in_float64():
    of = subject("xlnet")
    before = hidden_states(of.model, input_ids=of.ids)
    bounds(of)
    assert torch.equal(hidden_states(of.model, input_ids=of.ids), before)
    assert not [m for m in of.model.modules() if m._forward_hooks or m._forward_pre_hooks]
    single = Subject(of.model.float(), of.ids, NAMED)
    with pytest.raises(ValueError, match=r"^the model is in torch.float32; load it in"):
        bounds(single)


def test_round_off_as_an_input_is_said():
    forms = bounds(subject(scale=0.01))["bound_forms"]
    by_layer = forms.groupby("layer")["below_floor"].agg(["all", "any"])
    assert (by_layer["all"] == by_layer["any"]).all()
    assert by_layer["all"].tolist() == [False, False, True]


def mp_matrix(x):
    return mpmath.matrix(x.tolist())


def mp_layer(x, weights):
    """Return plain attention of one layer, in mpmath's precision."""
    total = mpmath.zeros(PURE_TOKENS, PURE_WIDTH)
    for query, key, value, output in weights:
        scores = (x * query) * (x * key).T / mpmath.sqrt(query.cols)
        powers = scores.apply(mpmath.exp)
        for i in range(PURE_TOKENS):
            row = mpmath.fsum(powers[i, :])
            for j in range(PURE_TOKENS):
                powers[i, j] /= row
        total += powers * (x * value * output)
    return total


def mp_residual_log10(x):
    means = [mpmath.fsum(x[:, j]) / PURE_TOKENS for j in range(PURE_WIDTH)]
    rest = mpmath.matrix(
        [[x[i, j] - means[j] for j in range(PURE_WIDTH)] for i in range(PURE_TOKENS)]
    )
    return float(mpmath.log10(mpmath.mnorm(rest, 1) * mpmath.mnorm(rest, mpmath.inf)) / 2)


def test_the_pure_network_in_hundreds_of_digits():
    random, width = stream(1, PURE_SAN), PURE_WIDTH // PURE_HEADS
    shapes = [(PURE_WIDTH, width)] * 3 + [(width, PURE_WIDTH)]
    with mpmath.workdps(260):
        x = mp_matrix(PURE_SCALE * random.standard_normal((PURE_TOKENS, PURE_WIDTH)))
        for layer in pure_layers(1):
            weights = [
                [mp_matrix(PURE_STD * random.standard_normal(shape)) for shape in shapes]
                for _ in range(PURE_HEADS)
            ]
            x = mp_layer(x, weights)
            expected = mp_residual_log10(x)
            assert layer.mean_residual_log10.item() == pytest.approx(expected, abs=1e-10)
    assert expected < -200


def test_the_theorem_says_something_of_the_pure_network():
    found = pure_san()
    forms = found["bound_forms"]
    assert set(forms["seed"]) == set(PURE_SEEDS)
    assert set(forms["verdict"]) == {"holds"}
    assert set(forms["chain"]) == set(CHAINS)
    assert not forms["below_floor"].any()
    assert forms["form"].nunique() == len(CUBIC) + 1
    last = forms[(forms["layer"] == PURE_DEPTH) & (forms["chain"] == "closed")]
    assert (last["bound_log10"] < -20).all()
    assert found["bounds"].equals(pure_san()["bounds"])


def test_chained_bounds_lie_between_one_step_and_closed():
    forms = pure_san(seeds=[0])["bound_forms"]
    chain, closed, step = (
        forms[forms["chain"] == name].set_index(["form", "layer"])["bound_log10"]
        for name in ("chained", "closed", "one step")
    )
    for form in ("first", "ours", "sharp"):
        assert (step[form] <= chain[form] + 1e-12).all()
        assert (chain[form] <= closed[form] + 1e-12).all()


def values(x):
    return torch.tensor([x], dtype=torch.float64)


BROKEN = Claim(1, "sharp", "closed", *map(values, (-2.0, -1.0, 0.0, -9.0)))
SOUND = Claim(1, "tight", "one step", *map(values, (-1.0, -2.0, 0.0, -9.0)))


def judged(*claims):
    return tables([next(pure_layers(0))], claims, [torch.tensor([False])], NAMED)["bound_forms"]


def test_a_violation_is_raised():
    message = r"^layer 1: sharp, closed, bounds by 10\^-2 what is 10\^-1: report it[^\n]*$"
    with pytest.raises(BoundViolatedError, match=message):
        judged(SOUND, BROKEN)


def test_what_the_paper_claims_without_a_proof_is_not_raised():
    row = one(judged(SOUND, BROKEN._replace(form="paper")), form="paper")
    assert (row["verdict"], row["margin"]) == ("violated", -1.0)
    for chain in ("one step", "chained"):
        with pytest.raises(BoundViolatedError, match=f"^layer 1: paper, {chain}, bounds by"):
            judged(BROKEN._replace(form="paper", chain=chain))
    pure = pure_san(seeds=[0])["bound_forms"]
    assert set(pure.loc[pure["form"] == "paper", "verdict"]) == {"holds"}


def test_round_off_does_not_enter_the_theorems_number():
    layers = list(pure_layers(0))
    lost = [torch.tensor([layer == 1]) for layer in range(PURE_DEPTH)]
    layers[1] = replace(layers[1], beta=layers[1].beta * 1e3)

    def last(below, form):
        *_, claim = (c for c in closed(layers, below, normed=False) if c.form == form)
        return claim.bound.item()

    kept = [layers[0], *layers[2:]]
    gamma, beta = (max(getattr(one, name).max() for one in kept) for name in ("gamma", "beta"))
    coefficient = math.log10(4 * PURE_HEADS * gamma * beta)
    start = layers[0].state_residual_log10.item()
    expected = closed_form(coefficient, start, depth=PURE_DEPTH)
    assert last(lost, "paper") == pytest.approx(expected)
    none = [torch.tensor([False])] * PURE_DEPTH
    power = (3**PURE_DEPTH - 1) // 2
    assert last(none, "paper") > expected + 2 * power
    assert last(none, "sharp") == last(lost, "sharp")
    assert math.isnan(last([~one for one in none], "paper"))


def test_what_no_theorem_covers_is_not_violated():
    row = one(judged(SOUND, BROKEN._replace(normed=True)), form="sharp")
    assert row["verdict"] == "condition not met"
    vacuous = BROKEN._replace(normed=True, bound=values(3.0))
    assert one(judged(vacuous), form="sharp")["verdict"] == "vacuous"
    assert one(judged(SOUND), form="tight")["verdict"] == "holds"


def test_below_the_floor_a_bound_is_not_violated():
    claim = Claim(1, DOBRUSHIN, "chained", *map(values, (-30.0, -15.0, 0.0, -14.0)))
    assert one(judged(claim), form=DOBRUSHIN)["verdict"] == "below floor"


def form_row(verdict, *, checkpoint="all-minilm-l6-v2", form="paper", chain="one step", **other):
    row = {"weights": "pretrained", "seed": None, "layer": 1, "measured_log10": -1.0}
    row |= {"bound_log10": 0.5, "trivial_log10": 1.0, "margin": 1.5, "below_floor": False}
    return (
        row | {"checkpoint": checkpoint, "form": form, "chain": chain, "verdict": verdict} | other
    )


def frame(*rows):
    return pd.DataFrame(rows)[FORM_COLUMNS]


def test_sequences_count_by_their_worst():
    rows = frame(
        form_row("holds"),
        form_row("vacuous", bound_log10=2.5, margin=0.5, below_floor=True),
        form_row("holds", form="ours"),
        form_row("condition not met", form="ours", bound_log10=math.nan, margin=math.nan),
    ).drop(columns=["checkpoint", "weights", "seed"])
    paper, ours = over_sequences(rows).to_dict("records")
    assert (paper["bound_log10"], paper["margin"], paper["verdict"]) == (1.5, 0.5, "vacuous")
    assert paper["below_floor"]
    assert ours["verdict"] == "condition not met"
    assert math.isnan(ours["bound_log10"])
    assert math.isnan(ours["margin"])
    assert ours["measured_log10"] == -1.0


def test_seeds_are_counted():
    rows = frame(*[form_row("holds", seed=seed, bound_log10=seed) for seed in (0, 1)])
    (row,) = over_seeds(rows).to_dict("records")
    assert (row["seeds"], row["bound_log10"], row["verdict"]) == (2, 0.5, "holds")


def test_conclusion_names_models_and_layers():
    layers = [form_row("holds", layer=layer) for layer in (1, 3, 4, 5, 7)]
    rows = [
        *layers,
        form_row("holds", layer=8, below_floor=True),
        form_row("vacuous", layer=9),
        form_row("vacuous", checkpoint="mine", weights="init"),
        form_row("holds", chain="closed", layer=1),
        form_row("holds", checkpoint=PURE_SAN, chain="closed", layer=2),
    ]
    said = conclusion(frame(*rows), labels={"all-minilm-l6-v2": "MiniLM"})
    assert "the paper's bound of one layer of pretrained MiniLM (layers 1, 3 to 5 and 7);" in said
    assert "the paper's theorem over several layers and our form of that of none" in said
    assert said.endswith("none of mine at initialisation.")
    assert said.count(".") == 1
    assert "\n" not in said


def test_conclusion_needs_every_seed():
    rows = [
        form_row(verdict, checkpoint="mine", weights="init", seed=seed)
        for seed, verdict in enumerate(("holds", "vacuous"))
    ]
    assert conclusion(frame(*rows)).endswith("these bounds say something: none.")
    rows[1]["verdict"] = "holds"
    assert "of mine at initialisation (layer 1)" in conclusion(frame(*rows))


def test_conclusion_of_a_violation_and_of_nothing():
    broken = frame(form_row("violated"), form_row("holds"))
    assert conclusion(broken).startswith("A bound is violated in 1 rows")
    claimed = frame(form_row("violated", chain="closed", layer=2), form_row("holds"))
    assert conclusion(claimed).startswith("Of real models")
    assert conclusion(frame(form_row("holds", checkpoint=PURE_SAN))).startswith("No bound")


def test_tables_are_what_is_read_back(tmp_path):
    found = pure_san(seeds=[0])
    for name, columns in (("bounds", BOUND_COLUMNS), ("bound_forms", FORM_COLUMNS)):
        write_csv(tmp_path / name, found[name])
        again = read_csv(tmp_path / name, columns)
        assert again["verdict"].tolist() == found[name]["verdict"].tolist()
    assert again["below_floor"].dtype == bool
    assert again["bound_log10"].tolist() == pytest.approx(found["bound_forms"]["bound_log10"])


def test_the_least_cubic_bound_is_the_headline():
    x = torch.randn(2, 6, 4, generator=torch.Generator().manual_seed(0)).double()
    layers = [*pure_layers(0), layer_bounds(x, narrow_heads())]
    for layer in layers:
        for form in FORMS:
            bound = layer.bounds_log10[form].nan_to_num(math.inf)
            assert (layer.bounds_log10["tight"] <= bound + 1e-12).all()


def narrow_heads():
    of = subject()
    part = anatomy_of("bert").parts(of.model.encoder.layer[0])
    pick = slice(None, 4)
    return [
        type(head)(head.query[pick], head.key[pick], head.value_output[pick, pick])
        for head in heads_of(part)
    ]


def test_the_tables_need_no_torch():
    code = "import sys, rankcollapse.bound_tables; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
