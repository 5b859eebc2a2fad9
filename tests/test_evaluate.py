import json
import resource
import shutil
from pathlib import Path

import numpy as np
import pytest
import tokenizers
import torch
from safetensors.torch import load_file

import rankcollapse.evaluate
from rankcollapse import ablate, hidden_states, residual_ratio
from rankcollapse.checkpoints import copy_local, load_model, make_random, read_manifest
from rankcollapse.corpus import SPECIAL_TOKENS
from rankcollapse.errors import RankCollapseError
from rankcollapse.evaluate import Text, evaluate, read_batch
from rankcollapse.files import sha256
from rankcollapse.residuals import residuals
from rankcollapse.states import read_index, read_states
from rankcollapse.tables import curves
from rankcollapse.vocabulary import READINGS, VARIANTS

ROOT = Path(__file__).parent.parent
ARCHITECTURES = ("albert", "bert", "mpnet", "xlnet")
TEXT = Text("lives", ROOT / "data" / "corpus" / "biographies.txt", "wikibio")
DESCRIBED = {
    "albert": ["san", "san_mlp", "san_skip"],
    "bert": ["san_mlp"],
    "mpnet": ["san_mlp"],
    "xlnet": ["san_mlp"],
}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """Return a folder of checkpoints: "trained" and one at initialisation an architecture."""
    folder = tmp_path_factory.mktemp("tiny checkpoints")
    copy_local(ROOT / "config" / "tiny" / "bert", folder / "trained", name="trained")
    for architecture in ARCHITECTURES:
        config = ROOT / "config" / "architectures" / f"tiny-{architecture}.json"
        make_random(config, 5, folder / architecture, name=f"my-{architecture}")
    return folder


@pytest.fixture
def run(tiny, tmp_path):
    """Return `evaluate` of a tiny checkpoint into `tmp_path / "states"`."""

    def evaluated(name="bert", **changes):
        options = {
            "text": TEXT,
            "tokenizer": tiny / "trained",
            "variants": ["san"],
            "readings": ["as-published"],
            "precision": "float32",
            "sequences": 2,
            "tokens": 12,
            "device": "cpu",
        }
        output = changes.pop("output", tmp_path / "states")
        return evaluate(tiny / name, output, **(options | changes))

    return evaluated


@pytest.fixture
def refusal(run, tmp_path):
    """Return the one line with which `evaluate` refuses, having left nothing behind."""

    def refused(*arguments, **changes):
        with pytest.raises((RankCollapseError, ValueError)) as caught:
            run(*arguments, **changes)
        assert listing(tmp_path) == []
        assert "\n" not in str(caught.value)
        return str(caught.value)

    return refused


def listing(folder):
    return sorted(path.name for path in folder.iterdir())


def stored(folder, name="as-published.san"):
    return load_file(folder / f"{name}.safetensors")["states"]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_each_different_network_is_one_file(run, tmp_path, architecture):
    index = run(architecture, variants=VARIANTS, readings=READINGS)
    published = [("as-published", variant) for variant in VARIANTS]
    described = [("as-described", variant) for variant in DESCRIBED[architecture]]
    runs = [(entry["reading"], entry["variant"]) for entry in index["states"]]
    assert runs == published + described
    files = [f"{reading}.{variant}.safetensors" for reading, variant in runs]
    assert [entry["file"] for entry in index["states"]] == files
    assert listing(tmp_path / "states") == sorted([*files, "index.json"])
    assert listing(tmp_path) == ["states"]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_stored_states_are_those_of_the_ablated_model(run, tiny, tmp_path, architecture):
    run(architecture, variants=["san_mlp"], readings=["as-described"], precision="float64")
    batch = read_batch(tiny / architecture, tiny / "trained", TEXT, sequences=2, tokens=12)
    model = load_model(tiny / architecture, precision="float64")
    with torch.no_grad(), ablate(model, "san_mlp", reading="as-described"):
        expected = hidden_states(model, input_ids=torch.from_numpy(batch.ids))
    assert expected.shape == (4, 2, 12, 32)
    assert torch.equal(stored(tmp_path / "states", "as-described.san_mlp"), expected)


def test_the_index_says_what_was_run(run, tiny, tmp_path):
    index = run("xlnet", sequences=3, tokens=10)
    batch = read_batch(tiny / "xlnet", tiny / "trained", TEXT, sequences=3, tokens=10)
    assert index == {
        "checkpoint": "my-xlnet",
        "weights": "init",
        "seed": 5,
        "weights_sha256": read_manifest(tiny / "xlnet").weights_sha256,
        "text": "lives",
        "text_form": "wikibio",
        "text_sha256": sha256(TEXT.path),
        "tokens_sha256": index["tokens_sha256"],
        "precision": "float32",
        "tf32": False,
        "device": "cpu",
        "sequences": 3,
        "tokens": 10,
        "repeated_share": batch.repeated_share.tolist(),
        "states": [
            {
                "reading": "as-published",
                "variant": "san",
                "file": "as-published.san.safetensors",
            }
        ],
    }
    assert read_index(tmp_path / "states") == index
    assert run("xlnet", sequences=3, tokens=11)["tokens_sha256"] != index["tokens_sha256"]


def test_trained_weights_have_no_seed(run):
    index = run("trained")
    assert (index["checkpoint"], index["weights"], index["seed"]) == ("trained", "pretrained", None)


@pytest.mark.parametrize("precision", ["float32", "float64", "bfloat16"])
def test_states_are_stored_in_the_precision_asked_for(run, tmp_path, precision):
    run(precision=precision)
    states = stored(tmp_path / "states")
    assert states.dtype == getattr(torch, precision)
    assert states.shape == (4, 2, 12, 32)


def test_more_sequences_than_one_forward_pass_takes(run, tmp_path):
    run(sequences=19, precision="float64", output=tmp_path / "many")
    run(sequences=2, precision="float64", output=tmp_path / "few")
    many, few = stored(tmp_path / "many"), stored(tmp_path / "few")
    assert many.shape == (4, 19, 12, 32)
    torch.testing.assert_close(many[:, :2], few, rtol=1e-12, atol=1e-12)


def test_the_same_call_gives_the_same_bytes(run, tmp_path):
    options = {"variants": VARIANTS, "readings": READINGS}
    for name in ("a", "b"):
        run("albert", output=tmp_path / name, **options)
    assert listing(tmp_path / "a") == listing(tmp_path / "b")
    for name in listing(tmp_path / "a"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_a_second_run_replaces_the_first(run, tmp_path):
    run(variants=["transformer"])
    run(variants=["san"])
    assert listing(tmp_path / "states") == ["as-published.san.safetensors", "index.json"]


def test_a_variant_asked_for_twice_is_run_once(run):
    index = run(variants=["san", "san"], readings=["as-published", "as-published"])
    assert len(index["states"]) == 1


def test_own_tokens_keep_their_ids(tiny):
    batch = read_batch(tiny / "trained", tiny / "trained", TEXT, sequences=2, tokens=12)
    backend = tokenizers.Tokenizer.from_file(str(tiny / "trained" / "tokenizer.json"))
    assert backend.decode(batch.ids[0].tolist(), skip_special_tokens=False).startswith("[CLS] ch")
    assert (batch.ids[:, 0] == 2).all()
    assert (batch.ids[:, -1] == 3).all()


@pytest.mark.parametrize("architecture", ["albert", "mpnet", "xlnet"])
def test_borrowed_tokens_become_the_models_own(tiny, architecture):
    own = read_batch(tiny / "bert", tiny / "trained", TEXT, sequences=4, tokens=12)
    batch = read_batch(tiny / architecture, tiny / "trained", TEXT, sequences=4, tokens=12)
    special = SPECIAL_TOKENS[architecture]
    if architecture == "xlnet":
        content, ends = batch.ids[:, :-2], batch.ids[:, -2:]
        assert (ends == [special.sep, special.cls]).all()
    else:
        content, ends = batch.ids[:, 1:-1], batch.ids[:, [0, -1]]
        assert (ends == [special.cls, special.sep]).all()
    assert not np.isin(content, [special.cls, special.sep, special.pad]).any()
    assert len(np.unique(content)) == len(np.unique(own.ids[:, 1:-1]))
    assert batch.repeated_share.tolist() == own.repeated_share.tolist()


def test_the_form_of_the_text_is_that_of_the_tokens(tiny):
    plain = Text("lives", TEXT.path, "plain")
    ids = [
        read_batch(tiny / "bert", tiny / "trained", text, sequences=4, tokens=40).ids
        for text in (TEXT, plain)
    ]
    assert not np.array_equal(*ids)


def test_from_evaluation_to_curves(run, tmp_path):
    run("albert", variants=VARIANTS, readings=READINGS, precision="float64")
    table = residuals(tmp_path / "states", tmp_path / "table.parquet")
    result = curves([table])
    result = result[result["measure"] == "composite_ratio"]
    assert len(result) == 7 * 4
    for entry, states in read_states(tmp_path / "states"):
        rows = result[
            (result["variant"] == entry["variant"]) & (result["reading"] == entry["reading"])
        ]
        expected = residual_ratio(states)
        assert rows["layer"].tolist() == [0, 1, 2, 3]
        np.testing.assert_allclose(rows["mean"], expected.mean(1), rtol=1e-12)
        np.testing.assert_allclose(rows["std"], expected.std(1), rtol=1e-9)
        assert (rows["sequences"] == 2).all()


def test_no_cuda_device_is_one_line(refusal, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert refusal(device="cuda") == (
        "no CUDA device: install the CUDA build of torch, or use --device cpu"
    )


def test_auto_without_cuda_is_the_cpu(run, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert run(device="auto")["device"] == "cpu"


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("device", "gpu", "unknown device 'gpu': known are auto, cpu, cuda; did you mean 'cpu'?"),
        ("variants", ["san", "sann"], "unknown variant 'sann': known are san, san_mlp, san_skip,"),
        ("readings", ["as-said"], "unknown reading 'as-said': known are as-published, as-descri"),
        ("precision", "float16", "unknown precision 'float16'"),
        ("text", Text("t", TEXT.path, "wiki"), "unknown form 'wiki'"),
        ("sequences", 0, "0 sequences of 12 tokens: give at least 1"),
        ("tokens", 2, "2 sequences of 2 tokens: give at least 1 of 3 tokens"),
    ],
)
def test_an_unknown_name_is_refused(refusal, option, value, message):
    assert refusal(**{option: value}).startswith(message)


def test_networks_that_only_the_other_reading_has_are_nothing_to_run(refusal):
    message = refusal(variants=["san", "transformer"], readings=["as-described"])
    assert message == (
        "san, transformer of bert is one network in both readings: ask for as-published"
    )


def test_too_few_documents_are_one_line(refusal):
    assert "documents of 10 word pieces or more (of " in refusal(sequences=1000)


@pytest.mark.parametrize(("architecture", "most"), [("bert", 64), ("albert", 64), ("mpnet", 62)])
def test_more_tokens_than_positions_are_one_line(run, refusal, tmp_path, architecture, most):
    message = refusal(architecture, tokens=most + 1)
    assert f"the model has {most} positions, {most + 1} tokens are asked for" in message
    run(architecture, tokens=most)
    assert stored(tmp_path / "states").shape == (4, 2, most, 32)


def test_relative_positions_have_no_limit(run, tmp_path):
    run("xlnet", tokens=80)
    assert stored(tmp_path / "states").shape == (4, 2, 80, 32)


def test_a_missing_text_is_one_line(refusal, tmp_path):
    assert "no such text file" in refusal(text=Text("t", tmp_path / "none.txt", "plain"))


def test_a_vocabulary_too_small_is_one_line(tiny, tmp_path, run):
    config = json.loads((ROOT / "config/architectures/tiny-mpnet.json").read_text("utf-8"))
    (tmp_path / "config.json").write_text(json.dumps({**config, "vocab_size": 10}), "utf-8")
    make_random(tmp_path / "config.json", 0, tmp_path / "small", name="small")
    with pytest.raises(RankCollapseError, match="different word pieces, the model 6 ids for them"):
        run(tmp_path / "small")
    assert not (tmp_path / "states").exists()


def test_a_checkpoint_without_tokenizer_names_the_way_out(refusal, tiny):
    assert "has no tokenizer.json; name another checkpoint" in refusal(tokenizer=tiny / "bert")


def test_a_tokenizer_without_special_tokens_is_refused(tmp_path, run):
    model = shutil.copytree(ROOT / "config" / "tiny" / "bert", tmp_path / "model")
    words = tokenizers.models.WordPiece({"[UNK]": 0, "[CLS]": 1, "the": 2}, unk_token="[UNK]")
    tokenizers.Tokenizer(words).save(str(model / "tokenizer.json"))
    (model / "tokenizer_config.json").unlink()
    copy_local(model, tmp_path / "mine", name="mine")
    with pytest.raises(RankCollapseError, match=r"mine: its tokenizer has no \['pad', 'sep'\]"):
        run(tmp_path / "mine", tokenizer=tmp_path / "mine")


@pytest.mark.parametrize("content", ["", "{}", '{"model_type": "bert"}'])
def test_a_broken_config_is_one_line(tiny, tmp_path, run, content):
    broken = shutil.copytree(tiny / "bert", tmp_path / "broken")
    (broken / "config.json").write_text(content, encoding="utf-8")
    with pytest.raises(RankCollapseError, match=r"config.json: not a model config .*fetch it"):
        run(broken)


def test_too_little_disk_is_one_line_before_the_work(refusal, monkeypatch):
    # 1 run x 4 states x 2 x 12 x 32 numbers of 4 bytes.
    monkeypatch.setattr(rankcollapse.evaluate, "free_bytes", lambda path: 4 * 2 * 12 * 32 * 4 - 1)
    assert "the hidden states need 0.0 GB, the disk has 0.0 GB free; make room" in refusal()


def test_just_enough_disk_is_enough(run, monkeypatch):
    monkeypatch.setattr(rankcollapse.evaluate, "free_bytes", lambda path: 4 * 2 * 12 * 32 * 4)
    run()


def test_a_disk_that_fills_up_is_one_line_and_leaves_nothing(refusal):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5000, hard))
    try:
        message = refusal()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "states: cannot be written (" in message


def test_a_log_names_each_network(run, capsys):
    run("bert", variants=["san", "transformer"])
    assert capsys.readouterr().err.splitlines() == [
        "evaluating bert: 1 of 2, as-published san",
        "evaluating bert: 2 of 2, as-published transformer",
    ]
