"""Where a skip is removed and its branch is zero, nothing of the input reaches the output."""

import pytest
import torch
from reference_forward import CONFIGS, READINGS, VARIANTS, tiny_inputs, tiny_model

from rankcollapse import ablate

torch.set_num_threads(1)
BLOCKS = {
    "bert": [f"encoder.layer.{layer}" for layer in range(3)],
    "albert": ["encoder.albert_layer_groups.0.albert_layers.0"],
    "albert-groups": [
        f"encoder.albert_layer_groups.{group}.albert_layers.{inner}"
        for group in range(2)
        for inner in range(2)
    ],
    "xlnet": [f"layer.{layer}" for layer in range(3)],
    "mpnet": [f"encoder.layer.{layer}" for layer in range(3)],
}
# Below a block: the last map of its attention, the last map of its MLP, all parts of its MLP.
ATTENTION_END = {
    "bert": "attention.output.dense",
    "albert": "attention.dense",
    "albert-groups": "attention.dense",
    "xlnet": "rel_attn.o",
    "mpnet": "attention.attn.o",
}
MLP_END = {
    "bert": "output.dense",
    "albert": "ffn_output",
    "albert-groups": "ffn_output",
    "xlnet": "ff.layer_2",
    "mpnet": "output.dense",
}
MLP_START = {
    "bert": "intermediate.dense",
    "albert": "ffn",
    "albert-groups": "ffn",
    "xlnet": "ff.layer_1",
    "mpnet": "intermediate.dense",
}
CASES = [(name, block) for name, blocks in BLOCKS.items() for block in blocks]


def parameters(model, block, end):
    prefix = f"{block}.{end}"
    found = [p for key, p in model.named_parameters() if key in (prefix, f"{prefix}.weight")]
    assert len(found) == 1
    return found + [p for key, p in model.named_parameters() if key == f"{prefix}.bias"]


def embedded(model):
    """Input embeddings [B, T, E], a leaf that takes a gradient."""
    vectors = model.get_input_embeddings()(tiny_inputs(model)["input_ids"])
    return vectors.detach().requires_grad_()


def output(model, inputs):
    """A generic linear function of the last hidden state."""
    last = model(inputs_embeds=inputs).last_hidden_state
    generator = torch.Generator().manual_seed(0)
    return (last * torch.randn(last.shape, generator=generator, dtype=last.dtype)).sum()


def input_gradient(model, variant, reading):
    inputs = embedded(model)
    with ablate(model, variant, reading=reading):
        output(model, inputs).backward()
    return float(inputs.grad.abs().max())


def zero(model, block, end):
    with torch.no_grad():
        for parameter in parameters(model, block, end):
            parameter.zero_()


@pytest.mark.parametrize("reading", READINGS)
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_a_block_without_attention_passes_its_input_only_by_the_skip(case, variant, reading):
    name, block = case
    model = tiny_model(name)
    assert input_gradient(model, variant, reading) > 1e-6
    zero(model, block, ATTENTION_END[name])
    gradient = input_gradient(model, variant, reading)
    assert gradient == 0 if variant in ("san", "san_mlp") else gradient > 1e-6


@pytest.mark.parametrize("reading", READINGS)
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_a_zero_mlp_stops_everything_only_where_its_skip_is_removed(case, variant, reading):
    name, block = case
    model = tiny_model(name)
    zero(model, block, MLP_END[name])
    gradient = input_gradient(model, variant, reading)
    removed = (variant, reading) == ("san_mlp", "as-described")
    assert gradient == 0 if removed else gradient > 1e-6


@pytest.mark.parametrize("reading", READINGS)
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", CONFIGS)
def test_the_linear_maps_of_the_mlp_take_part_only_where_there_is_an_mlp(name, variant, reading):
    model = tiny_model(name)
    maps = [
        parameter
        for block in BLOCKS[name]
        for end in (MLP_START[name], MLP_END[name])
        for parameter in parameters(model, block, end)
    ]
    with ablate(model, variant, reading=reading):
        output(model, embedded(model)).backward()
    moved = [p.grad is not None and bool(p.grad.any()) for p in maps]
    assert moved == [variant in ("san_mlp", "transformer")] * len(maps)


@pytest.mark.parametrize("reading", READINGS)
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", CONFIGS)
def test_the_norm_of_the_mlp_goes_with_it_but_stays_in_albert_as_published(name, variant, reading):
    model = tiny_model(name)
    norm = {
        "bert": "output.LayerNorm",
        "mpnet": "output.LayerNorm",
        "xlnet": "ff.layer_norm",
        "albert": "full_layer_layer_norm",
        "albert-groups": "full_layer_layer_norm",
    }[name]
    with ablate(model, variant, reading=reading):
        output(model, embedded(model)).backward()
    gains = [parameters(model, block, norm)[0] for block in BLOCKS[name]]
    stays = variant in ("san_mlp", "transformer") or (
        name.startswith("albert") and reading == "as-published"
    )
    assert [p.grad is not None and bool(p.grad.any()) for p in gains] == [stays] * len(gains)
