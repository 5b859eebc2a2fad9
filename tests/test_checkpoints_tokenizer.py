import json
import subprocess
import sys

import pytest
from checkpoint_fixtures import WORDS, save_config, save_model

from rankcollapse.checkpoints import CheckpointError, copy_local, load_tokenizer, make_random


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    folder = tmp_path_factory.mktemp("source")
    save_model(folder)
    return folder


@pytest.fixture
def checkpoint(source, tmp_path):
    copy_local(source, tmp_path / "checkpoint", name="tiny")
    return tmp_path / "checkpoint"


def test_text_becomes_pieces_uncut_without_special_tokens(checkpoint):
    ids, tokens = load_tokenizer(checkpoint).encode("A cats zebra . b c")
    assert tokens == ["a", "cat", "##s", "[UNK]", ".", "b", "c"]
    assert ids == [WORDS.index(token) for token in tokens]


def test_special_tokens_and_size_are_known(checkpoint):
    tokenizer = load_tokenizer(checkpoint)
    assert tokenizer.special == {"cls": 2, "sep": 3, "pad": 0, "unk": 1}
    assert tokenizer.size == len(WORDS)


def test_the_files_name_the_special_tokens(source, tmp_path):
    path = source / "special_tokens_map.json"
    path.write_text(json.dumps({"cls_token": "cat", "sep_token": {"content": "."}}))
    copy_local(source, tmp_path / "checkpoint", name="tiny")
    path.unlink()
    special = load_tokenizer(tmp_path / "checkpoint").special
    assert special == {"cls": 8, "sep": 10, "pad": 0, "unk": 1}


def test_a_checkpoint_without_tokenizer_says_so(tmp_path):
    make_random(save_config(tmp_path / "config", "bert"), 0, tmp_path / "made", name="tiny")
    with pytest.raises(CheckpointError, match=r"has no tokenizer\.json; name another checkpoint"):
        load_tokenizer(tmp_path / "made")


def test_a_changed_tokenizer_is_refused(checkpoint):
    (checkpoint / "vocab.txt").write_text("other")
    with pytest.raises(CheckpointError, match=r"vocab\.txt: sha256"):
        load_tokenizer(checkpoint)


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
def test_a_damaged_tokenizer_is_named(source, tmp_path, name):
    sound = (source / name).read_text()
    (source / name).write_text("{")
    copy_local(source, tmp_path / "checkpoint", name="tiny")
    (source / name).write_text(sound)
    with pytest.raises(CheckpointError, match=f"{name}: .*; fetch the checkpoint again"):
        load_tokenizer(tmp_path / "checkpoint")


def test_a_tokenizer_loads_without_torch(checkpoint):
    code = (
        "import sys, pathlib; from rankcollapse.checkpoints import load_tokenizer;"
        "load_tokenizer(pathlib.Path(sys.argv[1])).encode('a');"
        "print({'torch', 'transformers'} & set(sys.modules))"
    )
    command = [sys.executable, "-c", code, str(checkpoint)]
    assert subprocess.check_output(command, text=True) == "set()\n"
