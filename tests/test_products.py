import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from rankcollapse.products import OneDNN

SIZES = st.integers(1, 9)


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def close(actual, expected):
    assert actual.shape == expected.shape
    assert actual.dtype == expected.dtype
    torch.testing.assert_close(actual.double(), expected.double(), rtol=1e-5, atol=1e-5)


@settings(deadline=None)
@given(SIZES, SIZES, SIZES, SIZES, st.booleans())
def test_a_linear_map_is_what_float64_says(batch, tokens, features, outputs, biased):
    x, weight = draw(batch, tokens, features), draw(outputs, features, seed=1)
    bias = draw(outputs, seed=2) if biased else None
    with torch.inference_mode(), OneDNN():
        actual = functional.linear(x, weight, bias)
    close(
        actual,
        functional.linear(
            x.double(), weight.double(), bias if bias is None else bias.double()
        ).float(),
    )


@settings(deadline=None)
@given(SIZES, SIZES, SIZES, SIZES, SIZES, st.booleans())
def test_the_linear_maps_of_xlnet_are_what_einsum_says(
    tokens, batch, features, heads, width, repeated
):
    x = (
        draw(tokens, 1, features).expand(-1, batch, -1)
        if repeated
        else draw(tokens, batch, features)
    )
    weight = draw(features, heads, width, seed=1)
    with torch.inference_mode(), OneDNN():
        to_heads = torch.einsum("ibh,hnd->ibnd", x, weight)
        back = torch.einsum("ibnd,hnd->ibh", to_heads, weight)
    close(to_heads, torch.einsum("ibh,hnd->ibnd", x.double(), weight.double()).float())
    close(back, torch.einsum("ibnd,hnd->ibh", to_heads.double(), weight.double()).float())


def test_the_context_computes_with_onednn_and_its_end_gives_torch_back():
    x, layer = draw(64, 256), nn.Linear(256, 256)
    with torch.inference_mode(), torch.profiler.profile() as inside, OneDNN():
        layer(x)
    with torch.inference_mode(), torch.profiler.profile() as outside:
        layer(x)
    assert "mkldnn::_linear_pointwise" in {event.key for event in inside.key_averages()}
    assert "mkldnn::_linear_pointwise" not in {event.key for event in outside.key_averages()}


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_precisions_are_left_to_torch_to_the_last_bit(dtype):
    x, weight = draw(5, 7).to(dtype), draw(3, 7, seed=1).to(dtype)
    with torch.inference_mode(), OneDNN():
        actual = functional.linear(x, weight)
    assert torch.equal(actual, functional.linear(x, weight))


def test_a_gradient_is_left_to_torch():
    x, weight = draw(5, 7), draw(3, 7, seed=1).requires_grad_()
    with OneDNN():
        functional.linear(x, weight).sum().backward()
    torch.testing.assert_close(weight.grad, x.sum(0).expand(3, -1))
