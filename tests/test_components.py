from dataclasses import replace

import mpmath
import numpy as np
import pytest
from scipy.special import ndtr, softmax

from rankcollapse import components
from rankcollapse.component_networks import states
from rankcollapse.component_settings import Setting
from rankcollapse.components import CONDITIONS, FACTORS
from rankcollapse.errors import RankCollapseError
from rankcollapse.tasks import stream

SEEDS = [3, 11]
SMALL = Setting(depth=3)
LEVELS = [
    pytest.param(replace(SMALL, **{factor: level}), id=components.name({factor: level}))
    for factor, levels in FACTORS.items()
    for level in levels
    if factor != "depth"
]
MIXED = [
    Setting(
        skip=0.5, mlp="gelu_skip", norm="layer_before", positions="relative", mask="causal", depth=3
    ),
    Setting(skip=1, mlp="gelu", norm="rms_after", positions="rotary", mask="window", depth=3),
    Setting(mlp="gelu", mlp_scale=4.0, norm="layer_after", positions="absolute", depth=3),
    Setting(mlp="gelu_skip", norm="rms_before", query_key=4.0, value=2.0, heads=2, depth=3),
]


def normal(seed, name, *shape):
    return stream(seed, "components", name, str(shape[-1])).standard_normal(shape)


def norm(x, setting, place):
    kind, _, where = setting.norm.partition("_")
    if where != place:
        return x
    centred = x - x.mean(1, keepdims=True) if kind == "layer" else x
    return centred / np.sqrt((centred**2).mean(1, keepdims=True) + 1e-12)


def turn(x, place):
    half = len(x) // 2
    z = (x[:half] + 1j * x[half:]) * np.exp(1j * place * 10000.0 ** (-np.arange(half) / half))
    return np.concatenate([z.real, z.imag])


def attention(x, setting, weights, relative):
    query, key, value, out = weights
    tokens, d = setting.tokens, setting.width // setting.heads
    heads = []
    for h in range(setting.heads):
        part = slice(h * d, (h + 1) * d)
        q, k, v = (x @ w[:, part] for w in (query, key, value))
        if setting.positions == "rotary":
            q, k = (np.array([turn(row, i) for i, row in enumerate(y)]) for y in (q, k))
        scores = q @ k.T / np.sqrt(d)
        for i in range(tokens):
            for j in range(tokens):
                if setting.positions == "relative":
                    scores[i, j] += relative[h, i - j + tokens - 1]
                if (setting.mask == "causal" and j > i) or (
                    setting.mask == "window" and abs(i - j) > 4
                ):
                    scores[i, j] = -np.inf
        heads.append(softmax(scores, axis=1) @ v)
    return np.concatenate(heads, axis=1) @ out


def plain(setting, seed):
    """Return the states of a plain pass, one token matrix after the other, from the formulas."""
    width, depth = setting.width, setting.depth
    x = normal(seed, "input", setting.tokens, width)
    if setting.positions == "absolute":
        x = x + normal(seed, "absolute", setting.tokens, width)
    relative = normal(seed, "relative", setting.heads, 2 * setting.tokens - 1)
    scales = {"query": setting.query_key, "key": setting.query_key, "value": setting.value}
    drawn = {
        name: normal(seed, name, depth, width, width) * scales.get(name, 1) / np.sqrt(width)
        for name in ("query", "key", "value", "out")
    }
    up = normal(seed, "mlp_in", depth, width, 4 * width) * setting.mlp_scale / np.sqrt(width)
    down = normal(seed, "mlp_out", depth, 4 * width, width)
    down *= setting.mlp_scale / np.sqrt(2 * width)
    found = [x]
    for layer in range(depth):
        weights = [drawn[name][layer] for name in drawn]
        y = attention(norm(x, setting, "before"), setting, weights, relative)
        x = norm(setting.skip * x + y, setting, "after")
        if setting.mlp != "none":
            u = norm(x, setting, "before") @ up[layer]
            own = x if setting.mlp == "gelu_skip" else 0
            x = norm(own + u * ndtr(u) @ down[layer], setting, "after")
        found.append(x)
    return found


def ratio(x):
    rest = abs(x - x.mean(0))
    whole = abs(x)
    return np.sqrt(
        rest.sum(0).max() * rest.sum(1).max() / (whole.sum(0).max() * whole.sum(1).max())
    )


@pytest.mark.parametrize("setting", [*LEVELS, *MIXED])
def test_a_plain_pass_agrees(setting):
    for ours, theirs in zip(states(setting, [5]), plain(setting, 5), strict=True):
        np.testing.assert_allclose(ours.tokens()[0], theirs, atol=1e-12 * abs(theirs).max(), rtol=0)


@pytest.mark.parametrize("setting", MIXED)
def test_the_rest_is_the_residual(setting):
    for state in states(setting, SEEDS):
        mean = state.tokens().mean(1)
        np.testing.assert_allclose(state.row[:, 0], mean, atol=1e-12, rtol=1e-12)
        assert abs(state.rest.mean(1)).max() <= 1e-15 * abs(state.rest).max()


def exact(setting, seed):
    """Return ratios of a network of one head in 200 digits."""
    matrix = mpmath.matrix
    width, depth = setting.width, setting.depth
    x = matrix(normal(seed, "input", setting.tokens, width).tolist())
    names = ("query", "key", "value", "out")
    drawn = {n: normal(seed, n, depth, width, width) / np.sqrt(width) for n in names}
    up = normal(seed, "mlp_in", depth, width, 4 * width) / np.sqrt(width)
    down = normal(seed, "mlp_out", depth, 4 * width, width) * np.sqrt(2 / (4 * width))
    found = [exact_ratio(x)]
    for layer in range(depth):
        query, key, value, out = (matrix(drawn[n][layer].tolist()) for n in names)
        scores = (x * query) * (x * key).T / mpmath.sqrt(width)
        p = scores.apply(mpmath.exp)
        for i in range(p.rows):
            p[i, :] = p[i, :] / sum(p[i, :])
        x = exact_norm(setting.skip * x + p * (x * value) * out, setting.norm)
        if setting.mlp == "gelu":
            hidden = (x * matrix(up[layer].tolist())).apply(lambda u: u * mpmath.ncdf(u))
            x = exact_norm(hidden * matrix(down[layer].tolist()), setting.norm)
        found.append(exact_ratio(x))
    return found


def exact_norm(x, kind):
    x = x.copy()
    for i in range(x.rows if kind != "none" else 0):
        row = list(x[i, :])
        if kind.startswith("layer"):
            row = [v - sum(row) / len(row) for v in row]
        scale = mpmath.sqrt(sum(v * v for v in row) / len(row) + mpmath.mpf(1e-12))
        x[i, :] = matrix_row(v / scale for v in row)
    return x


def matrix_row(values):
    return mpmath.matrix([list(values)])


def exact_ratio(x):
    means = [sum(x[:, j]) / x.rows for j in range(x.cols)]

    def composite(entry):
        size = [[abs(entry(i, j)) for j in range(x.cols)] for i in range(x.rows)]
        return mpmath.sqrt(max(map(sum, size)) * max(map(sum, zip(*size, strict=True))))

    return composite(lambda i, j: x[i, j] - means[j]) / composite(lambda i, j: x[i, j])


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"norm": "layer_after"},
        {"norm": "rms_after", "mlp": "gelu"},
        {"mlp": "gelu"},
        {"skip": 1e-9},
    ],
    ids=str,
)
def test_ratios_far_below_round_off_are_right(changes):
    setting = Setting(heads=1, width=4, tokens=4, depth=7, **changes)
    ours = [float(ratios_of(state)) for state in states(setting, [1])]
    with mpmath.workdps(400):
        theirs = exact(setting, 1)
    compared = 0
    for mine, true in zip(ours, theirs, strict=True):
        if true > components.RESOLVED:
            assert mine == pytest.approx(float(true), rel=1e-11)
            compared += true < 1e-20
    assert compared


def ratios_of(state):
    from rankcollapse.measures import composite_norm

    return composite_norm(state.rest) / composite_norm(state.tokens())


@pytest.mark.parametrize("setting", [Setting(), *MIXED])
def test_a_seed_does_not_depend_on_the_others(setting):
    together = list(states(setting, [0, *SEEDS]))
    for alone, state in zip(states(setting, [SEEDS[0]]), together, strict=True):
        assert alone.rest[0].numpy().tobytes() == state.rest[1].numpy().tobytes()
        assert alone.row[0].numpy().tobytes() == state.row[1].numpy().tobytes()


def test_a_layer_depends_neither_on_depth_nor_tokens_on_their_number():
    deep = list(states(Setting(depth=5, mlp="gelu"), SEEDS))
    for shallow, state in zip(states(Setting(depth=2, mlp="gelu"), SEEDS), deep, strict=False):
        np.testing.assert_array_equal(shallow.rest, state.rest)
    few, many = (next(states(Setting(tokens=tokens), SEEDS)) for tokens in (8, 24))
    np.testing.assert_allclose(few.tokens(), many.tokens()[:, :8], atol=1e-15)


def test_what_the_first_token_sees_under_a_causal_mask():
    setting = Setting(mask="causal", depth=1)
    first = list(states(setting, [4]))[1].tokens()[0, 0]
    alone = list(states(replace(setting, tokens=1), [4]))[1].tokens()[0, 0]
    np.testing.assert_allclose(first, alone, rtol=1e-12)


def test_one_token_has_no_residual():
    for state in states(Setting(tokens=1, depth=2), [0]):
        assert not state.rest.any()


def test_scale_of_values_does_not_matter_under_post_norm():
    post = Setting(norm="rms_after", depth=3)
    for one, other in zip(
        states(post, SEEDS), states(replace(post, value=4.0), SEEDS), strict=True
    ):
        np.testing.assert_allclose(one.rest, other.rest, atol=1e-9)


@pytest.fixture(scope="module")
def frame():
    return components.study(SEEDS[:1])


def test_every_network_has_its_layers(frame):
    assert list(frame.columns) == components.COLUMNS
    keys = ["condition", "factor", "level", "seed"]
    layers = frame.groupby(keys)["layer"].agg(["min", "max", "size"])
    assert len(layers) == len(list(components.networks()))
    for *key, setting in components.networks():
        assert layers.loc[(*key, SEEDS[0])].tolist() == [0, setting.depth, setting.depth + 1]
    assert np.isfinite(frame["ratio"]).all()


def test_ratios_are_those_of_a_plain_pass(frame):
    rows = frame[(frame["condition"] == "skip") & (frame["level"] == "norm=layer_after")]
    setting = replace(CONDITIONS["skip"], norm="layer_after")
    expected = [ratio(x) for x in plain(setting, SEEDS[0])]
    np.testing.assert_allclose(rows["ratio"], expected, rtol=1e-11)


def test_rates_are_ratios_of_logarithms(frame):
    rows = frame[(frame["condition"] == "baseline") & (frame["level"] == "skip=0")]
    ratios, rates = rows["ratio"].to_numpy(), rows["rate"].to_numpy()
    known = (ratios[1:] > components.RESOLVED) & (ratios[:-1] < 0.5)
    np.testing.assert_allclose(
        rates[1:][known], np.log(ratios[1:][known]) / np.log(ratios[:-1][known])
    )
    assert np.isnan(rates[1:][~known]).all()
    assert known.any()


def test_the_factorial_has_every_combination(frame):
    levels = frame.loc[frame["condition"] == "factorial", "level"].unique()
    assert len(levels) == 2 * 3 * 5 * 4 * 3
    assert "skip=1|mlp=gelu_skip|norm=layer_before|positions=rotary|mask=causal" in levels


def test_same_seeds_same_bytes(frame):
    network = next(setting for *_, setting in components.networks())
    first, second = ([s.rest.numpy().tobytes() for s in states(network, SEEDS)] for _ in range(2))
    assert first == second


@pytest.mark.parametrize("seeds", [[], [1, 1]])
def test_seeds_are_given_once(seeds):
    with pytest.raises(ValueError, match="give at least one, each once"):
        components.study(seeds)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mask": "casual"}, "did you mean 'causal'"),
        ({"heads": 0}, "heads is 0"),
        ({"heads": 3}, "multiple of 6"),
        ({"depth": 0}, "depth is 0"),
        ({"skip": -1.0}, "skip is -1.0"),
        ({"value": float("nan")}, "value is nan"),
    ],
)
def test_a_network_that_there_is_not(changes, message):
    with pytest.raises(ValueError, match=message):
        Setting(**changes)


def test_overflow_is_one_line():
    with pytest.raises(RankCollapseError, match="overflows") as caught:
        components.measure(Setting(value=1e200, depth=3), SEEDS)
    assert "\n" not in str(caught.value)
