import json

import pandas as pd
import pytest
import torch
from safetensors.torch import save_file

from rankcollapse import measures, residual_ratio
from rankcollapse.errors import RankCollapseError
from rankcollapse.precision import precision_floor
from rankcollapse.residuals import measure_states, residuals
from rankcollapse.states import read_states
from rankcollapse.tables import SCHEMA, read_table
from rankcollapse.vocabulary import MEASURES, SPECTRAL_MEASURES

INDEX = {
    "checkpoint": "tiny",
    "weights": "init",
    "seed": 3,
    "text": "wikibio",
    "precision": "float64",
    "repeated_share": [0.25, 0.5],
}


def noise(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def cells(state, precision="float32"):
    """Return {measure: (value, status)} of one matrix [T, D], None for a missing value."""
    table = measure_states(torch.as_tensor(state)[None, None], precision=precision)
    values = table["value"].astype(object).where(table["value"].notna(), None)
    return dict(zip(table["measure"], zip(values, table["status"], strict=True), strict=True))


def statuses(state, precision="float32"):
    return {name: status for name, (_, status) in cells(state, precision).items()}


def write_states(folder, runs, **changes):
    """Write a folder as `evaluate` leaves it; `runs` is {(reading, variant): states}."""
    folder.mkdir()
    entries = []
    for (reading, variant), states in runs.items():
        name = f"{reading}.{variant}.safetensors"
        save_file({"states": states}, folder / name)
        entries.append({"reading": reading, "variant": variant, "file": name})
    index = {**INDEX, "states": entries, **changes}
    (folder / "index.json").write_text(json.dumps(index), encoding="utf-8")
    return folder


@pytest.fixture
def stored(tmp_path):
    runs = {
        ("as-published", "san"): noise(3, 2, 5, 4),
        ("as-published", "transformer"): noise(3, 2, 5, 4, seed=1),
        ("as-described", "san_mlp"): noise(3, 2, 5, 4, seed=2),
    }
    return write_states(tmp_path / "states", runs)


def test_every_measure_of_every_state_is_its_own():
    states = noise(3, 3, 5, 4)
    table = measure_states(states, precision="float64").set_index(["layer", "sequence", "measure"])
    assert len(table) == 3 * 3 * len(MEASURES)
    ratios = residual_ratio(states)
    for layer in range(3):
        for sequence in range(3):
            x = states[layer, sequence]
            spectrum = measures.singular_values(x)
            centred = measures.singular_values(measures.residual(x))
            low, high = measures.minimiser_bracket(x)
            expected = {
                "composite_ratio": ratios[layer, sequence],
                "composite_ratio_low": low,
                "composite_ratio_high": high,
                "frobenius_ratio": measures.frobenius_ratio(x),
                "cosine": measures.mean_cosine(x),
                "effective_rank": measures.effective_rank(spectrum),
                "stable_rank": measures.stable_rank(spectrum),
                "numerical_rank": torch.tensor(4.0),
                "participation_ratio": measures.participation_ratio(centred),
            }
            for name, value in expected.items():
                cell = table.loc[(layer, sequence, name)]
                assert cell["value"] == pytest.approx(value.item(), rel=1e-13), name
                assert cell["status"] == "ok"


def test_fewer_sequences_get_a_spectrum():
    table = measure_states(noise(2, 3, 4, 4), precision="float64", spectral_sequences=2)
    spectral = table[table["measure"].isin(SPECTRAL_MEASURES)]
    assert sorted(spectral["sequence"].unique()) == [0, 1]
    assert sorted(table.loc[table["measure"] == "cosine", "sequence"].unique()) == [0, 1, 2]


def test_only_what_is_asked_for_is_measured():
    table = measure_states(noise(2, 1, 4, 4), precision="float64", only=["rate", "stable_rank"])
    assert set(table["measure"]) == {"rate", "stable_rank"}
    everything = measure_states(noise(2, 1, 4, 4), precision="float64")
    kept = everything[everything["measure"].isin(["rate", "stable_rank"])]
    pd.testing.assert_frame_equal(table, kept.reset_index(drop=True))


def test_an_unknown_measure_is_refused():
    with pytest.raises(ValueError, match=r"unknown measure 'rte': known are .*mean 'rate'"):
        measure_states(noise(2, 1, 4, 4), precision="float64", only=["rte"])
    with pytest.raises(ValueError, match="unknown precision 'float16'"):
        measure_states(noise(2, 1, 4, 4), precision="float16")


def test_one_token_has_a_status_in_every_cell():
    found = cells([[1.0, 2.0]])
    assert {status for _, status in found.values()} == {"one token"}
    assert found["composite_ratio"][0] == 0.0
    assert found["cosine"][0] is None
    assert found["rate"][0] is None
    assert found["effective_rank"][0] == pytest.approx(1)
    assert found["participation_ratio"][0] == 0.0


def test_a_zero_matrix_has_a_status_in_every_cell():
    found = cells(torch.zeros(3, 2))
    assert {status for _, status in found.values()} == {"zero matrix"}
    values = {name: value for name, (value, _) in found.items()}
    assert values.pop("rate") is None
    assert set(values.values()) == {0.0}


def test_identical_rows_are_below_the_floor():
    found = cells([[1.0, 2.0]] * 4)
    assert found["composite_ratio"] == (0.0, "below floor")
    assert found["composite_ratio_low"] == (0.0, "below floor")
    assert found["composite_ratio_high"] == (0.0, "below floor")
    assert found["frobenius_ratio"] == (0.0, "below floor")
    assert found["cosine"] == (pytest.approx(1), "below floor")
    assert found["effective_rank"] == (pytest.approx(1), "below floor")
    assert found["stable_rank"] == (pytest.approx(1), "below floor")
    assert found["numerical_rank"] == (1.0, "ok")
    assert found["participation_ratio"] == (0.0, "below floor")
    assert found["rate"] == (None, "undefined")


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_a_state_that_is_not_finite_spoils_itself_alone(bad):
    states = noise(3, 1, 4, 3)
    clean = measure_states(states, precision="float64")
    states[1, 0, 2, 1] = bad
    table = measure_states(states, precision="float64")
    spoilt = table[table["layer"] == 1]
    assert set(spoilt["status"]) == {"not finite"}
    assert spoilt["value"].isna().all()
    others = (table["layer"] != 1) & (table["measure"] != "rate")
    pd.testing.assert_frame_equal(table[others], clean[others])


def test_values_below_the_floor_are_kept_and_marked():
    x = torch.ones(4, 3).double()
    x[0, 0] += 1e-7
    single, double = cells(x, "float32"), cells(x, "float64")
    for name in ("composite_ratio", "frobenius_ratio"):
        assert 0 < single[name][0] < precision_floor("float32")
        assert (single[name][1], double[name][1]) == ("below floor", "ok")
        assert single[name][0] == double[name][0]
    assert single["numerical_rank"][0] == 1
    assert double["numerical_rank"][0] == 2


def test_the_floor_separates_what_is_marked():
    floor = precision_floor("float32")
    for factor, status in ((0.9, "below floor"), (1.1, "ok")):
        # Two tokens 1 +- e: the composite ratio is e / (1 + e) or so.
        x = torch.tensor([[1 + factor * floor], [1 - factor * floor]], dtype=torch.float64)
        assert statuses(x)["composite_ratio"] == status


def test_the_rate_ends_where_the_floor_begins():
    ratios = [0.4, 0.4**3, 0.4**9, 0.4**27, 0.4**81]
    # Two tokens 1 +- r have a residual of r and a largest entry of 1 + r.
    tokens = [[[1 + r / (2 - r)], [1 - r / (2 - r)]] for r in ratios]
    states = torch.tensor(tokens, dtype=torch.float64)[:, None]
    table = measure_states(states, precision="float32", only=["rate", "composite_ratio"])
    rates = table[table["measure"] == "rate"]
    assert rates["status"].tolist() == ["undefined", "ok", "ok", "undefined", "undefined"]
    marks = table.loc[table["measure"] == "composite_ratio", "status"].tolist()
    assert marks == ["ok", "ok", "ok", "below floor", "below floor"]


def test_half_precision_states_are_measured_in_float64():
    states = (1000 * noise(2, 1, 64, 128)).to(torch.bfloat16)
    table = measure_states(states, precision="bfloat16")
    wide = measure_states(states.double(), precision="bfloat16")
    assert table.loc[table["measure"] != "rate", "value"].notna().all()
    pd.testing.assert_frame_equal(table, wide, rtol=1e-12)


def test_the_table_of_a_folder_has_its_keys_and_shares(stored, tmp_path):
    table = residuals(stored, tmp_path / "table.parquet", spectral_sequences=1)
    pd.testing.assert_frame_equal(
        read_table(tmp_path / "table.parquet").astype({"seed": "Int64"}), table[SCHEMA.names]
    )
    for key in ("checkpoint", "weights", "seed", "text", "precision"):
        assert table[key].unique().tolist() == [INDEX[key]]
    runs = set(zip(table["reading"], table["variant"], strict=True))
    assert runs == {
        ("as-published", "san"),
        ("as-published", "transformer"),
        ("as-described", "san_mlp"),
    }
    shares = table[table["measure"] == "repeated_share"]
    assert len(shares) == 3 * 2
    assert set(shares["layer"]) == {0}
    for sequence, share in enumerate(INDEX["repeated_share"]):
        assert shares.loc[shares["sequence"] == sequence, "value"].tolist() == [share] * 3


def test_each_run_gets_its_own_states(stored, tmp_path):
    table = residuals(stored, tmp_path / "table.parquet", only=["composite_ratio"])
    for entry, states in read_states(stored):
        rows = table[
            (table["variant"] == entry["variant"]) & (table["measure"] == "composite_ratio")
        ]
        found = rows.pivot(index="layer", columns="sequence", values="value").to_numpy()
        torch.testing.assert_close(torch.from_numpy(found.copy()), residual_ratio(states))


def test_pretrained_weights_have_no_seed(tmp_path):
    states = {("as-published", "san"): noise(2, 2, 3, 3)}
    folder = write_states(tmp_path / "states", states, weights="pretrained", seed=None)
    assert residuals(folder, tmp_path / "table.parquet")["seed"].isna().all()


def test_degenerate_states_give_a_table_that_may_be_written(tmp_path):
    states = torch.stack([torch.zeros(2, 1, 3), torch.full((2, 1, 3), torch.nan)])
    folder = write_states(tmp_path / "states", {("as-published", "san"): states})
    residuals(folder, tmp_path / "table.parquet")
    table = read_table(tmp_path / "table.parquet")
    assert set(table["status"]) == {"zero matrix", "not finite", "ok"}
    assert set(table.loc[table["status"] == "ok", "measure"]) == {"repeated_share"}


def test_the_same_states_give_the_same_bytes(stored, tmp_path):
    for name in ("a", "b"):
        residuals(stored, tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_log_has_a_line_for_each_run(stored, tmp_path, capsys):
    residuals(stored, tmp_path / "table.parquet", only=["cosine"])
    assert capsys.readouterr().err.splitlines() == [
        "measuring states: 1 of 3, as-published san",
        "measuring states: 2 of 3, as-published transformer",
        "measuring states: 3 of 3, as-described san_mlp",
    ]


def without(folder, name):
    (folder / name).unlink()


def cut(folder, name):
    path = folder / name
    path.write_bytes(path.read_bytes()[:100])


def forget(folder, name):
    path = folder / "index.json"
    index = json.loads(path.read_text(encoding="utf-8"))
    del index[name]
    path.write_text(json.dumps(index), encoding="utf-8")


@pytest.mark.parametrize(
    ("damage", "name", "message"),
    [
        (without, "index.json", "no hidden states .*index.json.*evaluate first"),
        (cut, "index.json", "no hidden states .*evaluate first"),
        (forget, "repeated_share", "index.json: has no repeated_share; evaluate again"),
        (without, "as-published.san.safetensors", "san.safetensors: cannot be read .*again"),
        (cut, "as-described.san_mlp.safetensors", "san_mlp.safetensors: cannot be read .*again"),
    ],
)
def test_damaged_states_are_one_line_and_no_table(stored, tmp_path, damage, name, message):
    damage(stored, name)
    with pytest.raises(RankCollapseError, match=message) as caught:
        residuals(stored, tmp_path / "out" / "table.parquet")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_an_index_that_is_a_list_is_refused(stored, tmp_path):
    (stored / "index.json").write_text("[]", encoding="utf-8")
    with pytest.raises(RankCollapseError, match="no hidden states"):
        residuals(stored, tmp_path / "table.parquet")
