import math
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from transformers.activations import ACT2FN

from rankcollapse.bound_chains import (
    TOLERANCE_DECADES,
    VERDICTS,
    chain_bounds,
    closed_form,
    dobrushin_chain,
    layer_norm_log10,
    lipschitz,
    mlp_log10,
    skip_log10,
    verdict,
    violates,
)
from rankcollapse.bound_tables import FIRST_LIMIT, PAPER_LIMIT
from rankcollapse.bounds import CLOSED_FORMS, FORMS, layer_bounds
from rankcollapse.errors import RankCollapseError
from rankcollapse.measures import composite_norm, minimiser_bracket
from rankcollapse.theory import (
    Head,
    column_norm,
    composite_log10,
    diameter,
    measure_head,
    measure_state,
    row_norm,
)
from rankcollapse.trace import GATES

torch.set_num_threads(1)
EYE = torch.eye(2, dtype=torch.float64)
CONSTANTS = {"paper": 4.0, "first": 4.0, "ours": 2**0.5}


def matrix(*rows):
    return torch.tensor(rows, dtype=torch.float64)


def decades(log10):
    return 10 ** log10.item()


def digits(value):
    return pytest.approx(value, abs=6e-11)


FIRST = matrix([1, 0], [0, 1], [1, 1])
SECOND = matrix([0.5, -0.25], [-0.5, 0.25], [0.25, 0.5], [0, -0.5])
SECOND_HEAD = Head(matrix([1], [0.5]), matrix([0.5], [-1]), matrix([1, 0.5], [0, -1]))
PAIR = Head(*(torch.ones(1, 1, dtype=torch.float64) for _ in range(3)))
EXAMPLES = [
    (FIRST, Head(EYE, EYE, EYE), "mean", (0.2175166848, 0.2197377503)),
    (SECOND, SECOND_HEAD, "median", (0.2294284249, 0.2134434159)),
]
EXAMPLE_BOUNDS = [
    (4.7035578863, 1.1758894716, 0.3782015021),
    (13.5329188492, 3.3832297123, 0.3960415272),
]
EXAMPLE_DIAMETERS = [(0.4066725561, 0.4066725561), (0.2764522208, 0.4545793638)]


@pytest.mark.parametrize("number", [0, 1])
def test_worked_examples(number):
    x, head, reference, residuals = EXAMPLES[number]
    layer = layer_bounds(x, [head], reference=reference)
    assert decades(layer.residual_log10) == digits(residuals[0])
    assert decades(layer.mean_residual_log10) == digits(residuals[1])
    for form, value in zip(("paper", "ours", "refined"), EXAMPLE_BOUNDS[number], strict=True):
        assert decades(layer.bounds_log10[form]) == digits(value)
    measured, bound = EXAMPLE_DIAMETERS[number]
    assert decades(layer.output_diameter_log10) == digits(measured)
    assert decades(layer.dobrushin_log10) == digits(bound)


def test_paper_condition_is_where_exp_d_less_1_is_2_d():
    assert pytest.approx(1.2564, abs=5e-5) == PAPER_LIMIT
    assert math.expm1(PAPER_LIMIT) == pytest.approx(2 * PAPER_LIMIT, rel=1e-14)
    layer = layer_bounds(4 * FIRST, [Head(EYE, EYE, EYE)])
    assert math.exp(FIRST_LIMIT) == pytest.approx(8)
    assert layer.max_oscillation.item() > FIRST_LIMIT
    unmet = {form for form in FORMS if layer.bounds_log10[form].isnan()}
    assert unmet == {"paper", "first"}


def test_sharp_constant_by_hand():
    # Around the mean of (a, -a) mu is 1/2, D is 2 a^2 and so the constant (phi / 4)^(1/2).
    layer = layer_bounds(matrix([0.5], [-0.5]), [PAIR])
    phi = math.expm1(0.5) / 0.5
    # gamma^2 = sum_i D_i / S is 1, the smaller.
    assert layer.gamma.item() == 1.0 < phi
    assert decades(layer.coefficients_log10["sharp"]) == pytest.approx(0.5, rel=1e-14)


@pytest.mark.parametrize("a", [0.1, 1e-2, 1e-4, 1e-8])
def test_constant_one_half_is_approached_at_two_tokens(a):
    layer = layer_bounds(matrix([a], [-a]), [PAIR])
    constant = decades(layer.residual_log10 - 3 * layer.state_residual_log10)
    # a tanh(a^2) over 2 a^3 in both norms
    assert constant == pytest.approx(math.tanh(a * a) / (2 * a * a), rel=1e-12)
    assert constant <= 0.5
    assert constant == pytest.approx(0.5, abs=a * a)


def test_root_of_one_half_is_approached_around_a_given_row():
    a = 1e-5
    x = a * matrix([1, 0], [0, -1])
    interaction = Head(matrix([1], [0]), matrix([1], [1]), EYE)
    layer = layer_bounds(x, [interaction], reference=torch.zeros(2, dtype=torch.float64))
    constant = decades(layer.residual_log10 - 3 * layer.state_residual_log10)
    assert constant == pytest.approx(0.5**0.5, rel=1e-9)
    assert decades(layer.coefficients_log10["sharp"]) == pytest.approx(0.5**0.5, rel=1e-9)
    assert layer.mean_residual_log10 < layer.residual_log10


def star(tokens, strength, share):
    """Tokens that all drop one token to which `share` of the attention goes; as many that do not.

    Token 0 and N more have a feature of their own, N tokens are 0; E is `strength` times R R^T.
    """
    features = tokens + 1
    x = torch.cat([torch.eye(features), torch.zeros(tokens, features)]).double()
    bias = torch.full((features,), 50.0, dtype=torch.float64)
    bias[0] += math.log(tokens * share / (1 - share))
    root = math.sqrt(strength) * features**0.25
    eye = torch.eye(features, dtype=torch.float64)
    return x, Head(root * eye, root * eye, eye, bias / root * math.sqrt(features))


def star_residual(tokens, strength, share):
    """Return a lower bound of the star's residual with any row, in closed form."""
    other = (1 - share) / tokens
    total = 1 + other * math.expm1(strength)
    total_0 = 1 + share * math.expm1(strength)
    drop, rise = share - share / total, share * math.exp(strength) / total_0 - share
    own = abs(other / total_0 - other * math.exp(strength) / total)
    rest = (tokens - 1) * abs(other / total_0 - other / total)
    # With any row: of N drops and N zeros in column 0, N drops stay; half a distance does too.
    return math.sqrt((tokens * drop + rise) * (rise + drop + own + rest) / 2)


def test_first_version_fails_where_scores_are_large():
    x, head = star(40, 6.0, 0.8)
    layer = layer_bounds(x, [head], reference=x[-1])
    low = star_residual(40, 6.0, 0.8)
    output = measure_head(measure_state(x, reference=x[-1]), head).output
    bracket = minimiser_bracket(output)[0] * composite_norm(output)
    assert bracket.item() == pytest.approx(low, rel=1e-9)
    assert decades(layer.state_residual_log10) == 1.0
    assert layer.beta.item() == pytest.approx(6.0)
    # The same with 8,001 tokens breaks "4 beta / sqrt(k) |res X|^3", gamma left out: D is 12.5.
    assert star_residual(4000, 12.5, 0.85) > 4 * 12.5


def heavy(generator, *shape):
    return (
        (math.pi * (torch.rand(*shape, generator=generator).double() - 0.5)).tan().clamp(-1e6, 1e6)
    )


def normal(generator, *shape):
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def sparse(generator, *shape):
    return normal(generator, *shape) * (torch.rand(*shape, generator=generator) < 0.3)


def signs(generator, *shape):
    return normal(generator, *shape).sign()


def equal_tokens(generator, *shape):
    return normal(generator, *shape)[..., :1, :].expand(*shape).clone()


def near_collapsed(generator, *shape):
    return equal_tokens(generator, *shape) + 1e-9 * normal(generator, *shape)


def one_outlier(generator, *shape):
    x = equal_tokens(generator, *shape)
    x[..., 0, :] += normal(generator, *shape)[..., 0, :]
    return x


TOKENS = normal, heavy, sparse, signs, equal_tokens, near_collapsed, one_outlier
SHAPES = (
    (1, 3, 2, 1),
    (2, 1, 1, 1),
    (2, 2, 1, 2),
    (3, 2, 2, 1),
    (4, 3, 2, 2),
    (8, 4, 2, 3),
    (24, 6, 3, 2),
)
SCALES = 1e-20, 1e-3, 0.3, 1.0, 30.0, 1e20
LAYERS = 40


def random_layer(generator, draw, shape, scale):
    tokens, features, width, count = shape
    weights = heavy if draw is heavy else sparse if draw is signs else normal

    def head():
        query, key = (weights(generator, LAYERS, features, width) for _ in range(2))
        bias = normal(generator, LAYERS, width)
        return Head(query, key, weights(generator, LAYERS, features, features), bias)

    return scale * draw(generator, LAYERS, tokens, features), [head() for _ in range(count)]


def assert_layer(x, heads, reference):
    layer = layer_bounds(x, heads, reference=reference)
    for form in ("ours", "sharp", "refined", "tight"):  # without a condition; NaN violates nothing
        assert not layer.bounds_log10[form].isnan().any(), form
    assert not layer.dobrushin_log10.isnan().any()
    assert not layer.residual_log10.isnan().any()
    for form in FORMS:
        bound, floor = layer.bounds_log10[form], layer.floor_log10
        assert not violates(layer.residual_log10, bound, floor_log10=floor).any(), form
    assert not violates(
        layer.output_diameter_log10, layer.dobrushin_log10, floor_log10=layer.floor_log10
    ).any()
    assert not (layer.bounds_log10["sharp"] > layer.bounds_log10["ours"] + 1e-12).any()
    assert not (layer.bounds_log10["tight"] > layer.bounds_log10["refined"] + 1e-12).any()
    ratio = layer.mean_residual_log10 - layer.residual_log10
    tokens = x.shape[-2]
    assert not (ratio > math.log10(max(2 * (1 - 1 / tokens), 1)) + 1e-9).any()
    return layer


def least(measured, bound, size):
    """Return whether measured <= bound, but for round-off relative to `size`."""
    return bool((measured <= bound * (1 + 1e-9) + 1e-13 * size).all())


def assert_head(state, head):
    """Hold the numbered inequalities, and the two that `sharp` adds, for one head."""
    one = measure_head(state, head)
    shift = one.shift.abs()
    reference, largest = one.log_reference.exp(), one.max_oscillation
    tilt = (one.oscillations / 4).tanh()
    assert least(shift.sum(-1), 2 * tilt, 1)
    small = (one.oscillations <= PAPER_LIMIT)[..., None]
    linear = 2 * one.oscillations[..., None] * reference[..., None, :]
    assert least(torch.where(small, shift, 0.0), linear, 1)
    moved = one.shift @ state.residual
    columns, rows = column_norm(moved), row_norm(moved)
    grown = largest[..., None] * (1 + 1e-14) + one.log_reference
    grown = (grown[..., None] + state.residual.abs().log()).logsumexp(-2).amax(-1)
    assert least(columns, (grown + one.spread.log()).exp(), state.columns)
    assert least(columns, tilt.sum(-1) * state.oscillation, state.columns)
    assert least(rows, tilt.amax(-1) * state.diameter, state.rows)
    limit = 2 * one.interaction * state.columns * state.rows
    assert least(one.spread, limit, limit)
    assert least(largest, limit, limit)
    by_key = shift.sum(-2).amax(-1)
    phi = torch.where(largest > 1e-9, largest.clamp(1e-9, 300).expm1() / largest, 1.0)
    phi = torch.where(largest < 300, phi, math.inf)
    tokens = shift.shape[-1]
    assert least(by_key, torch.where(one.spread > 0, phi * one.spread / 4, 0.0), tokens)
    assert least(by_key, one.oscillations.sum(-1) / 4, tokens)


def test_no_random_or_adversarial_layer_breaks_a_bound():
    generator = torch.Generator().manual_seed(3)
    count = 0
    for index, (draw, shape, scale) in enumerate(product(TOKENS, SHAPES, SCALES)):
        x, heads = random_layer(generator, draw, shape, scale)
        reference = ("mean", "median", x[:, 0])[index % 3]
        assert_layer(x, heads, reference)
        state = measure_state(x, reference=reference)
        for head in heads:
            assert_head(state, head)
        count += LAYERS
    assert count >= 10_000


def test_no_random_chain_breaks_a_bound():
    generator = torch.Generator().manual_seed(4)
    for draw, shape, reference in product(TOKENS, SHAPES, ("mean", "median")):
        x, heads = random_layer(generator, draw, shape, 0.3)
        layers = []
        for _ in range(3):
            layers.append(assert_layer(x, heads, reference))
            attention = [measure_head(measure_state(x), head).attention for head in heads]
            pairs = zip(attention, heads, strict=True)
            x = torch.stack([p @ x @ head.value_output for p, head in pairs]).sum(0)
        residuals = torch.stack([layer.residual_log10 for layer in layers])
        floors = torch.stack([layer.norm_log10 for layer in layers]) - 13
        for form in CLOSED_FORMS:
            bounds = chain_bounds(layers, form)[1:]
            assert not violates(residuals, bounds, floor_log10=floors).any()
        diameters = torch.stack([layer.output_diameter_log10 for layer in layers])
        bounds = dobrushin_chain(layers)[1:]
        assert not violates(diameters, bounds, floor_log10=floors).any()


numbers = st.floats(-50, 50, width=32).map(lambda x: x if abs(x) > 1e-3 else 0.0)
square = arrays(np.float64, (3, 3), elements=numbers).map(torch.from_numpy)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(x=square, query=square, key=square, weight=square)
def test_no_layer_that_hypothesis_finds_breaks_a_bound(x, query, key, weight):
    head = Head(query, key, weight)
    assert_layer(x, [head, Head(key, query, weight.mT)], "mean")
    assert_head(measure_state(x), head)


def test_heads_are_summed_in_each_norm_by_itself():
    wide, tall = matrix([1, 1], [0, 0]), matrix([1, 0], [1, 0])
    layer = layer_bounds(FIRST, [Head(EYE, EYE, weight) for weight in (wide, tall)])
    alone = layer_bounds(FIRST, [Head(EYE, EYE, wide)])
    for form in FORMS:  # |W|_1 + |W|_1 = 1 + 2 = |W|_inf + |W|_inf against the root of 2
        ratio = decades(layer.bounds_log10[form] - alone.bounds_log10[form])
        assert ratio == pytest.approx(3 / 2**0.5, rel=1e-12)
    assert layer.tau.shape == (2,)


def test_oscillations_of_hundreds_do_not_overflow():
    layer = layer_bounds(30 * FIRST, [Head(EYE, EYE, EYE)])
    assert layer.max_oscillation.item() == pytest.approx(900 / 2**0.5)
    huge = layer_bounds(1e60 * FIRST, [Head(EYE, EYE, EYE)])
    for one in (layer, huge):
        for form in ("ours", "sharp", "refined", "tight"):
            assert one.bounds_log10[form].isfinite()
    assert layer.bounds_log10["ours"].item() == pytest.approx(
        math.log10(layer.gamma.item() * 0.5**0.5) + 3 * layer.state_residual_log10.item()
    )


def test_closed_form_of_twelve_layers():
    residual = math.log10(277.4)
    assert closed_form(math.log10(3.15), residual, depth=12) == pytest.approx(1_430_778, rel=1e-4)
    assert closed_form(0.5, 2.0, depth=2) == 4 * 0.5 + 9 * 2.0


def test_closed_form_is_the_chain_of_equal_layers():
    layer = layer_bounds(FIRST, [Head(EYE, EYE, EYE)], reference=FIRST.mean(0))
    start = layer.state_residual_log10.item()
    for form in CLOSED_FORMS:
        bounds = chain_bounds([layer] * 3, form)
        coefficient = layer.coefficients_log10[form].item()
        expected = [closed_form(coefficient, start, depth=depth) for depth in range(4)]
        assert bounds.tolist() == pytest.approx(expected)


def test_chain_counts_the_move_of_the_centre():
    layer = layer_bounds(FIRST, [Head(EYE, EYE, EYE)])
    own = layer_bounds(FIRST, [Head(EYE, EYE, EYE)], reference=FIRST.mean(0))
    moved, still = (chain_bounds([one] * 2, "sharp")[2].item() for one in (layer, own))
    assert moved - still == pytest.approx(3 * math.log10(4 / 3))
    with pytest.raises(ValueError, match="unknown closed form 'refined'"):
        chain_bounds([layer], "refined")


def test_dobrushin_chain_is_a_product():
    layer = layer_bounds(SECOND, [SECOND_HEAD], reference="median")
    chain = dobrushin_chain([layer, layer])
    factor = 0.2020352728 * 1.5
    assert (10**chain).tolist() == pytest.approx([1.5, 1.5 * factor, 1.5 * factor**2])


@pytest.mark.parametrize("scale", [0.1, 1.0, 100.0])
def test_skip_keeps_a_diameter_between_its_factors(scale):
    generator = torch.Generator().manual_seed(1)
    x, weight = normal(generator, 50, 6, 4), scale * normal(generator, 50, 4, 4) / 10
    head = Head(normal(generator, 50, 4, 2), normal(generator, 50, 4, 2), weight)
    layer = layer_bounds(x, [head])
    low, high = skip_log10(layer.contraction_log10)
    attention = measure_head(measure_state(x), head).attention
    after = diameter(x + attention @ x @ weight).log10() - layer.diameter_log10
    assert ((low <= after + TOLERANCE_DECADES) & (after <= high + TOLERANCE_DECADES)).all()
    assert ((low == -math.inf) == (layer.contraction_log10 >= 0)).all()
    assert low.isfinite().any() == (scale < 100)


@pytest.mark.parametrize("eps", [0.0, 0.1])
def test_layer_norm_stretches_no_more_than_its_factor(eps):
    generator = torch.Generator().manual_seed(2)
    x, gain = normal(generator, 200, 5, 4), normal(generator, 4)
    normed = torch.layer_norm(x, (4,), gain, normal(generator, 4), eps)
    before, after = (torch.cdist(y, y).amax((-2, -1)).log10() for y in (x, normed))
    limit = layer_norm_log10(gain, scale_of(x, eps=eps))
    assert (after - before <= limit + TOLERANCE_DECADES).all()


def scale_of(x, *, eps=0.0):
    return (x.var(-1, correction=0, keepdim=True) + eps).rsqrt()


def test_layer_norm_factor_by_hand():
    x = matrix([1, -1, 0, 0], [3, -3, 3, -3])
    gain = matrix(1, -2, 0.5, 0.5)
    assert decades(layer_norm_log10(gain, scale_of(x))) == pytest.approx(2 * 2 / 2**0.5)
    constant = matrix([1, 1, 1, 1], [3, -3, 3, -3])
    assert layer_norm_log10(gain, scale_of(constant)).item() == math.inf


def test_gelu_slope_is_largest_at_the_root_of_2():
    u = torch.linspace(-6, 6, 12_001, dtype=torch.float64, requires_grad=True)
    (slopes,) = torch.autograd.grad(torch.nn.functional.gelu(u).sum(), u)
    assert lipschitz(GATES["gelu"]) == pytest.approx(slopes.abs().max().item(), abs=1e-7)
    assert lipschitz(GATES["gelu"]) == pytest.approx(1.1289041, abs=5e-8)


@pytest.mark.parametrize("name", GATES)
def test_no_slope_of_an_activation_is_larger(name):
    u = torch.linspace(-8, 8, 16_001, dtype=torch.float64, requires_grad=True)
    (slopes,) = torch.autograd.grad(ACT2FN[name](u).sum(), u)
    assert lipschitz(GATES[name]) == pytest.approx(slopes.abs().max().item(), abs=1e-6)
    assert lipschitz(GATES[name]) >= slopes.abs().max().item() - 1e-12


def test_mlp_stretches_no_more_than_its_factor():
    generator = torch.Generator().manual_seed(5)
    first, second = normal(generator, 4, 8), normal(generator, 8, 3)
    x, bias = normal(generator, 100, 6, 4), normal(generator, 8)
    row = x[:, :1]
    before, after = x - row, torch.nn.functional.gelu(x @ first + bias) @ second
    after = after - torch.nn.functional.gelu(row @ first + bias) @ second
    factor = mlp_log10(first, second, slope=lipschitz(GATES["gelu"]))
    assert (composite_log10(after) <= composite_log10(before) + factor).all()
    by_hand = mlp_log10(matrix([1, -1]), matrix([1], [1]), slope=1.0)
    assert by_hand == pytest.approx(math.log10(2))


@pytest.mark.parametrize(
    ("measured", "bound", "name", "margin"),
    [
        (-2.0, math.nan, "condition not met", math.nan),
        (-2.0, 1.0, "vacuous", 3.0),
        (-2.0, 0.0, "vacuous", 2.0),
        (-2.0, -0.5, "holds", 1.5),
        (-2.0, -2.0 - 1e-10, "holds", -1e-10),
        (-2.0, -2.1, "violated", -0.1),
        (2.0, 1.9, "violated", -0.1),
        (-15.5, -30.0, "below floor", -14.5),
        (-math.inf, -30.0, "holds", math.inf),
        (-math.inf, -math.inf, "holds", math.inf),
    ],
)
def test_verdicts(measured, bound, name, margin):
    said = verdict(measured, bound, trivial_log10=0.0, floor_log10=-15.0)
    assert said.name == name
    assert said.name in VERDICTS
    assert said.margin == pytest.approx(margin, nan_ok=True)


def test_a_measured_nan_has_no_verdict():
    with pytest.raises(ValueError, match="measured residual is NaN"):
        verdict(math.nan, 0.0, trivial_log10=0.0, floor_log10=-15.0)


@pytest.mark.parametrize("x", [FIRST[:1], FIRST[:1].expand(4, 2)])
def test_nothing_left_is_never_violated(x):
    layer = layer_bounds(x, [Head(EYE, EYE, EYE)])
    for form in FORMS:
        said = verdict(
            layer.residual_log10.item(),
            layer.bounds_log10[form].item(),
            trivial_log10=layer.trivial_log10.item(),
            floor_log10=layer.floor_log10.item(),
        )
        assert said == ("vacuous", math.inf)


@pytest.mark.parametrize("position", [EYE.new_zeros(3, 3).fill_diagonal_(1.0), None])
def test_only_dobrushin_covers_a_position_term(position):
    probabilities = torch.full((3, 3), 1 / 3, dtype=torch.float64) if position is None else None
    head = Head(EYE, EYE, EYE, position=position, probabilities=probabilities)
    layer = layer_bounds(FIRST, [head, Head(EYE, EYE, EYE)])
    assert all(layer.bounds_log10[form].isnan() for form in FORMS)
    assert layer.dobrushin_log10 >= layer.output_diameter_log10 - TOLERANCE_DECADES


def test_bad_layers_give_one_line():
    with pytest.raises(ValueError, match=r"^a layer needs at least one head$"):
        layer_bounds(FIRST, [])
    with pytest.raises(RankCollapseError, match=r"^a head's output overflows float64[^\n]*$"):
        layer_bounds(1e200 * FIRST, [Head(EYE * 1e-200, EYE * 1e-200, EYE * 1e200)])
