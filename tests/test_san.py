from dataclasses import asdict
from math import erf, sqrt

import pytest
import torch

from rankcollapse.san import (
    Network,
    NetworkError,
    classify,
    dropout_places,
    embed,
    forward,
    initialise,
)

TOKENS = Network(heads=2, depth=2, width=12, classes=5, vocabulary=7, positions=6)
POINTS = Network(heads=3, depth=2, width=12, classes=2, embedding_mlp=True)
CIRCLE = Network(heads=2, depth=1, width=8, classes=2)
TEXTS = Network(heads=2, depth=2, width=12, classes=2, vocabulary=7, mlp=True)
NETWORKS = {"tokens": TOKENS, "points": POINTS, "circle": CIRCLE, "texts": TEXTS}
LENGTHS = (3, 3, 5)
SEEDS = (4, 9)


def draw_inputs(network, lengths=LENGTHS, seeds=2):
    random = torch.Generator().manual_seed(1)
    if network.vocabulary:
        return torch.randint(network.vocabulary, (seeds, sum(lengths)), generator=random)
    return torch.randn(seeds, sum(lengths), 2, generator=random, dtype=torch.float64)


def trained(network, seeds=SEEDS):
    """Return float64 parameters away from their start: no bias is 0, no gain 1."""
    random = torch.Generator().manual_seed(2)
    return {
        name: value.double() + 0.3 * torch.randn(value.shape, generator=random, dtype=torch.float64)
        for name, value in initialise(network, seeds).items()
    }


def gelu(x):
    below = [(1 + erf(v / sqrt(2))) / 2 for v in x.flatten()]
    return x * torch.tensor(below, dtype=torch.float64).view_as(x)


def norm(x, gain, bias):
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + 1e-12).sqrt() * gain + bias


def plain_states(network, p, inputs, *, residual=True, keep=lambda _place, _shape: 1):
    """Follow the specification for one seed and one example: the states after each block."""

    def affine(name, x):
        return x @ p[f"{name}.weight"] + p[f"{name}.bias"]

    def normed(name, x):
        return norm(x, p[f"{name}.gain"], p[f"{name}.bias"])

    x = p["embed.word"][inputs] if network.vocabulary else inputs
    if network.positions:
        x = x + p["embed.position"][: len(x)]
    x = affine("embed.linear", x)
    if network.embedding_mlp:
        x = affine("embed.hidden", gelu(x))
    x = normed("embed.norm", x)
    states = [x * keep("embedding", x.shape)]
    d = network.width // network.heads
    for layer in range(network.depth):
        x = states[-1]
        query, key, value = affine(f"layer{layer}.qkv", x).split(network.width, dim=-1)
        contexts = []
        for j in range(network.heads):
            c = slice(j * d, (j + 1) * d)
            weights = torch.softmax(query[:, c] @ key[:, c].T / sqrt(d), -1)
            weights = weights * keep(("attention", layer, j), weights.shape)
            contexts.append(weights @ value[:, c])
        y = affine(f"layer{layer}.out", torch.cat(contexts, -1))
        y = y * keep(("output", layer), y.shape)
        x = normed(f"layer{layer}.norm", y + x if residual else y)
        if network.mlp:
            y = affine(f"layer{layer}.mlp_out", gelu(affine(f"layer{layer}.mlp_in", x)))
            x = normed(f"layer{layer}.mlp_norm", y * keep(("mlp", layer), y.shape) + x)
        states.append(x)
    last = states[-1]
    return states, affine("classifier", last * keep("classifier", last.shape))


@pytest.mark.parametrize("network", NETWORKS.values(), ids=NETWORKS)
@pytest.mark.parametrize("residual", [True, False])
def test_the_network_is_the_one_specified(network, residual):
    parameters, inputs = trained(network), draw_inputs(network)
    states = forward(network, parameters, inputs, LENGTHS, residual=residual)
    logits = classify(parameters, states[-1])
    assert len(states) == network.depth + 1
    assert torch.equal(states[0], embed(network, parameters, inputs, LENGTHS))
    for s in range(len(SEEDS)):
        one = {name: value[s] for name, value in parameters.items()}
        for start, length in ((0, 3), (3, 3), (6, 5)):
            tokens = slice(start, start + length)
            expected, outputs = plain_states(network, one, inputs[s, tokens], residual=residual)
            for state, wanted in zip(states, expected, strict=True):
                torch.testing.assert_close(state[s, tokens], wanted, rtol=0, atol=1e-11)
            torch.testing.assert_close(logits[s, tokens], outputs, rtol=0, atol=1e-11)


@pytest.mark.parametrize("network", NETWORKS.values(), ids=NETWORKS)
def test_dropout_is_in_the_places_specified(network):
    random = torch.Generator().manual_seed(3)
    given = []

    def dropout(shape):
        given.append((torch.rand(shape, generator=random, dtype=torch.float64) > 0.1) / 0.9)
        return given[-1]

    parameters, inputs = trained(network), draw_inputs(network, (4,))
    states = forward(network, parameters, inputs, (4,), dropout=dropout)
    logits = classify(parameters, states[-1], dropout)
    assert sum(mask[0].numel() for mask in given) == dropout_places(network, (4,))

    for s in range(len(SEEDS)):
        left = iter([mask[s] for mask in given])
        attention = {}

        def keep(place, shape, left=left, attention=attention):
            if place[0] == "attention":
                if place[1] not in attention:
                    attention[place[1]] = next(left)  # of all heads at once
                mask = attention[place[1]][place[2]]
            else:
                mask = next(left)
            assert mask.shape == shape
            return mask

        one = {name: value[s] for name, value in parameters.items()}
        _, expected = plain_states(network, one, inputs[s], keep=keep)
        assert next(left, None) is None
        torch.testing.assert_close(logits[s], expected, rtol=0, atol=1e-11)


def test_dropout_places_counts_groups_of_unequal_length():
    # Embedding and classifier 11 x 12 each; two blocks of 2 heads, 9 + 9 + 25 weights, 11 x 12.
    assert dropout_places(TOKENS, LENGTHS) == 2 * 132 + 2 * (2 * 43 + 132)
    assert dropout_places(TEXTS, LENGTHS) == 2 * 132 + 2 * (2 * 43 + 2 * 132)


@pytest.mark.parametrize("network", [POINTS, CIRCLE, TEXTS])
def test_without_positions_the_order_of_tokens_does_not_matter(network):
    order = torch.tensor([2, 0, 1, 4, 5, 3, 10, 8, 6, 7, 9])
    parameters, inputs = trained(network), draw_inputs(network)
    state = forward(network, parameters, inputs, LENGTHS)[-1]
    moved = forward(network, parameters, inputs[:, order], LENGTHS)[-1]
    torch.testing.assert_close(moved, state[:, order], rtol=0, atol=1e-11)


def test_with_positions_it_does():
    parameters, inputs = trained(TOKENS), draw_inputs(TOKENS)
    order = torch.arange(11).flip(0)
    state = forward(TOKENS, parameters, inputs, LENGTHS)[-1]
    moved = forward(TOKENS, parameters, inputs[:, order], LENGTHS[::-1])[-1]
    assert float((moved - state[:, order]).abs().max()) > 0.1


def test_initial_weights_have_the_published_distributions():
    network = Network(
        heads=2, depth=1, width=96, classes=50, vocabulary=200, positions=64, mlp=True
    )
    drawn = initialise(network, [0])
    query_key, value = drawn["layer0.qkv.weight"][0].split([192, 96], dim=1)
    normal = {
        **{name: drawn[name] for name in ("embed.word", "embed.position", "embed.linear.weight")},
        **{
            f"layer0.{name}.weight": drawn[f"layer0.{name}.weight"]
            for name in ("mlp_in", "mlp_out")
        },
        "classifier": drawn["classifier.weight"],
        "query and key": query_key,
    }
    for name, weight in normal.items():
        error = 1 / sqrt(2 * weight.numel())  # of a relative standard deviation
        assert weight.std().item() == pytest.approx(0.02, rel=4 * error), name
        assert abs(weight.mean().item()) < 4 * 0.02 / sqrt(weight.numel()), name
        assert weight.abs().max() > 0.05, name  # normal, not uniform
    for weight in (value, drawn["layer0.out.weight"]):
        assert weight.abs().max() <= 1 / sqrt(96)
        assert weight.min() < -0.99 / sqrt(96)
        assert weight.max() > 0.99 / sqrt(96)
        assert weight.std().item() == pytest.approx(1 / sqrt(3 * 96), rel=0.03)
    for name, values in drawn.items():
        if name.endswith((".bias", ".gain")):
            assert torch.equal(values, torch.full_like(values, name.endswith(".gain"))), name


def test_shapes_have_a_leading_axis_of_seeds():
    shapes = {name: tuple(value.shape) for name, value in initialise(TOKENS, SEEDS).items()}
    block = {"qkv.weight": (12, 36), "qkv.bias": (36,), "out.weight": (12, 12), "out.bias": (12,)}
    block |= {"norm.gain": (12,), "norm.bias": (12,)}
    expected = {"embed.word": (7, 12), "embed.position": (6, 12)}
    expected |= {"embed.linear.weight": (12, 12), "embed.linear.bias": (12,)}
    expected |= {"embed.norm.gain": (12,), "embed.norm.bias": (12,)}
    expected |= {f"layer{i}.{name}": shape for i in (0, 1) for name, shape in block.items()}
    expected |= {"classifier.weight": (12, 5), "classifier.bias": (5,)}
    assert shapes == {name: (2, *shape) for name, shape in expected.items()}
    assert {value.dtype for value in initialise(TOKENS, SEEDS).values()} == {torch.float32}


def test_a_seed_draws_the_same_whoever_is_beside_it():
    together, alone = initialise(TEXTS, [4, 9, 1]), initialise(TEXTS, [9])
    other = initialise(TEXTS, [1])
    for name, value in alone.items():
        assert torch.equal(together[name][1], value[0])
        if name.endswith("weight"):
            assert not torch.equal(other[name], value)


@pytest.mark.parametrize("name", ["heads", "depth", "width", "classes"])
def test_a_network_without_any_is_refused(name):
    with pytest.raises(NetworkError, match=f"^{name} is 0; it must be at least 1$"):
        Network(**{**asdict(TOKENS), name: 0})


def test_heads_must_divide_the_width():
    with pytest.raises(NetworkError, match=r"^5 heads do not divide the width 12; .* of 5$"):
        Network(heads=5, depth=1, width=12, classes=2)


@pytest.mark.parametrize("seeds", [[], [3, 1, 3]])
def test_seeds_are_needed_each_once(seeds):
    with pytest.raises(NetworkError, match="give at least one, each once"):
        initialise(TOKENS, seeds)
