import copy
import math

import numpy as np
import pandas as pd
import pytest
import torch
from reference_forward import (
    mpnet_bucket,
    reference_states,
    tiny_inputs,
    tiny_model,
    xlnet_positions,
)

from rankcollapse import ablate, composite_norm, hidden_states
from rankcollapse.relative import relative_study, relative_term
from rankcollapse.relative_tables import (
    CLAIM_COLUMNS,
    CONTRACTION_COLUMNS,
    RELATIVE_COLUMNS,
    judge,
    predicted,
)

TERMS = {"mpnet": "encoder.relative_attention_bias.weight", "xlnet": "rel_attn.r"}
KEY = {"checkpoint": "tiny", "weights": "init", "seed": 0}


def model_with_term(name, scale, strength=1.0):
    """A tiny model whose stored relative weights are multiplied."""
    model = tiny_model(name)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if key.endswith(TERMS[name]):
                parameter.mul_(scale * strength)
    return model


def study(name, **options):
    model = model_with_term(name, 1.0, strength=4.0)
    return relative_study(model, tiny_inputs(model)["input_ids"], **KEY, **options)


def attention_of_term(name, model, layer, ids, scale):
    """Return softmax of the term alone by the formulas, [B, H, T, T]."""
    weights, tokens = model.state_dict(), ids.shape[1]
    if name == "mpnet":
        buckets = [[mpnet_bucket(j - i) for j in range(tokens)] for i in range(tokens)]
        bias = weights["encoder.relative_attention_bias.weight"][torch.tensor(buckets)]
        return (scale * bias.permute(2, 0, 1)).softmax(-1)[None]
    scaled = model_with_term(name, scale, strength=4.0)
    states = reference_states(scaled, "san", "as-published", ids)
    at = f"layer.{layer}.rel_attn"
    query = torch.einsum("bd,dhk->bhk", states[layer].mean(1), weights[f"{at}.q"])
    keys = torch.einsum("ijd,dhk->ijhk", xlnet_positions(32, tokens), weights[f"{at}.r"])
    scores = torch.einsum("bhk,ijhk->bhij", query + weights[f"{at}.r_r_bias"], keys)
    return (scale * scores / math.sqrt(8)).softmax(-1)


@pytest.mark.parametrize("name", TERMS)
@pytest.mark.parametrize("variant", ["san", "transformer"])
@pytest.mark.parametrize("scale", [0.5, 0.0, -2.0])
def test_the_term_is_scaled_as_the_formulas_have_it(name, variant, scale):
    model = model_with_term(name, 1.0)
    inputs = tiny_inputs(model)
    with torch.no_grad(), relative_term(model, scale), ablate(model, variant):
        states = hidden_states(model, **inputs)
    other = model_with_term(name, scale)
    expected = reference_states(other, variant, "as-published", **inputs)
    torch.testing.assert_close(states, expected, rtol=0, atol=1e-12)
    untouched = reference_states(model, variant, "as-published", **inputs)
    assert (states - untouched).abs().max() > 1e-4


@pytest.mark.parametrize("name", TERMS)
def test_scale_one_changes_no_bit_and_all_is_restored(name):
    model = model_with_term(name, 1.0)
    inputs = tiny_inputs(model)
    before = copy.deepcopy(model.state_dict())
    attributes = {path: set(vars(module)) for path, module in model.named_modules()}
    with torch.no_grad():
        stock = model(**inputs).last_hidden_state
        with relative_term(model, 1.0):
            assert torch.equal(model(**inputs).last_hidden_state, stock)
        with pytest.raises(KeyError), relative_term(model, 0.0):
            raise KeyError
        assert torch.equal(model(**inputs).last_hidden_state, stock)
    assert {path: set(vars(module)) for path, module in model.named_modules()} == attributes
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert not any(module._forward_hooks for module in model.modules())


def test_a_model_without_a_relative_term_is_named():
    with pytest.raises(ValueError, match="'bert': known are mpnet, xlnet"):
        relative_term(tiny_model("bert"), 0.5).__enter__()
    model = tiny_model("bert")
    with pytest.raises(ValueError, match="known are mpnet, xlnet"):
        relative_study(model, tiny_inputs(model)["input_ids"], **KEY)


@pytest.mark.parametrize("scale", [math.nan, math.inf])
def test_a_scale_that_is_no_number_is_refused(scale):
    with pytest.raises(ValueError, match="finite"):
        relative_term(tiny_model("mpnet"), scale).__enter__()


def test_the_term_is_not_scaled_twice():
    model = tiny_model("xlnet")
    with relative_term(model, 0.5):
        with pytest.raises(ValueError, match="cannot replace"):
            relative_term(model, 0.5).__enter__()
        assert "rel_shift_bnij" in vars(model.layer[0].rel_attn)
    assert "rel_shift_bnij" not in vars(model.layer[0].rel_attn)


def test_a_scale_that_no_layer_asks_for_is_an_error():
    model = tiny_model("mpnet")
    other = tiny_model("mpnet", seed=1)
    inputs = tiny_inputs(model)
    model.encoder.forward = other.encoder.forward  # asks the other model for its term
    with pytest.raises(RuntimeError, match="no effect on 1"), relative_term(model, 0.5):
        model(**inputs)


@pytest.mark.parametrize("name", TERMS)
@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_tau_and_eigenvalue_are_those_of_the_term_alone(name, scale):
    model = model_with_term(name, 1.0, strength=4.0)
    ids = tiny_inputs(model)["input_ids"]
    found = study(name, scales=[scale]).contraction
    assert len(found) == 3 * 4
    for layer in range(3):
        attention = attention_of_term(name, model, layer, ids, scale).numpy()
        distances = np.abs(attention[:, :, :, None] - attention[:, :, None]).sum(-1) / 2
        rows = found[found["layer"] == layer + 1]
        np.testing.assert_allclose(rows["tau"], distances.max((2, 3)).mean(0), atol=1e-12)
        second = np.sort(np.abs(np.linalg.eigvals(attention)), -1)[..., -2].mean(0)
        np.testing.assert_allclose(rows["second_eigenvalue"], second, atol=1e-10)
        assert (rows["tau"] > 0.01).all()
        assert (rows["second_eigenvalue"] <= rows["tau"] + 1e-12).all()


@pytest.mark.parametrize("name", TERMS)
def test_the_weight_is_the_norm_of_each_heads_value_map(name):
    model = model_with_term(name, 1.0)
    weights = model.state_dict()
    found = relative_study(model, tiny_inputs(model)["input_ids"], scales=[1.0], **KEY).contraction
    for layer, head in ((0, 1), (2, 3)):
        part = slice(8 * head, 8 * head + 8)
        if name == "mpnet":
            at = f"encoder.layer.{layer}.attention.attn"
            value = weights[f"{at}.v.weight"][part].T @ weights[f"{at}.o.weight"][:, part].T
        else:
            at = f"layer.{layer}.rel_attn"
            value = weights[f"{at}.v"][:, head] @ weights[f"{at}.o"][:, head].T
        row = found[(found["layer"] == layer + 1) & (found["head"] == head)]
        assert row["weight"].item() == pytest.approx(value.abs().sum(1).max().item())


@pytest.mark.parametrize("name", TERMS)
def test_ratios_are_those_of_the_formulas(name):
    measured, contraction = study(name, scales=[1.0, 0.0])
    assert list(measured.columns) == RELATIVE_COLUMNS
    assert list(contraction.columns) == CONTRACTION_COLUMNS
    assert len(measured) == 2 * 4 * 2
    assert set(measured["seed"]) == {0}
    for scale in (1.0, 0.0):
        model = model_with_term(name, scale, strength=4.0)
        ids = tiny_inputs(model)["input_ids"]
        states = reference_states(model, "san", "as-published", ids)
        residual = composite_norm(states - states.mean(2, keepdim=True))
        ratios = (residual / composite_norm(states)).flatten()
        rows = measured[measured["scale"] == scale]
        np.testing.assert_allclose(rows["ratio"], ratios, rtol=1e-9, atol=1e-15)
    assert (contraction[contraction["scale"] == 0]["tau"] < 1e-14).all()


@pytest.mark.parametrize("name", TERMS)
def test_without_its_term_a_tiny_model_collapses_further(name):
    measured = study(name, scales=[1.0, 0.0]).measured
    last = measured[measured["layer"] == 3].groupby("scale")["ratio"].max()
    assert last[0.0] < last[1.0] / 100


def test_a_model_in_float32_and_a_single_token_are_refused():
    model = tiny_model("mpnet", dtype=torch.float32)
    with pytest.raises(ValueError, match=r"torch\.float32"):
        relative_study(model, tiny_inputs(model)["input_ids"], **KEY)
    model = tiny_model("mpnet")
    with pytest.raises(ValueError, match="at least 2 tokens"):
        relative_study(model, torch.tensor([[7]]), **KEY)


def contraction_rows(values, layer=1):
    rows = [("m", "init", 0, 1.0, layer, head, *row) for head, row in enumerate(values)]
    return pd.DataFrame(rows, columns=CONTRACTION_COLUMNS)


def test_the_prediction_is_the_mean_over_heads_weighted_by_their_value_maps():
    rows = pd.concat(
        [
            contraction_rows([(0.8, 0.6, 1.0), (0.2, 0.1, 3.0)]),
            contraction_rows([(0.5, 0.25, 2.0), (0.5, 0.25, 9.0)], layer=2),
        ]
    )
    found = predicted(rows)
    assert found["layer"].tolist() == [1, 2]
    assert found["tau"].tolist() == pytest.approx([(0.8 + 0.6) / 4, 0.5])
    assert found["second_eigenvalue"].tolist() == pytest.approx([(0.6 + 0.3) / 4, 0.25])


def measured_rows(rates, *, weights="pretrained", seed=pd.NA):
    """Rates by scale, then [layer][sequence]."""
    rows = [
        ("m", weights, seed, scale, layer, sequence, 0.1, rate)
        for scale, layers in rates.items()
        for layer, values in enumerate(layers)
        for sequence, rate in enumerate(values)
    ]
    return pd.DataFrame(rows, columns=RELATIVE_COLUMNS).astype({"seed": "Int64"})


def test_claims_are_judged_by_the_last_layer_above_the_floor():
    nan = np.nan
    rates = {
        1.0: [[nan, nan], [1.9, 1.8], [1.1, 1.2]],
        0.0: [[nan, nan], [2.8, 3.0], [nan, 1.0]],  # one has come to the floor: not used
    }
    found = judge(measured_rows(rates))
    assert list(found.columns) == CLAIM_COLUMNS
    assert found["effect"].tolist() == pytest.approx([2 - 1.15, 2.9 - 2, 2.9 - 1.15])
    half = 12.706204736 * 0.05  # Student's t of two values, 0.9 and 0.8
    assert (found["low"][0], found["high"][0]) == pytest.approx((0.85 - half, 0.85 + half))
    assert found["condition"].tolist() == ["m, pretrained"] * 3


def test_verdicts():
    clear = {1.0: [[1.1, 1.1001]], 0.0: [[2.9, 2.9001]]}
    assert set(judge(measured_rows(clear))["verdict"]) == {"supported"}
    reversed_ = {1.0: clear[0.0], 0.0: clear[1.0]}
    assert set(judge(measured_rows(reversed_))["verdict"]) == {"opposite"}
    vague = {1.0: [[1.0, 2.9]], 0.0: [[1.0, 2.9]]}
    verdicts = judge(measured_rows({1.0: [[1.0, 2.9]], 0.0: [[2.9, 1.1]]}))["verdict"]
    assert set(verdicts) == {"not supported"}
    assert judge(measured_rows(vague))["verdict"][0] == "not supported"


def test_what_was_not_measured_is_said_to_be_so():
    missing = judge(measured_rows({1.0: [[1.1, 1.2]]}))
    assert missing["verdict"].tolist() == ["supported", "not measured", "not measured"]
    one = judge(measured_rows({1.0: [[1.1]], 0.0: [[2.9]]}))
    assert set(one["verdict"]) == {"not measured"}
    assert one["effect"].tolist() == pytest.approx([0.9, 0.9, 1.8])


def test_seeds_and_sequences_are_paired():
    frames = [
        measured_rows({1.0: [[1 + d, 1.2 + d]], 0.0: [[2.5 + d, 2.7 + d]]}, weights="init", seed=s)
        for s, d in ((0, 0.0), (1, 0.5))
    ]
    found = judge(pd.concat(frames)).iloc[2]
    assert (found["effect"], found["low"], found["high"]) == pytest.approx((1.5, 1.5, 1.5))
