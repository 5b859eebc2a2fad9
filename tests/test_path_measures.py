from math import comb

import numpy as np
import pytest
import torch
from reference_forward import CONFIGS, tiny_inputs, tiny_model

from rankcollapse import composite_norm, decompose
from rankcollapse.path_measures import by_head, by_source, distance_to_rank_one, measure

torch.set_num_threads(1)


def found(name="bert", *, padded=False, **words):
    model = tiny_model(name)
    return decompose(model, **words, **tiny_inputs(model, padded=padded))


def numpy_terms(decomposition):
    """Return the last terms [K + 1, B, T, D]; the second of two sequences is two tokens shorter."""
    return decomposition.terms()[-1].numpy()


@pytest.mark.parametrize("name", CONFIGS)
def test_shares_sum_to_one_after_every_block_and_paths_are_counted(name):
    decomposition = found(name)
    table, _ = measure(decomposition)
    layers = decomposition.layers
    assert table.groupby("layer")["share"].sum().values == pytest.approx(np.ones(layers + 1))
    assert table[["layer", "length"]].values.tolist() == [
        [layer, length] for layer in range(layers + 1) for length in range(layer + 1)
    ]
    last = table[table["layer"] == layers]
    assert last["paths"].tolist() == [comb(layers, k) * 4**k for k in range(layers + 1)]
    assert last["paths"].sum() == 5**layers


def test_each_measure_is_the_mean_over_the_sequences_without_their_padding():
    decomposition = found(padded=True)
    table, _ = measure(decomposition)
    last = table[table["layer"] == 3].set_index("length")
    terms = numpy_terms(decomposition)
    state = terms.sum(0)
    for k in range(4):
        expected = []
        for x, whole in ((terms[k, 0], state[0]), (terms[k, 1, :-2], state[1, :-2])):
            rest, of_state = x - x.mean(0), whole - whole.mean(0)
            singular = np.linalg.svd(x)[1]
            expected.append(
                [
                    composite_norm(torch.tensor(x)).item(),
                    composite_norm(torch.tensor(rest)).item(),
                    (rest * of_state).sum() / (of_state**2).sum(),
                    np.sqrt((singular[1:] ** 2).sum() / (singular**2).sum()),
                ]
            )
        columns = ["norm", "residual", "share", "rank_one_distance"]
        assert last.loc[k, columns].values == pytest.approx(np.mean(expected, axis=0), rel=1e-9)


def test_the_distance_to_rank_one():
    rank_one = torch.outer(torch.arange(1.0, 4), torch.tensor([1.0, -2])).double()
    assert distance_to_rank_one(rank_one) < 1e-7
    assert distance_to_rank_one(torch.eye(4, dtype=torch.float64)) == pytest.approx(np.sqrt(3) / 2)
    assert distance_to_rank_one(1e-200 * torch.eye(2).double()) == pytest.approx(np.sqrt(0.5))
    assert distance_to_rank_one(torch.zeros(3, 2).double()) == 0


def test_what_is_lost_without_the_terms_of_a_length():
    decomposition = found(padded=True)
    _, table = measure(decomposition)
    terms = numpy_terms(decomposition)
    state = terms.sum(0)
    real = (slice(None), slice(None, -2))
    for k, row in enumerate(table.itertuples()):
        cosines = []
        for index, some in enumerate(real):
            whole, without = state[index][some], (state - terms[k])[index][some]
            norms = np.linalg.norm(whole) * np.linalg.norm(without)
            cosines.append((whole * without).sum() / norms)
        assert row.length == k
        assert row.cosine == pytest.approx(np.mean(cosines))


@pytest.mark.parametrize("variant", ["transformer", "san_skip"])
def test_the_shares_of_the_sources_sum_to_one(variant):
    table = by_source(found(variant=variant, padded=True))
    sums = table.groupby("length")["share"].sum()
    assert sums.values == pytest.approx(np.ones(4))
    mlp = table[table["source"] == "mlp"]["share"]
    assert (mlp != 0).any() == (variant == "transformer")


def test_a_path_of_length_k_passes_k_heads():
    model = tiny_model("bert")
    with torch.no_grad():
        for layer in model.encoder.layer:
            layer.attention.output.dense.bias.zero_()  # belongs to no head
    table = by_head(decompose(model, **tiny_inputs(model)))
    assert table.groupby("length")["share"].sum().values == pytest.approx([0, 1, 2, 3])
    assert table[["layer", "head"]].drop_duplicates().values.tolist() == [
        [layer, head] for layer in (1, 2, 3) for head in range(4)
    ]


@pytest.mark.parametrize("variant", ["transformer", "san_skip"])
@pytest.mark.parametrize("name", CONFIGS)
def test_what_passes_a_head_is_what_takes_it(name, variant):
    model = tiny_model(name)
    inputs = tiny_inputs(model, padded=True)
    decomposition = decompose(model, variant=variant, **inputs)
    table = by_head(decomposition).set_index(["layer", "head", "length"])["share"]
    terms = numpy_terms(decomposition)
    real = (slice(None), slice(None, -2))
    for layer, head in ((1, 0), (2, 3), (3, 1)):
        through = decomposition.through_heads({layer: head}).numpy()
        for k in range(1, 4):
            shares = []
            for index, some in enumerate(real):
                part, whole = (
                    x - x.mean(0) for x in (through[k, index][some], terms[k, index][some])
                )
                shares.append((part * whole).sum() / (whole**2).sum())
            assert table[layer, head, k] == pytest.approx(np.mean(shares), rel=1e-9)
    assert not any(parameter.grad is not None for parameter in model.parameters())
    assert (table.xs(0, level="length") == 0).all()


def test_heads_and_sources_hold_the_terms_against_the_state():
    model = tiny_model("bert")
    more = model.encoder.layer[0].output.register_forward_hook(lambda _m, _a, output: output + 0.5)
    decomposition = decompose(model, **tiny_inputs(model))
    for measured in (by_head, by_source):
        with pytest.raises(ValueError, match="miss the model's own state"):
            measured(decomposition)
    more.remove()
    assert len(by_head(decomposition)) == 3 * 4 * 4


def test_small_terms_have_heads_too_and_gradients_may_be_off():
    model = tiny_model("bert", dtype=torch.float32)
    with torch.no_grad():
        for layer in model.encoder.layer:
            layer.attention.output.dense.weight.mul_(1e-9)
            layer.attention.output.dense.bias.zero_()
            layer.attention.self.value.bias.zero_()
        table = by_head(decompose(model, **tiny_inputs(model)))
    sums = table.groupby("length")["share"].sum()
    assert sums.values == pytest.approx([0, 1, 2, 3], rel=1e-3)
    with torch.inference_mode(), pytest.raises(ValueError, match="call it outside of"):
        by_head(decompose(model, **tiny_inputs(model)))
