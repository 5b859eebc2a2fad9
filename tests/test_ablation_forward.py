"""Every variant of every architecture gives the states that the formulas give."""

import pytest
import torch
from reference_forward import CASES, CONFIGS, READINGS, VARIANTS, reference_states, tiny_inputs
from reference_forward import tiny_model as make

from rankcollapse import ablate, hidden_states

torch.set_num_threads(1)
SEGMENTS = torch.tensor([[0, 0, 0, 1, 1, 1, 1], [0, 0, 0, 0, 1, 1, 1]])
NO_SEGMENTS = ("mpnet",)
DEPTH = {"albert-groups": 7}
SAME_IN_BOTH_READINGS = {
    "bert": {"san", "san_skip", "transformer"},
    "albert": {"transformer"},
    "albert-groups": {"transformer"},
    "xlnet": {"san", "san_skip", "transformer"},
    "mpnet": {"san", "san_skip", "transformer"},
}
# The last linear map of a branch; with it small, a skip removed by subtraction shows.
BRANCH_ENDS = ("attention.output.dense", "attention.dense", "rel_attn.o", "attn.o.")
MLP_ENDS = ("output.dense", "ffn_output", "ff.layer_2")


def error(states, expected):
    """Largest difference relative to the largest value; states are [L + 1, B, T, D]."""
    assert states.shape == expected.shape
    return float((states.double() - expected).abs().max() / expected.abs().max())


def ablated_states(model, variant, reading, **inputs):
    with torch.no_grad(), ablate(model, variant, reading=reading):
        return hidden_states(model, **inputs)


@pytest.fixture(scope="module")
def models():
    return {case: make(case[0], attention=case[1]) for case in CASES}


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_the_reference_is_the_stock_model_where_nothing_is_ablated(case, padded):
    model = make(case[0], attention=case[1])
    inputs = tiny_inputs(model, padded=padded)
    with torch.no_grad():
        stock = torch.stack(model(**inputs, output_hidden_states=True).hidden_states)
    assert error(stock, reference_states(model, "transformer", "as-published", **inputs)) < 1e-13


@pytest.mark.parametrize("name", CONFIGS)
def test_the_conditions_differ_where_the_definitions_do(models, name):
    model = models[name, "eager"]
    inputs = tiny_inputs(model)
    last = {
        (variant, reading): reference_states(model, variant, reading, **inputs)[-1]
        for variant in VARIANTS
        for reading in READINGS
    }
    for (variant, reading), states in last.items():
        for (other, other_reading), other_states in last.items():
            same = variant == other and (
                reading == other_reading or variant in SAME_IN_BOTH_READINGS[name]
            )
            assert (float((states - other_states).abs().max()) < 1e-3) == same


@pytest.mark.parametrize("padded", [False, True], ids=["full", "padded"])
@pytest.mark.parametrize("reading", READINGS)
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_states_are_those_of_the_formulas(models, case, variant, reading, padded):
    model = models[case]
    inputs = tiny_inputs(model, padded=padded)
    states = ablated_states(model, variant, reading, **inputs)
    assert states.dtype == torch.float64
    assert states.shape == (DEPTH.get(case[0], 4), 2, 7, 32)
    assert error(states, reference_states(model, variant, reading, **inputs)) < 1e-10


# As many tokens as sequences: an axis cannot be told by its length. 40: MPNet's wide buckets.
@pytest.mark.parametrize("tokens", [1, 2, 40])
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", CONFIGS)
def test_states_do_not_depend_on_the_number_of_tokens(models, name, variant, tokens):
    model = models[name, "eager"]
    inputs = tiny_inputs(model, padded=tokens == 40, tokens=tokens)
    states = ablated_states(model, variant, "as-described", **inputs)
    assert error(states, reference_states(model, variant, "as-described", **inputs)) < 1e-10


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", [name for name in CONFIGS if name not in NO_SEGMENTS])
def test_segments_reach_the_model(models, name, variant):
    model = models[name, "eager"]
    inputs = tiny_inputs(model, padded=True) | {"token_type_ids": SEGMENTS}
    expected = reference_states(model, variant, "as-published", **inputs)
    plain = reference_states(model, variant, "as-published", inputs["input_ids"])
    assert error(ablated_states(model, variant, "as-published", **inputs), expected) < 1e-10
    assert error(plain, expected) > 1e-3


def chunked_model(name):
    model = make(name)
    blocks = [part for part in model.modules() if hasattr(part, "chunk_size_feed_forward")]
    assert len(blocks) == (1 if name == "albert" else 3)
    for block in blocks:
        block.chunk_size_feed_forward = 1
    return model


# All but ALBERT's MLP without its skip: there the addition is outside of the chunks.
CHUNKED = [
    (name, variant, reading)
    for name in ("bert", "albert", "xlnet")
    for variant in VARIANTS
    for reading in READINGS
    if (name, variant, reading) != ("albert", "san_mlp", "as-described")
]


@pytest.mark.parametrize(("name", "variant", "reading"), CHUNKED)
def test_an_mlp_that_works_in_chunks_is_ablated_too(name, variant, reading):
    model = chunked_model(name)
    inputs = tiny_inputs(model)
    states = ablated_states(model, variant, reading, **inputs)
    assert error(states, reference_states(model, variant, reading, **inputs)) < 1e-10


def test_the_skip_of_an_mlp_of_albert_that_works_in_chunks_is_not_removed():
    model = chunked_model("albert")
    with (
        pytest.raises(ValueError, match=r"^cannot .* chunk_size_feed_forward .*$"),
        ablate(model, "san_mlp", reading="as-described"),
    ):
        pass


@pytest.mark.parametrize("reading", READINGS)
@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_the_transformer_variant_is_the_stock_model_to_the_last_bit(case, reading):
    name, attention = case
    stock, model = (make(name, attention=attention, dtype=torch.float32) for _ in range(2))
    inputs = tiny_inputs(model, padded=True)
    with torch.no_grad():
        expected = stock(**inputs, output_hidden_states=True)
        with ablate(model, "transformer", reading=reading):
            states = hidden_states(model, **inputs)
            last = model(**inputs).last_hidden_state
    assert torch.equal(last, expected.last_hidden_state)
    assert torch.equal(states, torch.stack(expected.hidden_states))


def shrink(model, ends, factor):
    names = [key for key, _ in model.named_parameters() if any(end in key for end in ends)]
    assert names
    with torch.no_grad():
        for name in names:
            model.get_parameter(name).mul_(factor)


@pytest.mark.parametrize("reading", READINGS)
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_a_removed_skip_leaves_no_rounding_error_behind(case, variant, reading):
    """With branches 1e-4 of the skip, x + (f(x) - x) in float32 would be wrong by 1e-3."""
    model = make(case[0], attention=case[1], dtype=torch.float32)
    shrink(model, BRANCH_ENDS + MLP_ENDS, 1e-4)
    inputs = tiny_inputs(model, padded=True)
    states = ablated_states(model, variant, reading, **inputs)
    assert states.dtype == torch.float32
    assert error(states, reference_states(model, variant, reading, **inputs)) < 1e-5
