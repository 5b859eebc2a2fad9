"""Capture of states before, during and after an ablation, and when the model does not play."""

import pytest
import torch
from reference_forward import CASES, CONFIGS, READINGS, VARIANTS, reference_states, tiny_inputs
from reference_forward import tiny_model as make
from torch import nn
from transformers import AlbertForMaskedLM, BertForMaskedLM, MPNetForMaskedLM, XLNetLMHeadModel
from transformers.modeling_outputs import BaseModelOutputWithPastAndCrossAttentions

from rankcollapse import ablate, hidden_states

torch.set_num_threads(1)
HEADS = {
    "bert": BertForMaskedLM,
    "albert": AlbertForMaskedLM,
    "xlnet": XLNetLMHeadModel,
    "mpnet": MPNetForMaskedLM,
}


def captured(model):
    with torch.no_grad():
        return hidden_states(model, **tiny_inputs(model, padded=True))


def own_states(model):
    """The states as the model itself gives them."""
    with torch.no_grad():
        outputs = model(**tiny_inputs(model, padded=True), output_hidden_states=True)
    return torch.stack(outputs.hidden_states)


def reference(model, variant, reading="as-published"):
    return reference_states(model, variant, reading, **tiny_inputs(model, padded=True))


def hooks(model):
    return [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()]


@pytest.mark.parametrize("reading", READINGS)
@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_before_during_and_after(case, reading):
    stock, model = (make(case[0], attention=case[1]) for _ in range(2))
    expected = own_states(stock)
    for variant in VARIANTS:
        assert torch.equal(captured(model), expected)
        with ablate(model, variant, reading=reading):
            during = captured(model)
            assert torch.equal(captured(model), during)
        assert (during - reference(model, variant, reading)).abs().max() < 1e-10
    assert torch.equal(captured(model), expected)
    assert torch.equal(own_states(model), expected)


# transformers places its own hooks once, at the first capture: a replaced module would lose them.
@pytest.mark.parametrize("first", ["before", "during", "after"])
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", CONFIGS)
def test_the_model_goes_on_to_give_its_own_states(name, variant, first):
    stock, model = make(name), make(name)
    expected = own_states(stock)
    if first == "before":
        own_states(model)
    with ablate(model, variant):
        if first != "after":
            own_states(model)
        during = captured(model)
        assert torch.equal(during[-1], captured(model)[-1])
    assert torch.equal(own_states(model), expected)
    assert torch.equal(captured(model), expected)
    with ablate(model, variant):
        assert torch.equal(captured(model), during)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", CONFIGS)
def test_own_states_of_an_ablated_model_are_the_captured_ones(name, variant):
    model = make(name)
    with ablate(model, variant):
        assert torch.equal(own_states(model), captured(model))


@pytest.mark.parametrize("name", HEADS)
def test_a_model_with_a_head_gives_the_states_of_its_base(name):
    base = make(name)
    model = HEADS[name](base.config).double().eval()
    model.base_model.load_state_dict(base.state_dict(), strict=False)
    assert torch.equal(captured(model), captured(base))
    with ablate(model, "san"):
        states = captured(model)
        with pytest.raises((RuntimeError, ValueError)), ablate(model.base_model, "san"):
            pass
    assert (states - reference(base, "san")).abs().max() < 1e-10


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", CONFIGS)
def test_states_keep_the_precision_of_the_model(name, dtype):
    states = captured(make(name, dtype=dtype))
    assert states.dtype == dtype
    assert states.isfinite().all()


def test_blocks_that_share_their_weights_give_one_state_a_call():
    model = make("bert")
    model.encoder.layer[1] = model.encoder.layer[0]
    assert torch.equal(captured(model), own_states(model)[: len(captured(model))])
    assert len(captured(model)) == 4
    with ablate(model, "san"):
        states = captured(model)
    assert (states - reference(model, "san")).abs().max() < 1e-10


class Calls(nn.Module):
    """Calls the blocks of a model in the order that it is given."""

    def __init__(self, layers, order):
        super().__init__()
        self.layer = layers
        self.order = order

    def forward(self, hidden_states, *_, **__):
        for index in self.order:
            output = self.layer[index](hidden_states)
            hidden_states = output[0] if isinstance(output, tuple) else output
        return BaseModelOutputWithPastAndCrossAttentions(last_hidden_state=hidden_states)


@pytest.mark.parametrize("order", [[], [0], [0, 1], [0, 1, 2, 2], [1, 0, 2], [0, 0, 2]], ids=str)
def test_blocks_not_called_one_after_the_other_are_an_error(order):
    model = make("bert")
    assert captured(model).shape == (4, 2, 7, 32)
    model.encoder = Calls(model.encoder.layer, order)
    before = hooks(model)
    with pytest.raises(ValueError, match=f"BertModel.*{len(order)} blocks.*3") as raised:
        captured(model)
    assert "\n" not in str(raised.value)
    assert hooks(model) == before
    model.encoder.order = [0, 1, 2]
    assert len(captured(model)) == 4


@pytest.mark.parametrize("name", CONFIGS)
def test_a_failed_forward_pass_leaves_no_hook(name):
    model = make(name)
    before, expected = hooks(model), captured(model)
    with pytest.raises(IndexError):
        hidden_states(model, input_ids=torch.tensor([[10**6]]))
    assert hooks(model) == before
    assert torch.equal(captured(model), expected)
