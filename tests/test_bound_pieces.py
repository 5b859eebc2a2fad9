"""What is proven of skips, norms and MLPs, on models."""

import math

import numpy as np
import pandas as pd
import pytest
import torch
from reference_forward import CONFIGS, tiny_inputs, tiny_model

from rankcollapse import bound_pieces as study
from rankcollapse.bound_claims import BoundViolatedError
from rankcollapse.bound_pieces import bound_pieces, judge
from rankcollapse.bound_tables import LEAST, MOST, PIECE_COLUMNS, PIECES, pieces_over_sequences
from rankcollapse.states import hidden_states
from rankcollapse.subjects import Subject

NAMED = {"checkpoint": "tiny", "weights": "init", "seed": 0}
HEADS, WIDTH = 4, 8


def subject(name="bert", *, scale=1.0, sequences=2):
    model = tiny_model(name)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if "norm" not in key.lower() and "embed" not in key:
                parameter.mul_(scale)
    return Subject(model, tiny_inputs(model)["input_ids"][:sequences], NAMED)


def distance(x):
    return max(np.linalg.norm(a - b) for a in x for b in x)


def composite(x):
    magnitude = np.abs(x)
    return np.sqrt(magnitude.sum(0).max() * magnitude.sum(1).max())


def gelu(u):
    return u * np.array([[(1 + math.erf(v / math.sqrt(2))) / 2 for v in row] for row in u])


def norm(x, module):
    scale = 1 / np.sqrt(x.var(1, keepdims=True) + module.eps)
    gain = module.weight.detach().numpy()
    normed = (x - x.mean(1, keepdims=True)) * scale * gain + module.bias.detach().numpy()
    return normed, np.abs(gain).max() * scale.max()


def linear(module):
    return module.weight.detach().numpy().T, module.bias.detach().numpy()


def test_a_layer_of_bert_against_numpy():
    of = subject(scale=0.3, sequences=1)
    table = bound_pieces(of)
    x = hidden_states(of.model, input_ids=of.ids)[0, 0].detach().numpy()
    block = of.model.encoder.layer[0]
    attention = block.attention
    (query, key, value), (output, output_bias) = (
        [linear(getattr(attention.self, name)) for name in ("query", "key", "value")],
        linear(attention.output.dense),
    )
    given, contraction = output_bias, 0.0
    for head in range(HEADS):
        part = slice(head * WIDTH, (head + 1) * WIDTH)
        q, k, v = (x @ w[:, part] + b[part] for w, b in (query, key, value))
        scores = np.exp(q @ k.T / np.sqrt(WIDTH))
        probabilities = scores / scores.sum(1, keepdims=True)
        given = given + probabilities @ v @ output[part]
        tau = max(np.abs(a - b).sum() for a in probabilities for b in probabilities) / 2
        contraction += tau * np.linalg.norm(value[0][:, part] @ output[part], 2)
    assert contraction < 1
    added = x + given
    normed, stretch = norm(added, attention.output.LayerNorm)
    (first, first_bias), (second, second_bias) = (
        linear(block.intermediate.dense),
        linear(block.output.dense),
    )

    def mlp(y):
        return gelu(y @ first + first_bias) @ second + second_bias

    row = normed.mean(0, keepdims=True)
    after, second_stretch = norm(normed + mlp(normed), block.output.LayerNorm)
    expected = {
        ("skip", LEAST): (distance(added) / distance(x), 1 - contraction),
        ("skip", MOST): (distance(added) / distance(x), 1 + contraction),
        ("attention norm", MOST): (distance(normed) / distance(added), stretch),
        ("mlp", MOST): (
            composite(mlp(normed) - mlp(row)) / composite(normed - row),
            1.1289041 * composite(np.abs(first) @ np.abs(second)),
        ),
        ("mlp norm", MOST): (
            distance(after) / distance(normed + mlp(normed)),
            second_stretch,
        ),
    }
    layer = table[(table["layer"] == 1) & (table["variant"] == "transformer")]
    assert set(zip(layer["piece"], layer["side"], strict=True)) == set(expected)
    for row in layer.itertuples():
        measured, bound = expected[row.piece, row.side]
        assert 10**row.measured_log10 == pytest.approx(measured)
        assert 10**row.bound_log10 == pytest.approx(bound, rel=1e-6)
        sign = 1 if row.side == MOST else -1
        assert row.margin == pytest.approx(sign * (row.bound_log10 - row.measured_log10))
        assert row.verdict == "holds"


@pytest.mark.parametrize("scale", [0.1, 1.0, 5.0, 40.0])
@pytest.mark.parametrize("name", CONFIGS)
def test_no_limit_of_a_tiny_model_is_exceeded(name, scale):
    table = bound_pieces(subject(name, scale=scale))
    assert list(table.columns) == PIECE_COLUMNS
    assert set(table["verdict"]) <= {"holds", "vacuous", "below floor"}
    held = table[table["verdict"] == "holds"]
    assert (held["margin"] >= -1e-9).all()
    counts = table.groupby("variant").size().to_dict()
    layers = table["layer"].max()
    assert counts == {"san_skip": 3 * layers, "transformer": 5 * layers}
    assert set(table["piece"]) == set(PIECES)
    least = table[table["side"] == LEAST]
    assert set(least["verdict"]) == {0.1: {"holds"}, 40.0: {"vacuous"}}.get(
        scale, set(least["verdict"])
    )


def test_a_model_in_float32_is_refused():
    of = subject()
    with pytest.raises(ValueError, match=r"^the model is in torch.float32; load it in"):
        bound_pieces(Subject(of.model.float(), of.ids, NAMED))


def test_one_token_differs_from_no_other():
    model = tiny_model("bert")
    table = bound_pieces(Subject(model, torch.tensor([[7]]), NAMED))
    assert set(table["verdict"]) == {"below floor"}
    assert table["measured_log10"].isna().all()


@pytest.mark.parametrize(
    ("side", "measured", "bound", "name", "margin"),
    [
        (MOST, 0.5, 1.0, "holds", 0.5),
        (MOST, 1.0, 0.5, "violated", -0.5),
        (LEAST, 0.5, 0.1, "holds", 0.4),
        (LEAST, 0.1, 0.5, "violated", -0.4),
        (LEAST, 0.1, -math.inf, "vacuous", math.nan),
        (LEAST, -math.inf, -math.inf, "vacuous", math.nan),
    ],
)
def test_each_side_has_its_verdict(side, measured, bound, name, margin):
    said = judge(side, measured, bound, floor_log10=-14.0)
    assert said.name == name
    assert said.margin == pytest.approx(margin, nan_ok=True)


def test_a_limit_that_is_exceeded_is_an_error(monkeypatch):
    def too_low(*_args, slope):
        return -9.0

    monkeypatch.setattr(study, "mlp_log10", too_low)
    with pytest.raises(BoundViolatedError, match=r"^transformer, layer 1: the mlp changes by"):
        bound_pieces(subject())


def test_sequences_are_put_together():
    rows = pd.DataFrame(
        [
            (1, "skip", LEAST, 0.1, -0.5, 0.6, "holds"),
            (1, "skip", LEAST, 0.3, -math.inf, math.nan, "vacuous"),
            (1, "mlp", MOST, 0.2, 1.0, 0.8, "holds"),
            (1, "mlp", MOST, 0.4, 1.0, 0.6, "holds"),
        ],
        columns=["layer", "piece", "side", "measured_log10", "bound_log10", "margin", "verdict"],
    )
    skip, mlp = pieces_over_sequences(rows).to_dict("records")
    assert (skip["verdict"], skip["bound_log10"]) == ("vacuous", -math.inf)
    assert math.isnan(skip["margin"])
    assert skip["measured_log10"] == pytest.approx(0.2)
    assert (mlp["verdict"], mlp["margin"]) == ("holds", 0.6)
