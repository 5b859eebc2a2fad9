from collections import Counter
from math import comb, sqrt

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from rankcollapse.block import groups_of
from rankcollapse.sampled_paths import PASSED, all_paths, count_paths, draw_paths, step, walk
from rankcollapse.san import Network, embed, forward, initialise
from rankcollapse.tasks import stream

TOKENS = Network(heads=3, depth=4, width=12, classes=5, vocabulary=7, positions=6)
TEXTS = Network(heads=2, depth=3, width=12, classes=2, vocabulary=7, mlp=True)
LENGTHS = (3, 3, 5)


def trained(network):
    """Return float64 parameters of two seeds, no bias 0, no gain 1, and embedded tokens."""
    random = torch.Generator().manual_seed(2)
    parameters = {
        name: value.double() + 0.3 * torch.randn(value.shape, generator=random, dtype=torch.float64)
        for name, value in initialise(network, [0, 1]).items()
    }
    ids = torch.randint(network.vocabulary, (2, sum(LENGTHS)), generator=random)
    return parameters, ids, embed(network, parameters, ids, LENGTHS)


def norm(x):
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + 1e-12).sqrt()


def evaluate(network, p, h, path, *, residual):
    """Send the tokens of one example of one seed along a path, as the specification says."""
    d, width = network.width // network.heads, network.width
    for i, head in enumerate(path):
        if head == PASSED:
            continue
        weight, bias = p[f"layer{i}.qkv.weight"], p[f"layer{i}.qkv.bias"]
        query, key, value = (
            h @ weight[:, c] + bias[c]
            for part in range(3)
            for c in [slice(part * width + head * d, part * width + (head + 1) * d)]
        )
        attention = torch.softmax(query @ key.T / sqrt(d), -1)
        y = attention @ value @ p[f"layer{i}.out.weight"][head * d : (head + 1) * d]
        y = y + p[f"layer{i}.out.bias"]
        if residual:
            h = norm(y + h) * p[f"layer{i}.norm.gain"] + p[f"layer{i}.norm.bias"]
        else:
            h = norm(y)
        if network.mlp:
            u = torch.nn.functional.gelu(
                h @ p[f"layer{i}.mlp_in.weight"] + p[f"layer{i}.mlp_in.bias"]
            )
            u = u @ p[f"layer{i}.mlp_out.weight"] + p[f"layer{i}.mlp_out.bias"]
            h = norm(u + h) * p[f"layer{i}.mlp_norm.gain"] + p[f"layer{i}.mlp_norm.bias"]
    return h


@pytest.mark.parametrize("length", range(5))
def test_all_paths_of_a_length_are_there_once(length):
    paths = all_paths(TOKENS, length)
    assert count_paths(TOKENS, length) == comb(4, length) * 3**length
    assert len(paths) == len(set(paths)) == count_paths(TOKENS, length)
    assert paths == sorted(paths)
    assert {len(path) for path in paths} == {4}
    assert {sum(head != PASSED for head in path) for path in paths} == {length}
    assert {head for path in paths for head in path} <= {PASSED, 0, 1, 2}


def test_the_lengths_together_are_all_choices():
    assert sum(count_paths(TOKENS, length) for length in range(5)) == 4**4


def test_short_paths_by_hand():
    small = Network(heads=2, depth=2, width=4, classes=2)
    assert all_paths(small, 0) == [(-1, -1)]
    assert all_paths(small, 1) == [(-1, 0), (-1, 1), (0, -1), (1, -1)]
    assert all_paths(small, 2) == [(0, 0), (0, 1), (1, 0), (1, 1)]


@pytest.mark.parametrize("length", range(1, 5))
def test_draws_are_uniform_over_the_paths_of_the_length(length):
    counts = Counter(draw_paths(TOKENS, length, 6000, stream(0, "test", str(length))))
    paths = all_paths(TOKENS, length)
    assert set(counts) <= set(paths)
    assert chisquare([counts[path] for path in paths]).pvalue > 0.01
    taken = np.array([[head != PASSED for head in path] for path in counts.elements()])
    if length < 4:
        assert chisquare(taken.sum(0)).pvalue > 0.01
    heads = Counter(head for path in counts.elements() for head in path if head != PASSED)
    assert chisquare([heads[head] for head in range(3)]).pvalue > 0.01


def test_draws_are_with_replacement_and_repeatable():
    assert draw_paths(TOKENS, 0, 5, stream(0, "test")) == [(PASSED,) * 4] * 5
    first, again = (draw_paths(TOKENS, 2, 5, stream(0, "test")) for _ in range(2))
    assert first == again
    assert first != draw_paths(TOKENS, 2, 5, stream(1, "test"))


@pytest.mark.parametrize("length", [-1, 5])
def test_a_length_that_is_not_there_is_refused(length):
    with pytest.raises(ValueError, match=rf"length {length} is not there: .* lengths are 0 to 4"):
        draw_paths(TOKENS, length, 1, stream(0, "test"))
    with pytest.raises(ValueError, match="lengths are 0 to 4"):
        all_paths(TOKENS, length)


@pytest.mark.parametrize("network", [TOKENS, TEXTS], ids=["tokens", "texts"])
@pytest.mark.parametrize("residual", [True, False])
def test_a_walk_gives_what_each_path_gives_by_itself(network, residual):
    parameters, _, embedded = trained(network)
    paths = [
        path
        for length in range(network.depth + 1)
        for path in draw_paths(network, length, 6, stream(0, "walk", str(length)))
    ]
    paths += paths[:9]
    walked = list(walk(network, parameters, embedded, LENGTHS, paths, residual=residual))
    assert [path for path, _ in walked] == sorted(set(paths))
    for path, state in walked:
        for s in range(2):
            one = {name: value[s] for name, value in parameters.items()}
            for start, length in ((0, 3), (3, 3), (6, 5)):
                tokens = slice(start, start + length)
                expected = evaluate(network, one, embedded[s, tokens], path, residual=residual)
                torch.testing.assert_close(state[s, tokens], expected, rtol=0, atol=1e-10)


def test_a_path_that_takes_no_head_is_the_embedding_itself():
    parameters, _, embedded = trained(TEXTS)
    ((path, state),) = walk(
        TEXTS, parameters, embedded, LENGTHS, all_paths(TEXTS, 0), residual=False
    )
    assert path == (PASSED,) * 3
    assert torch.equal(state, embedded)


@pytest.mark.parametrize("mlp", [True, False])
def test_with_one_head_and_its_residual_kept_the_longest_path_is_the_network(mlp):
    network = Network(heads=1, depth=3, width=12, classes=2, vocabulary=7, mlp=mlp)
    parameters, ids, embedded = trained(network)
    ((_, state),) = walk(network, parameters, embedded, LENGTHS, [(0, 0, 0)], residual=True)
    last = forward(network, parameters, ids, LENGTHS)[-1]
    torch.testing.assert_close(state, last, rtol=0, atol=1e-11)


def test_beginnings_that_paths_share_are_computed_once(monkeypatch):
    parameters, _, embedded = trained(TOKENS)
    computed = []

    def counted(*arguments, **named):
        computed.append(arguments[2:4])  # block and head
        return step(*arguments, **named)

    monkeypatch.setattr("rankcollapse.sampled_paths.step", counted)
    paths = [(0, 1, -1, -1), (0, 1, 2, -1), (0, 1, 2, 2), (0, 2, -1, -1)]
    assert len(list(walk(TOKENS, parameters, embedded, LENGTHS, paths, residual=False))) == 4
    assert sorted(computed) == [(0, 0), (1, 1), (1, 2), (2, 2), (3, 2)]


def test_one_head_at_a_time_leaves_the_whole_output_bias_in_each():
    parameters, _, embedded = trained(TOKENS)
    parameters["layer0.out.weight"].zero_()
    for head in range(3):
        y = step(TOKENS, parameters, 0, head, embedded, groups_of(LENGTHS), residual=False)
        bias = norm(parameters["layer0.out.bias"]).unsqueeze(1).expand_as(y)
        torch.testing.assert_close(y, bias, rtol=0, atol=1e-11)
