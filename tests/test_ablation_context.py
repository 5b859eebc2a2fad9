"""An ablation ends with its context and leaves the model, and every other model, as it was."""

import copy
from contextlib import ExitStack, suppress

import pytest
import torch
from reference_forward import CONFIGS, READINGS, VARIANTS, reference_states, tiny_inputs, tiny_model
from torch import nn
from transformers import GPT2Config, GPT2Model
from transformers.models.bert.modeling_bert import BertLayer

from rankcollapse import ablate, hidden_states

torch.set_num_threads(1)


class Interruption(Exception):
    pass


def last_state(model, **inputs):
    with torch.no_grad():
        return model(**(inputs or tiny_inputs(model, padded=True))).last_hidden_state


def close_to_reference(model, states, variant):
    inputs = tiny_inputs(model, padded=True)
    expected = reference_states(model, variant, "as-published", **inputs)[-1]
    return bool((states - expected).abs().max() < 1e-10)


def parts(model):
    """Everything that a change could leave behind, in the modules and in their classes."""
    found = {}
    for name, module in model.named_modules():
        found[name] = module
        found |= {(type(module), key): value for key, value in vars(type(module)).items()}
        for key, value in vars(module).items():
            found[name, key] = value
            if isinstance(value, dict):
                found |= {(name, key, entry): held for entry, held in value.items()}
    return found


def assert_unchanged(model, before):
    after = parts(model)
    assert set(after) == set(before)
    assert [key for key, value in after.items() if value is not before[key]] == []


@pytest.mark.parametrize("ending", ["normal", "exception", "failed forward"])
@pytest.mark.parametrize("reading", READINGS)
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", CONFIGS)
def test_the_model_is_what_it_was(name, variant, reading, ending):
    model = tiny_model(name)
    keys, tree, config = list(model.state_dict()), repr(model), model.config.to_dict()
    expected, before = last_state(model), parts(model)
    with suppress(Interruption, IndexError), ablate(model, variant, reading=reading):
        inside = last_state(model)
        if ending == "exception":
            raise Interruption
        if ending == "failed forward":
            last_state(model, input_ids=torch.tensor([[10**6]]))
    assert torch.equal(inside, expected) == (variant == "transformer")
    assert_unchanged(model, before)
    assert (list(model.state_dict()), repr(model)) == (keys, tree)
    assert model.config.to_dict() == config
    assert torch.equal(last_state(model), expected)


@pytest.mark.parametrize("name", CONFIGS)
def test_an_ablation_without_a_forward_pass_is_fine(name):
    model = tiny_model(name)
    before = parts(model)
    with ablate(model, "san"):
        pass
    assert_unchanged(model, before)


@pytest.mark.parametrize("inner", VARIANTS)
@pytest.mark.parametrize("outer", ["san", "transformer"])
@pytest.mark.parametrize("name", CONFIGS)
def test_a_second_ablation_of_the_same_model_is_refused_and_the_first_goes_on(name, outer, inner):
    model = tiny_model(name)
    before = parts(model)
    with ablate(model, outer):
        with pytest.raises((RuntimeError, ValueError)) as raised, ablate(model, inner):
            pass
        assert close_to_reference(model, last_state(model), outer)
    assert "already ablated" in str(raised.value)
    assert "leave" in str(raised.value)
    assert "\n" not in str(raised.value)
    assert_unchanged(model, before)
    with ablate(model, inner):
        assert close_to_reference(model, last_state(model), inner)


@pytest.mark.parametrize("name", CONFIGS)
def test_two_models_are_ablated_at_once_and_left_in_any_order(name):
    first, second, third = (tiny_model(name, seed=seed) for seed in range(3))
    kept = ExitStack()
    with ablate(first, "san"):
        kept.enter_context(ablate(second, "san_skip"))
        assert close_to_reference(first, last_state(first), "san")
        assert close_to_reference(second, last_state(second), "san_skip")
        assert close_to_reference(third, last_state(third), "transformer")
    with kept:
        assert close_to_reference(first, last_state(first), "transformer")
        assert close_to_reference(second, last_state(second), "san_skip")
    assert close_to_reference(second, last_state(second), "transformer")


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", CONFIGS)
def test_a_copy_made_after_an_ablation_is_a_stock_model(name, variant):
    model = tiny_model(name)
    with ablate(model, variant):
        last_state(model)
    assert torch.equal(last_state(copy.deepcopy(model)), last_state(tiny_model(name)))


def test_hooks_of_others_go_on():
    model = tiny_model("bert")
    calls = []
    for block in model.encoder.layer:
        block.register_forward_hook(lambda *_: calls.append("block"))
        block.attention.output.LayerNorm.register_forward_hook(lambda *_: calls.append("norm"))
    with ablate(model, "san"):
        last_state(model)
    last_state(model)
    assert calls == ["norm", "block"] * 6


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_block_that_cannot_be_changed_leaves_the_others_as_they_were(variant):
    model = tiny_model("bert")
    model.encoder.layer[2] = nn.Identity()
    before = parts(model)
    if variant == "transformer":
        with ablate(model, variant):
            pass
    else:
        with pytest.raises((AttributeError, ValueError, RuntimeError)), ablate(model, variant):
            pass
    assert_unchanged(model, before)


class OtherwiseBuilt(BertLayer):
    """Computes the same as its parent, but never calls the methods that it inherits."""

    def forward(self, hidden_states, attention_mask=None, *_, **__):
        mixed, _ = self.attention.self(hidden_states, attention_mask=attention_mask)
        mixed = self.attention.output.dense(mixed) + hidden_states
        norm = self.attention.output.LayerNorm
        mixed = nn.functional.layer_norm(mixed, mixed.shape[-1:], norm.weight, norm.bias, norm.eps)
        expanded = self.intermediate(mixed)
        out = self.output.dense(expanded) + mixed
        norm = self.output.LayerNorm
        return nn.functional.layer_norm(out, out.shape[-1:], norm.weight, norm.bias, norm.eps)


@pytest.mark.parametrize(
    ("variant", "reading"),
    [
        ("san", "as-published"),
        ("san_mlp", "as-published"),
        ("san_mlp", "as-described"),
        ("san_skip", "as-published"),
    ],
)
@pytest.mark.parametrize("changed", [[1], [0, 1, 2]], ids=["one block", "all blocks"])
def test_a_change_without_effect_is_an_error(variant, reading, changed):
    model = tiny_model("bert")
    expected = last_state(model)
    for layer in changed:
        model.encoder.layer[layer].__class__ = OtherwiseBuilt
    assert torch.allclose(last_state(model), expected, rtol=0, atol=1e-12)
    with pytest.raises(RuntimeError, match="effect"), ablate(model, variant, reading=reading):
        last_state(model)


@pytest.mark.parametrize("name", CONFIGS)
def test_an_unknown_variant_lists_the_known_ones_and_suggests_the_nearest(name):
    model = tiny_model(name)
    with pytest.raises(ValueError, match="'sann'") as raised, ablate(model, "sann"):
        pass
    message = str(raised.value)
    assert "\n" not in message
    assert message.endswith("did you mean 'san'?")
    assert all(variant in message for variant in VARIANTS)


def test_an_unknown_reading_lists_the_known_ones():
    model = tiny_model("bert")
    with (
        pytest.raises(ValueError, match="as-writen") as raised,
        ablate(model, "san", reading="as-writen"),
    ):
        pass
    assert all(reading in str(raised.value) for reading in READINGS)


def test_an_unknown_architecture_lists_the_known_ones():
    model = GPT2Model(GPT2Config(vocab_size=40, n_embd=32, n_layer=2, n_head=4, n_positions=16))
    with pytest.raises(ValueError, match="'gpt2'") as ablating, ablate(model, "transformer"):
        pass
    with pytest.raises(ValueError, match="'gpt2'") as capturing:
        hidden_states(model, input_ids=torch.tensor([[1, 2]]))
    for raised in (ablating, capturing):
        message = str(raised.value)
        assert "\n" not in message
        assert all(known in message for known in ("albert", "bert", "mpnet", "xlnet"))
