from math import sqrt

import pytest
import torch

from rankcollapse.frozen_paths import frozen_terms
from rankcollapse.san import Network, forward, initialise

NETWORKS = {
    "tokens": Network(heads=2, depth=3, width=8, classes=5, vocabulary=7, positions=6),
    "points": Network(heads=2, depth=2, width=8, classes=2, embedding_mlp=True),
    "texts": Network(heads=2, depth=3, width=8, classes=2, vocabulary=7, mlp=True),
}
LENGTHS = (3, 3, 5)


def trained(network):
    """Return float64 parameters of two seeds, no bias 0, no gain 1, and inputs."""
    random = torch.Generator().manual_seed(2)
    parameters = {
        name: value.double() + 0.3 * torch.randn(value.shape, generator=random, dtype=torch.float64)
        for name, value in initialise(network, [0, 1]).items()
    }
    if network.vocabulary:
        return parameters, torch.randint(network.vocabulary, (2, 11), generator=random)
    return parameters, torch.randn(2, 11, 2, generator=random, dtype=torch.float64)


class Brute:
    """Every path of one example of one seed, one after the other."""

    def __init__(self, network, p, embedded, *, residual):
        self.network, self.p, self.residual = network, p, residual
        self.frozen = []  # attention of each head, scale, gate and second scale of each block
        x = embedded
        for layer in range(network.depth):
            x = self.freeze(layer, x)
        self.last = x
        self.terms = [torch.zeros_like(x) for _ in range(network.depth + 1)]
        self.follow(0, embedded, 0)
        for layer in range(network.depth):
            self.follow_biases(layer)

    def freeze(self, layer, x):
        """Run a block, and note what depends on the input."""
        p, (width, heads) = self.p, (self.network.width, self.network.heads)
        d = width // heads
        query, key, value = (x @ p[f"layer{layer}.qkv.weight"] + p[f"layer{layer}.qkv.bias"]).split(
            width, -1
        )
        columns = [slice(j * d, (j + 1) * d) for j in range(heads)]
        attention = [torch.softmax(query[:, c] @ key[:, c].T / sqrt(d), -1) for c in columns]
        context = torch.cat([a @ value[:, c] for a, c in zip(attention, columns, strict=True)], -1)
        y = context @ p[f"layer{layer}.out.weight"] + p[f"layer{layer}.out.bias"]
        y = y + x if self.residual else y
        scale = 1 / (y.var(-1, correction=0, keepdim=True) + 1e-12).sqrt()
        gate = second = None
        self.frozen.append((attention, scale, gate, second))
        y = self.normed(layer, "norm", y, scale) + p[f"layer{layer}.norm.bias"]
        if self.network.mlp:
            u = y @ p[f"layer{layer}.mlp_in.weight"] + p[f"layer{layer}.mlp_in.bias"]
            gate = torch.nn.functional.gelu(u) / u
            y = y + (u * gate) @ p[f"layer{layer}.mlp_out.weight"] + p[f"layer{layer}.mlp_out.bias"]
            second = 1 / (y.var(-1, correction=0, keepdim=True) + 1e-12).sqrt()
            self.frozen[-1] = (attention, scale, gate, second)
            y = self.normed(layer, "mlp_norm", y, second) + p[f"layer{layer}.mlp_norm.bias"]
        return y

    def normed(self, layer, name, x, scale):
        return (x - x.mean(-1, keepdim=True)) * scale * self.p[f"layer{layer}.{name}.gain"]

    def head(self, layer, j, x):
        d, width = self.network.width // self.network.heads, self.network.width
        value = self.p[f"layer{layer}.qkv.weight"][:, 2 * width + j * d : 2 * width + (j + 1) * d]
        out = self.p[f"layer{layer}.out.weight"][j * d : (j + 1) * d]
        return self.frozen[layer][0][j] @ x @ value @ out

    def through_mlp(self, layer, x):
        if not self.network.mlp:
            return x
        _, _, gate, second = self.frozen[layer]
        u = (x @ self.p[f"layer{layer}.mlp_in.weight"]) * gate
        y = x + u @ self.p[f"layer{layer}.mlp_out.weight"]
        return self.normed(layer, "mlp_norm", y, second)

    def after_attention(self, layer, x):
        return self.through_mlp(layer, self.normed(layer, "norm", x, self.frozen[layer][1]))

    def follow(self, layer, x, length):
        """Add what becomes of x, at the entry of a block, by every choice from there on."""
        if layer == self.network.depth:
            self.terms[length] += x
            return
        if self.residual:
            self.follow(layer + 1, self.after_attention(layer, x), length)
        for j in range(self.network.heads):
            y = self.after_attention(layer, self.head(layer, j, x))
            self.follow(layer + 1, y, length + 1)

    def follow_biases(self, layer):
        """Follow what begins in a block."""
        p, width, rows = self.p, self.network.width, torch.ones_like(self.last[:, :1])
        value = p[f"layer{layer}.qkv.bias"][2 * width :] @ p[f"layer{layer}.out.weight"]
        attention = rows * (value + p[f"layer{layer}.out.bias"])
        self.follow(layer + 1, self.after_attention(layer, attention), 1)
        self.follow(layer + 1, self.through_mlp(layer, rows * p[f"layer{layer}.norm.bias"]), 0)
        if not self.network.mlp:
            return
        _, _, gate, second = self.frozen[layer]
        inner = (rows * p[f"layer{layer}.mlp_in.bias"]) * gate @ p[f"layer{layer}.mlp_out.weight"]
        for bias in (inner, rows * p[f"layer{layer}.mlp_out.bias"]):
            self.follow(layer + 1, self.normed(layer, "mlp_norm", bias, second), 0)
        self.follow(layer + 1, rows * p[f"layer{layer}.mlp_norm.bias"], 0)


CASES = pytest.mark.parametrize("network", NETWORKS.values(), ids=NETWORKS)
RESIDUAL = pytest.mark.parametrize("residual", [True, False])


@CASES
@RESIDUAL
def test_the_terms_sum_to_the_last_state(network, residual):
    parameters, inputs = trained(network)
    terms = frozen_terms(network, parameters, inputs, LENGTHS, residual=residual)
    last = forward(network, parameters, inputs, LENGTHS, residual=residual)[-1]
    assert len(terms) == network.depth + 1
    assert all(term.dtype == torch.float64 for term in terms)
    torch.testing.assert_close(sum(terms), last, rtol=0, atol=1e-10)


@CASES
@RESIDUAL
def test_each_term_is_the_sum_of_all_paths_of_its_length(network, residual):
    parameters, inputs = trained(network)
    terms = frozen_terms(network, parameters, inputs, LENGTHS, residual=residual)
    states = forward(network, parameters, inputs, LENGTHS, residual=residual)
    for s in range(2):
        one = {name: value[s] for name, value in parameters.items()}
        for start, tokens in ((0, 3), (3, 3), (6, 5)):
            part = slice(start, start + tokens)
            brute = Brute(network, one, states[0][s, part], residual=residual)
            torch.testing.assert_close(brute.last, states[-1][s, part], rtol=0, atol=1e-10)
            for term, expected in zip(terms, brute.terms, strict=True):
                torch.testing.assert_close(term[s, part], expected, rtol=0, atol=1e-10)


def test_without_attention_everything_has_length_nought_but_its_biases():
    network = NETWORKS["tokens"]
    parameters, inputs = trained(network)
    for layer in range(network.depth):
        for name in ("qkv.weight", "qkv.bias", "out.bias"):
            parameters[f"layer{layer}.{name}"].zero_()
    first, *others = frozen_terms(network, parameters, inputs, LENGTHS)
    assert all(bool((term == 0).all()) for term in others)
    last = forward(network, parameters, inputs, LENGTHS)[-1]
    torch.testing.assert_close(first, last, rtol=0, atol=1e-12)


def test_without_skips_only_biases_have_less_than_the_whole_length():
    network = NETWORKS["points"]
    parameters, inputs = trained(network)
    other = inputs.clone()
    other[0, 0] += 1
    short, changed = (
        frozen_terms(network, parameters, x, LENGTHS, residual=False) for x in (inputs, other)
    )
    # A bias enters after the last block, and no token has touched it.
    assert torch.equal(short[0], parameters["layer1.norm.bias"].unsqueeze(1).expand(2, 11, 8))
    assert torch.equal(short[0], changed[0])
    assert not torch.equal(short[2], changed[2])


def test_terms_of_float32_parameters_are_float32():
    network = NETWORKS["texts"]
    parameters = initialise(network, [0, 1])
    inputs = trained(network)[1]
    terms = frozen_terms(network, parameters, inputs, LENGTHS)
    last = forward(network, parameters, inputs, LENGTHS)[-1]
    assert {term.dtype for term in terms} == {torch.float32}
    torch.testing.assert_close(sum(terms), last, rtol=0, atol=1e-5)
