import re
from pathlib import Path

import numpy as np
import pytest
import torch
from checkpoint_fixtures import WORDS, save_model

from rankcollapse.checkpoints import copy_local, load_tokenizer
from rankcollapse.corpus import SpecialTokens, read_documents
from rankcollapse.tasks import Examples, TaskError
from rankcollapse.tasks.memorization import (
    ceiling,
    compact,
    examples,
    pairs_from_biographies,
    pairs_from_file,
    tokenise,
    trivial,
)

BIOGRAPHIES = Path(__file__).parents[1] / "data/corpus/biographies.txt"
FIVE = "One is the first. Two is second here. Three! Is four long enough? Five."
A, B, C, CAT = (WORDS.index(word) for word in ("a", "b", "c", "cat"))
CLS, SEP = WORDS.index("[CLS]"), WORDS.index("[SEP]")
SPECIAL = SpecialTokens(cls=CLS, sep=SEP, pad=0, unk=1)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    save_model(folder / "source")
    copy_local(folder / "source", folder / "checkpoint", name="tiny")
    return load_tokenizer(folder / "checkpoint")


@pytest.fixture
def pairs_file(tmp_path):
    path = tmp_path / "pairs.tsv"
    path.write_text("A cat.\tIt is.\nTwo \u2028 cats.\tThey are.\n", encoding="utf-8")
    return path


def test_a_premise_is_two_neighbours_and_a_hypothesis_a_short_other():
    assert pairs_from_biographies([FIVE], 4) == [
        ("One is the first. Two is second here.", "Five."),
        ("Two is second here. Three!", "One is the first."),
        ("Three! Is four long enough?", "Five."),
        ("Is four long enough? Five.", "One is the first."),
    ]


def test_a_second_turn_takes_other_hypotheses():
    pairs = pairs_from_biographies([FIVE], 8)
    assert len(set(pairs)) == 8
    for start in range(4):
        premises = {premise for premise, _ in pairs[start::4]}
        assert len(premises) == 1
        assert len({hypothesis for _, hypothesis in pairs[start::4]}) == 2


@pytest.mark.parametrize(
    "sentence",
    [
        "Dr. Nicolaes Tulp met J. J. Thomson and St. John.",
        "Born (c. February 1818) he left.",
        'He wrote "O Captain!" and more.',
        "It was the time of Mrs. Dalloway, v. 2.",
    ],
)
def test_an_abbreviation_ends_no_sentence(sentence):
    assert pairs_from_biographies([f"{sentence} So it is. No."], 1) == [
        (f"{sentence} So it is.", "No.")
    ]


def test_numerals_and_quotes_end_sentences():
    document = 'He served George V. She said "no." After World War I. He left.'
    assert pairs_from_biographies([document], 1) == [
        ('He served George V. She said "no."', "He left.")
    ]


def test_the_biographies_resemble_rte():
    documents = read_documents(BIOGRAPHIES)
    pairs = pairs_from_biographies(documents)
    assert pairs == pairs_from_biographies(documents)
    assert len(pairs) == len(set(pairs)) == 500
    for premise, hypothesis in pairs:
        assert len(hypothesis) < len(premise)
        assert sum(premise in document and hypothesis in document for document in documents) == 1
    words = np.array([[len(text.split()) for text in pair] for pair in pairs]).mean(0)
    assert 38 < words[0] < 46
    assert 9 < words[1] < 12


def test_too_few_pairs():
    document = "One is one. Two is two. No."
    message = "the biographies: 2 pairs of sentences, 3 are needed; give more text"
    with pytest.raises(TaskError, match=message):
        pairs_from_biographies([document], 3)
    with pytest.raises(TaskError, match="0 pairs"):
        pairs_from_biographies(["Only one.", "One. Two."], 1)


def test_pairs_of_a_file(pairs_file):
    assert pairs_from_file(pairs_file, 2) == [
        ("A cat.", "It is."),
        ("Two \u2028 cats.", "They are."),
    ]
    assert pairs_from_file(pairs_file, 1) == [("A cat.", "It is.")]
    with pytest.raises(TaskError, match=re.escape(f"{pairs_file}: 2 pairs of sentences, 3 are")):
        pairs_from_file(pairs_file, 3)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "0 pairs of sentences, 1 are needed"),
        (b"a\tb\nno tab\n", "line 2 has 0 tabs; give two sentences with one between"),
        (b"a\tb\n\nc\td\n", "line 2 has 0 tabs"),
        (b"a\tb\tc\n", "line 1 has 2 tabs"),
        (b"a\tb\n\xff\n", r"not UTF-8 \(byte 4\)"),
    ],
)
def test_a_file_that_is_no_list_of_pairs(tmp_path, content, message):
    path = tmp_path / "pairs.tsv"
    path.write_bytes(content)
    with pytest.raises(TaskError, match=f"^{re.escape(str(path))}: {message}"):
        pairs_from_file(path, 1)


def test_no_file(tmp_path):
    with pytest.raises(TaskError, match=r"none\.tsv: No such file or directory; give a file"):
        pairs_from_file(tmp_path / "none.tsv", 1)
    with pytest.raises(TaskError, match="Is a directory"):
        pairs_from_file(tmp_path, 1)


def test_a_pair_becomes_one_text(tokenizer):
    assert tokenise([("A b", "cat"), ("c", "c")], tokenizer, SPECIAL) == [
        [CLS, A, B, SEP, CAT, SEP],
        [CLS, C, SEP, C, SEP],
    ]


def test_special_tokens_may_stand_at_the_end(tokenizer):
    at_end = SpecialTokens(cls=CLS, sep=SEP, pad=0, unk=1, at_end=True)
    assert tokenise([("a b", "cat")], tokenizer, at_end) == [[A, B, SEP, CAT, SEP, CLS]]


@pytest.mark.parametrize(
    ("first", "second", "kept"),
    [(62, 63, (62, 63)), (63, 63, (63, 62)), (200, 5, (120, 5)), (5, 200, (5, 120))],
)
def test_a_long_pair_is_cut_to_128_from_its_longer_text(tokenizer, first, second, kept):
    (ids,) = tokenise([("a " * first, "b " * second)], tokenizer, SPECIAL)
    assert ids == [CLS, *[A] * kept[0], SEP, *[B] * kept[1], SEP]
    assert len(ids) == 128


@pytest.mark.parametrize("pair", [("a", " "), ("", "a")])
def test_a_sentence_without_words(tokenizer, pair):
    with pytest.raises(TaskError, match="pair 2 of the texts has a sentence without words"):
        tokenise([("a", "b"), pair], tokenizer, SPECIAL)


def test_compact_keeps_which_ids_are_equal_and_their_order():
    texts, pieces = compact([[101, 7, 102], [101, 30000, 7]])
    assert texts == [[1, 0, 2], [1, 3, 0]]
    assert pieces == 4


def test_examples_give_every_token_a_label():
    texts = [[0, 1, 2], [0, 3]]
    drawn = examples([2, 5], texts)
    assert drawn.inputs.tolist() == [[0, 1, 2, 0, 3]] * 2
    assert drawn.lengths == (3, 2)
    many = examples([0], [[0] * 10_000]).labels
    assert set(many.flatten().tolist()) == {0, 1}
    assert many.double().mean().item() == pytest.approx(0.5, abs=0.02)


def test_a_seed_has_the_same_labels_whatever_seeds_are_beside_it():
    texts = [[0] * 64]
    alone, among = examples([3], texts), examples([1, 3], texts)
    assert torch.equal(alone.labels[0], among.labels[1])
    assert not torch.equal(among.labels[0], among.labels[1])


def test_examples_need_seeds_and_texts():
    with pytest.raises(TaskError, match="no training seeds"):
        examples([], [[0]])
    with pytest.raises(TaskError, match="no texts to memorise"):
        examples([0], [])
    with pytest.raises(TaskError, match="text 2 of 3 is empty; remove it"):
        examples([0], [[0], [], []])


def test_ceiling_and_trivial_by_hand():
    inputs = torch.tensor([[7, 7, 7, 2, 7, 7]] * 2)
    labels = torch.tensor([[1, 1, 0, 0, 0, 0], [1, 1, 1, 1, 1, 1]])
    data = Examples(inputs, labels, (4, 2))
    # First seed, first text: two of the three 7 and the 2; second text: both.
    assert ceiling(data).tolist() == [5 / 6, 1]
    # Of five 7, three have label 0.
    assert trivial(data, data).tolist() == [4 / 6, 1]
    assert ceiling(data).dtype == trivial(data, data).dtype == torch.float64


def test_the_ceiling_is_one_where_no_piece_repeats_within_a_text():
    data = examples([0, 1], [[0, 1, 2], [2, 1, 0]])
    assert ceiling(data).tolist() == [1, 1]
