from math import sqrt

import pytest
import torch

from rankcollapse.block import Group, Masks, attention_block, groups_of, join_heads, split_heads
from rankcollapse.products import batched, linear

SEEDS, WIDTH, HEADS = 2, 12, 2
LENGTHS = {"ragged": (3, 3, 5), "equal": (8, 8, 8, 8), "long": (33, 2, 2), "one token": (1, 4)}


def draw(*shape, dtype=torch.float64, seed=0):
    random = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=random, dtype=torch.float64).to(dtype)


def problem(lengths, dtype=torch.float64):
    """Return x and the six parameters."""
    shapes = [
        (SEEDS, sum(lengths), WIDTH),
        (SEEDS, WIDTH, 3 * WIDTH),
        (SEEDS, 3 * WIDTH),
        (SEEDS, WIDTH, WIDTH),
        *[(SEEDS, WIDTH)] * 3,
    ]
    return [draw(*shape, dtype=dtype, seed=i) for i, shape in enumerate(shapes)]


def draw_masks(lengths, dtype=torch.float64):
    """Return a mask of each example [S, A, T, T] and of the output, as dropout makes them."""

    def mask(*shape, seed):
        return ((draw(*shape, seed=seed) > -1).double() / 0.9).to(dtype)

    attention = [mask(SEEDS, HEADS, t, t, seed=20 + i) for i, t in enumerate(lengths)]
    return attention, mask(SEEDS, sum(lengths), WIDTH, seed=10)


def packed(attention, output, lengths):
    """Return the masks as the block takes them: seeds, then examples, then heads of a group."""
    groups, left = [], list(attention)
    for group in groups_of(lengths):
        some, left = left[: group.examples], left[group.examples :]
        groups.append(torch.stack(some, 1).reshape(-1, group.tokens, group.tokens))
    return Masks(groups, output)


def plain(x, parameters, lengths, *, residual, masks):
    """Compute the block a seed, an example and a head at a time."""
    d = WIDTH // HEADS
    seeds = []
    for s in range(SEEDS):
        weight, bias, out, out_bias, gain, norm_bias = (p[s] for p in parameters)
        start, rows = 0, []
        for e, t in enumerate(lengths):
            tokens = slice(start, start + t)
            start += t
            query, key, value = (x[s, tokens] @ weight + bias).split(WIDTH, dim=1)
            heads = []
            for j in range(HEADS):
                c = slice(j * d, (j + 1) * d)
                scores = query[:, c] @ key[:, c].T / sqrt(d)
                weights = scores.exp() / scores.exp().sum(1, keepdim=True)
                if masks:
                    weights = weights * masks[0][e][s, j]
                heads.append(weights @ value[:, c])
            y = torch.cat(heads, 1) @ out + out_bias
            if masks:
                y = y * masks[1][s, tokens]
            if residual:
                y = y + x[s, tokens]
            centred = y - y.mean(1, keepdim=True)
            scale = (centred.square().mean(1, keepdim=True) + 1e-12).sqrt()
            rows.append(centred / scale * gain + norm_bias)
        seeds.append(torch.cat(rows))
    return torch.stack(seeds)


def both(lengths, *, residual, dropped, dtype):
    """Return output and gradients of the block in `dtype`, and the plain ones in float64."""
    masks = draw_masks(lengths) if dropped else None
    inner = packed(*draw_masks(lengths, dtype), lengths) if dropped else None
    ours = [p.requires_grad_() for p in problem(lengths, dtype)]
    theirs = [p.requires_grad_() for p in problem(lengths)]
    groups = groups_of(lengths)
    y = attention_block(ours[0], ours[1:], HEADS, groups, residual=residual, masks=inner)
    expected = plain(theirs[0], theirs[1:], lengths, residual=residual, masks=masks)
    incoming = draw(*y.shape, seed=99)
    y.backward(incoming.to(dtype))
    expected.backward(incoming)
    return [y.detach(), *(p.grad for p in ours)], [expected.detach(), *(p.grad for p in theirs)]


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
@pytest.mark.parametrize("residual", [True, False])
@pytest.mark.parametrize("dropped", [True, False])
@pytest.mark.parametrize(("dtype", "most"), [(torch.float64, 1e-12), (torch.float32, 1e-4)])
def test_output_and_gradients_are_those_of_plain_torch(lengths, residual, dropped, dtype, most):
    ours, theirs = both(lengths, residual=residual, dropped=dropped, dtype=dtype)
    largest = max(float(gradient.abs().max()) for gradient in theirs[1:])
    for actual, expected in zip(ours, theirs, strict=True):
        assert actual.dtype == dtype
        assert actual.shape == expected.shape
        assert float((actual.double() - expected).abs().max()) < most * max(largest, 1)


def test_the_backward_pass_is_the_derivative_of_the_forward_pass():
    lengths = (2, 3)
    parameters = [p.requires_grad_() for p in problem(lengths)]
    masks = packed(*draw_masks(lengths), lengths)

    def block(x, *rest):
        groups = groups_of(lengths)
        return attention_block(x, rest, HEADS, groups, residual=True, masks=masks)

    assert torch.autograd.gradcheck(block, parameters, fast_mode=True)


@pytest.mark.parametrize("residual", [True, False])
def test_without_a_skip_nothing_flows_round_the_attention(residual):
    lengths = (3, 4)
    x, qkv, qkv_bias, out, *rest = problem(lengths)
    x.requires_grad_()
    parameters = [qkv, qkv_bias, torch.zeros_like(out), *rest]
    y = attention_block(x, parameters, HEADS, groups_of(lengths), residual=residual, masks=None)
    y.backward(draw(*y.shape, seed=99))
    assert bool((x.grad != 0).all()) == residual
    assert bool((x.grad == 0).all()) != residual


def test_examples_and_seeds_do_not_see_each_other():
    lengths = (3, 3, 5)
    x, *parameters = problem(lengths)
    groups = groups_of(lengths)
    whole = attention_block(x, parameters, HEADS, groups, residual=True, masks=None)
    other = x.clone()
    other[0, 3:6] += 1
    changed = attention_block(other, parameters, HEADS, groups, residual=True, masks=None)
    differs = (whole != changed).any(-1)
    assert differs.nonzero().tolist() == [[0, 3], [0, 4], [0, 5]]


def test_neighbours_of_equal_length_are_a_group():
    assert groups_of((3, 3, 5, 3)) == (Group(0, 2, 3), Group(6, 1, 5), Group(11, 1, 3))
    assert groups_of((3, 3, 5, 3))[1].part == slice(6, 11)


def test_joining_heads_undoes_splitting_them():
    x = torch.arange(2 * 6 * 3 * 8).view(2, 6, 24)
    group = Group(0, 2, 3)
    query, key, value = heads = split_heads(x, group, 4, parts=3)
    assert query.shape == key.shape == value.shape == (2 * 2 * 4, 3, 2)
    # Seed 1, example 0, head 2: the second matrix of 8 of the seed, columns 4 and 5 of each part.
    assert torch.equal(key[8 + 2], x[1, :3, 8 + 4 : 8 + 6])
    assert torch.equal(join_heads(heads, group, 4), x)


@pytest.mark.parametrize(("dtype", "most"), [(torch.float64, 1e-13), (torch.float32, 1e-5)])
def test_a_product_and_its_gradient_are_those_of_torch(dtype, most):
    ours = [draw(3, 5, 7), draw(3, 7, 4, seed=1), draw(3, 4, seed=2)]
    theirs = [p.clone().requires_grad_() for p in ours]
    ours = [p.to(dtype).requires_grad_() for p in ours]
    y = linear(*ours)
    expected = theirs[0] @ theirs[1] + theirs[2].unsqueeze(1)
    incoming = draw(3, 5, 4, seed=3)
    y.backward(incoming.to(dtype))
    expected.backward(incoming)
    assert y.dtype == dtype
    for actual, wanted in zip(
        [y, *(p.grad for p in ours)], [expected, *(p.grad for p in theirs)], strict=True
    ):
        torch.testing.assert_close(actual.double(), wanted, rtol=most, atol=most)


def test_a_product_of_data_has_no_gradient_of_the_data():
    x, weight, bias = draw(2, 5, 3), draw(2, 3, 4, seed=1).requires_grad_(), draw(2, 4, seed=2)
    linear(x, weight, bias).sum().backward()
    assert x.grad is None
    torch.testing.assert_close(weight.grad, x.sum(1).unsqueeze(-1).expand(-1, -1, 4))


@pytest.mark.parametrize("biased", [True, False])
def test_a_product_has_the_same_bits_alone_and_among_others(biased):
    x, weight = draw(3, 50, 40, dtype=torch.float32), draw(3, 40, 30, dtype=torch.float32, seed=1)
    bias = draw(3, 30, dtype=torch.float32, seed=2) if biased else None
    together = batched(x, weight, bias)
    assert together.shape == (3, 50, 30)
    for i in range(3):
        one = slice(i, i + 1)
        alone = batched(x[one], weight[one], None if bias is None else bias[one])
        assert torch.equal(together[one], alone)
