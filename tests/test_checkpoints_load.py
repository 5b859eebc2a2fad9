import errno
import json
import os
import shutil
import socket

import pytest
import torch
from checkpoint_fixtures import CONFIGS, names, save_config, save_model
from safetensors.torch import load_file, save_file
from transformers import AutoModel

from rankcollapse.checkpoints import (
    CheckpointError,
    copy_local,
    load_model,
    load_tokenizer,
    make_random,
)

IDS = torch.arange(5, 15)[None]


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved") / "bert"
    save_model(folder)
    return folder


@pytest.fixture
def model_folder(saved, tmp_path):
    return shutil.copytree(saved, tmp_path / "source")


def edit(folder, change):
    path = folder / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, metadata={"format": "pt"})


def refused(folder, output, problem):
    with pytest.raises(CheckpointError, match=problem) as caught:
        copy_local(folder, output, name="tiny")
    assert "\n" not in str(caught.value)
    assert not output.exists()
    assert names(output.parent) == ["source"]


@pytest.mark.parametrize("heads", [True, False])
@pytest.mark.parametrize("architecture", sorted(CONFIGS))
def test_a_local_model_gives_its_own_states(tmp_path, architecture, heads):
    original = save_model(tmp_path / "source", architecture, heads=heads).double().eval()
    manifest = copy_local(tmp_path / "source", tmp_path / "copy", name="tiny")
    model = load_model(tmp_path / "copy", precision="float64")
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float64}
    assert not model.training
    expected = original.base_model(IDS).last_hidden_state
    assert torch.equal(model(IDS).last_hidden_state, expected)
    assert (manifest.model_type, manifest.source.directory) == (architecture, "source")
    files = ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]
    assert names(tmp_path / "copy") == sorted([*files, "manifest.json", "vocab.txt"])


def test_equal_models_make_equal_bytes_wherever_they_lie(tmp_path, model_folder):
    copy_local(model_folder, tmp_path / "one", name="tiny")
    other = shutil.copytree(model_folder, tmp_path / "deeper" / "source")
    copy_local(other, tmp_path / "two", name="tiny")
    for name in names(tmp_path / "one"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_a_checkpoint_loads_with_transformers_alone(tmp_path, model_folder, capfd):
    copy_local(model_folder, tmp_path / "copy", name="tiny")
    model = AutoModel.from_pretrained(tmp_path / "copy", add_pooling_layer=False)
    ours = load_model(tmp_path / "copy")
    assert all(map(torch.equal, model.parameters(), ours.parameters()))


def test_precision_is_checked_and_given(tmp_path, model_folder):
    copy_local(model_folder, tmp_path / "copy", name="tiny")
    assert load_model(tmp_path / "copy", precision="bfloat16").dtype == torch.bfloat16
    with pytest.raises(ValueError, match="'float16'; known are float32, float64, bfloat16"):
        load_model(tmp_path / "copy", precision="float16")


def test_loading_says_nothing_and_asks_nobody(tmp_path, model_folder, monkeypatch, capfd):
    copy_local(model_folder, tmp_path / "copy", name="tiny")
    capfd.readouterr()

    def connect(*_):
        raise AssertionError("a connection was tried")

    monkeypatch.setattr(socket.socket, "connect", connect)
    load_model(tmp_path / "copy")
    load_tokenizer(tmp_path / "copy")
    assert capfd.readouterr() == ("", "")


def test_a_changed_checkpoint_is_refused(tmp_path, model_folder):
    copy_local(model_folder, tmp_path / "copy", name="tiny")
    edit(
        tmp_path / "copy", lambda tensors: tensors["bert.encoder.layer.0.output.dense.bias"].add_(1)
    )
    with pytest.raises(CheckpointError, match=r"model\.safetensors: sha256 is .* fetch it again"):
        load_model(tmp_path / "copy")


def test_truncated_safetensors_are_refused(tmp_path, model_folder):
    path = model_folder / "model.safetensors"
    os.truncate(path, path.stat().st_size // 2)
    refused(model_folder, tmp_path / "copy", r"model\.safetensors: cannot be loaded")


def test_missing_weights_are_named(tmp_path, model_folder):
    edit(model_folder, lambda tensors: tensors.pop("bert.encoder.layer.1.output.dense.weight"))
    refused(model_folder, tmp_path / "copy", r"misses weights encoder\.layer\.1\.output\.dense\.w")


def test_misshapen_weights_are_named(tmp_path, model_folder):
    def widen(tensors):
        tensors["bert.encoder.layer.1.output.dense.bias"] = torch.zeros(33)

    edit(model_folder, widen)
    refused(model_folder, tmp_path / "copy", r"wrong shape of weights encoder\.layer\.1\.output\.d")


@pytest.mark.parametrize(
    "extra",
    ["bert.encoder.layer.2.output.dense.weight", "bert.embeddings.extra", "adapter.down.weight"],
)
def test_unknown_weights_are_named(tmp_path, model_folder, extra):
    edit(model_folder, lambda tensors: tensors.update({extra: torch.zeros(3)}))
    name = extra.removeprefix("bert.").replace(".", r"\.")
    refused(model_folder, tmp_path / "copy", rf"unknown weights (bert\.)?{name}")


@pytest.mark.parametrize("left_over", ["bert.pooler.dense.weight", "bert.embeddings.position_ids"])
def test_a_pooler_and_old_buffers_are_left_over(tmp_path, model_folder, left_over):
    edit(model_folder, lambda tensors: tensors.update({left_over: torch.zeros(1, 64)}))
    copy_local(model_folder, tmp_path / "copy", name="tiny")
    assert (tmp_path / "copy").exists()


def test_many_names_are_cut_short(tmp_path, model_folder):
    extra = {f"bert.more.{number}": torch.zeros(1) for number in range(9)}
    edit(model_folder, lambda tensors: tensors.update(extra))
    refused(model_folder, tmp_path / "copy", r"more\.0, .*more\.1, .*more\.2 and 6 more;")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_named(tmp_path, model_folder, value):
    name = "bert.encoder.layer.0.attention.self.query.weight"
    edit(model_folder, lambda tensors: tensors[name][0].fill_(value))
    refused(model_folder, tmp_path / "copy", r"layer\.0\.attention\.self\.query\.weight holds NaN")


def as_pickle(folder, content):
    (folder / "model.safetensors").unlink(missing_ok=True)
    torch.save(content, folder / "pytorch_model.bin")


def test_a_pickle_of_tensors_becomes_safetensors(tmp_path, model_folder):
    tensors = load_file(model_folder / "model.safetensors")
    words = tensors["bert.embeddings.word_embeddings.weight"]
    as_pickle(model_folder, {**tensors, "cls.predictions.decoder.weight": words})
    copy_local(model_folder, tmp_path / "copy", name="tiny")
    assert "pytorch_model.bin" not in names(tmp_path / "copy")
    stored = load_file(tmp_path / "copy" / "model.safetensors")
    assert all(torch.equal(stored[name], tensor) for name, tensor in tensors.items())


class Bomb:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


def test_a_pickle_that_would_run_code_does_not(tmp_path, model_folder):
    as_pickle(model_folder, {"bert.weight": Bomb(str(tmp_path / "exploded"))})
    refused(model_folder, tmp_path / "copy", r"pytorch_model\.bin: refused, .* would run code")


@pytest.mark.parametrize("content", [[torch.zeros(1)], {"a": 1}])
def test_a_pickle_of_other_things_is_refused(tmp_path, model_folder, content):
    as_pickle(model_folder, content)
    refused(model_folder, tmp_path / "copy", "holds more than tensors")


def test_a_damaged_pickle_is_refused(tmp_path, model_folder):
    as_pickle(model_folder, {"a": torch.zeros(9)})
    os.truncate(model_folder / "pytorch_model.bin", 100)
    refused(model_folder, tmp_path / "copy", "damaged or would run code")


def test_a_folder_without_weights_or_config_is_refused(tmp_path, model_folder):
    (model_folder / "model.safetensors").unlink()
    refused(model_folder, tmp_path / "copy", r"source: has no model\.safetensors")
    (model_folder / "config.json").unlink()
    refused(model_folder, tmp_path / "copy", r"config\.json: No such file")


@pytest.mark.parametrize(
    ("model_type", "problem"),
    [("no-such", "not a known architecture"), ("trocr", "has no encoder to load")],
)
def test_an_unknown_architecture_is_refused(tmp_path, model_folder, model_type, problem):
    path = model_folder / "config.json"
    path.write_text(json.dumps({"model_type": model_type}))
    refused(model_folder, tmp_path / "copy", problem)


def test_a_full_disk_leaves_nothing(tmp_path, model_folder, monkeypatch):
    def fill(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(shutil, "copyfileobj", fill)
    refused(model_folder, tmp_path / "copy", r"copy: cannot be written \(No space left.*free disk")


def test_an_unreadable_file_is_named_not_the_output(tmp_path, model_folder):
    (model_folder / "vocab.txt").unlink()
    (model_folder / "vocab.txt").mkdir()
    refused(model_folder, tmp_path / "copy", r"source/vocab\.txt: cannot be read")


@pytest.mark.parametrize("architecture", sorted(CONFIGS))
def test_random_weights_are_those_of_the_seed(tmp_path, architecture):
    config = save_config(tmp_path / "config", architecture)
    before = torch.get_rng_state()
    manifest = make_random(config, 0, tmp_path / "made", name="tiny")
    model = load_model(tmp_path / "made")
    assert torch.equal(torch.get_rng_state(), before)
    assert names(tmp_path / "made") == ["config.json", "manifest.json"]
    assert (manifest.weights, manifest.source.seed) == ("init", 0)
    pooler = {} if architecture == "xlnet" else {"add_pooling_layer": False}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        expected = AutoModel.from_config(CONFIGS[architecture], **pooler)
    assert [name for name, _ in model.named_parameters()] == [
        name for name, _ in expected.named_parameters()
    ]
    assert all(map(torch.equal, model.parameters(), expected.parameters()))
    assert not model.training


def test_equal_seeds_give_equal_bytes_and_others_other_weights(tmp_path):
    config = save_config(tmp_path / "config", "bert")
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        make_random(config, seed, tmp_path / name, name="tiny")
    a, b, c = ((tmp_path / name / "manifest.json").read_bytes() for name in "abc")
    assert a == b
    assert json.loads(a)["weights_sha256"] != json.loads(c)["weights_sha256"]


def test_random_weights_in_other_precisions_are_the_same_draw(tmp_path):
    make_random(save_config(tmp_path / "config", "bert"), 3, tmp_path / "made", name="tiny")
    single = load_model(tmp_path / "made")
    double = load_model(tmp_path / "made", precision="float64")
    assert all(map(torch.equal, single.double().parameters(), double.parameters()))


def test_other_weights_than_the_manifest_says_are_refused(tmp_path):
    make_random(save_config(tmp_path / "config", "bert"), 0, tmp_path / "made", name="tiny")
    path = tmp_path / "made" / "manifest.json"
    path.write_text(path.read_text().replace('"seed": 0', '"seed": 1'))
    with pytest.raises(CheckpointError, match="draws other weights from the seed"):
        load_model(tmp_path / "made")


def test_a_bad_seed_or_config_makes_nothing(tmp_path):
    config = save_config(tmp_path / "config", "bert")
    with pytest.raises(ValueError, match="seed is -1"):
        make_random(config, -1, tmp_path / "made", name="tiny")
    with pytest.raises(CheckpointError, match=r"none\.json: No such file"):
        make_random(tmp_path / "none.json", 0, tmp_path / "made", name="tiny")
    assert names(tmp_path) == ["config"]
