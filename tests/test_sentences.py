"""Pairs of sentences, and how their similarities change without a path length."""

from pathlib import Path

import numpy as np
import pytest
import torch
from reference_forward import CONFIGS, tiny_inputs, tiny_model

from rankcollapse import decompose, sentences
from rankcollapse.checkpoints.local import copy_local
from rankcollapse.checkpoints.random import make_random
from rankcollapse.checkpoints.tokenizer import load_tokenizer
from rankcollapse.corpus import CorpusError, SpecialTokens, read_documents
from rankcollapse.errors import RankCollapseError
from rankcollapse.sentences import padded, read_sentences, similarity_errors
from rankcollapse.tasks.memorization import pairs_from_biographies

ROOT = Path(__file__).parents[1]
BIOGRAPHIES = ROOT / "data/corpus/biographies.txt"
LONGEST = 30
SPECIAL = SpecialTokens(cls=1, sep=2, pad=0, unk=3)


@pytest.fixture
def bert(tmp_path):
    copy_local(ROOT / "config/tiny/bert", tmp_path / "bert", name="tiny-bert")
    return tmp_path / "bert"


def test_sentences_are_padded_and_cut():
    ids, mask = padded([[7], [8, 9], [*range(10, 300)]], SPECIAL, longest=LONGEST)
    assert ids.shape == (3, LONGEST)
    assert ids[0, :4].tolist() == [1, 7, 2, 0]
    assert ids[1, :4].tolist() == [1, 8, 9, 2]
    assert (ids[2, 0], ids[2, -1]) == (1, 2)
    assert mask.sum(1).tolist() == [3, 4, LONGEST]
    assert not ids[~mask].any()
    at_end, _ = padded([[7]], SpecialTokens(cls=1, sep=2, pad=0, unk=3, at_end=True), longest=5)
    assert at_end.tolist() == [[7, 2, 1]]


def test_a_sentence_without_words_is_named():
    with pytest.raises(CorpusError, match="sentence 2 of 2 has no words; remove it"):
        padded([[7], []], SPECIAL, longest=9)


def test_pairs_are_taken_evenly_first_sentences_first(bert):
    ids, mask = read_sentences(bert, BIOGRAPHIES, pairs=3, longest=LONGEST)
    found = pairs_from_biographies(read_documents(BIOGRAPHIES))
    first, second = zip(found[0], found[166], found[333], strict=True)
    tokenizer = load_tokenizer(bert)
    for row, real, sentence in zip(ids, mask, [*first, *second], strict=True):
        pieces = tokenizer.encode(sentence)[0][: LONGEST - 2]
        assert row[real].tolist()[1:-1] == pieces


def test_a_file_of_pairs_is_read(bert, tmp_path):
    pairs = tmp_path / "pairs.tsv"
    lines = [f"the king of town {n}\ta {n} man" for n in range(500)]
    pairs.write_text("\n".join(lines) + "\n")
    ids, _ = read_sentences(bert, pairs, pairs=500, longest=LONGEST)
    assert len(ids) == 1000


@pytest.mark.parametrize("text", ["", "One sentence only.\n", "a\tb\n"])
def test_a_text_that_is_too_short_is_named(bert, tmp_path, text):
    (tmp_path / "short.txt").write_text(text)
    with pytest.raises(RankCollapseError, match=r"^[^\n]*(short\.txt|biographies)[^\n]*$"):
        read_sentences(bert, tmp_path / "short.txt", pairs=2, longest=LONGEST)


def test_too_many_pairs_are_refused(bert):
    with pytest.raises(CorpusError, match="501 pairs of sentences are asked for; at most 500"):
        read_sentences(bert, BIOGRAPHIES, pairs=501, longest=LONGEST)


def test_a_tokenizer_without_padding_is_named(bert, monkeypatch):
    tokenizer = load_tokenizer(bert)
    del tokenizer.special["pad"]
    monkeypatch.setattr(sentences, "load_tokenizer", lambda _folder: tokenizer)
    with pytest.raises(CorpusError, match=r"bert: its tokenizer has no \['pad'\] token$"):
        read_sentences(bert, BIOGRAPHIES, pairs=1, longest=LONGEST)


def test_a_model_without_a_tokenizer_has_no_sentences(tmp_path):
    architecture = ROOT / "config/architectures/tiny-xlnet.json"
    make_random(architecture, 0, tmp_path / "xlnet", name="tiny-xlnet")
    assert read_sentences(tmp_path / "xlnet", BIOGRAPHIES, pairs=2, longest=LONGEST) is None


@pytest.mark.parametrize("name", CONFIGS)
def test_the_errors_by_numpy(name):
    model = tiny_model(name)
    inputs = tiny_inputs(model, padded=True)  # two sequences, the second two tokens shorter
    ids = torch.cat([inputs["input_ids"], inputs["input_ids"].roll(1, 1)])
    mask = inputs["attention_mask"].repeat(2, 1)
    decomposition = decompose(model, input_ids=ids, attention_mask=mask)
    terms = decomposition.terms()[-1].numpy()
    real = [row.bool().numpy() for row in mask]

    def cosines(states):
        pooled = [state[some].mean(0) for state, some in zip(states, real, strict=True)]
        unit = [vector / np.linalg.norm(vector) for vector in pooled]
        return np.array([[a @ b for b in unit[2:]] for a in unit[:2]])

    whole = terms.sum(0)
    errors = similarity_errors(decomposition).tolist()
    for k, error in enumerate(errors):
        change = cosines(whole - terms[k]) - cosines(whole)
        assert error == pytest.approx(np.sqrt((change**2).mean()))
    assert len(errors) == len(terms)
