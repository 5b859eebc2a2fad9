import re
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from rankcollapse.checkpoints.tokenizer import Tokenizer
from rankcollapse.corpus import (
    SPECIAL_TOKENS,
    CorpusError,
    SpecialTokens,
    in_form,
    read_documents,
    token_batch,
)

BIOGRAPHIES = Path(__file__).parent.parent / "data" / "corpus" / "biographies.txt"
WORDS = ("[UNK]", "[CLS]", "[SEP]", "[PAD]", *"abcdefghij")
UNKNOWN = 0
OWN = SpecialTokens(cls=1, sep=2, pad=3, unk=0)
DATES = re.compile(r"\([^()]*\d{3,4}[^()]* – [^()]*\d{3,4}[^()]*\)")


@pytest.fixture(scope="module")
def letters():
    """Return a tokenizer to which each word is a piece: a is 4, b is 5, and so on."""
    vocabulary = {word: number for number, word in enumerate(WORDS)}
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    special = {"cls": 1, "sep": 2, "pad": 3, "unk": UNKNOWN}
    return Tokenizer(special, len(vocabulary), backend)


@pytest.fixture(scope="module")
def biographies():
    return read_documents(BIOGRAPHIES)


def batch(letters, *documents, tokens=5, special=OWN, **options):
    options.setdefault("sequences", len(documents))
    return token_batch(list(documents), letters, tokens=tokens, special=special, **options)


def write(path, content):
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(
    ("plain", "wikibio"),
    [
        (
            "Ada Byron (10 December 1815 – 27 November 1852) was English.",
            "ada byron -lrb- 10 december 1815 -- 27 november 1852 -rrb- was english .",
        ),
        ("Born c. 1450 [sic].", "born c. 1450 -lrb- sic -rrb- ."),
        ('"Emma" (the "Great") war', "`` emma '' -lrb- the `` great '' -rrb- war"),
        ('She wrote "Persuasion", then "Emma".', "she wrote `` persuasion '' , then `` emma '' ."),
        ('He said "I am." He left.', "he said `` i am . '' he left ."),
        ("Paris's streets, James' book", "paris 's streets , james ' book"),
        ("It's theirs, isn't it? They'd can't!", "it 's theirs , is n't it ? they 'd ca n't !"),
        ("O'Neill met d'Alembert", "o'neill met d'alembert"),
        ("1,800 men; 3.14: a ratio of 2:1", "1,800 men ; 3.14 : a ratio of 2:1"),
        ("In 1893, 1895 and 1900.", "in 1893 , 1895 and 1900 ."),
        ("1831–36 and yes—no", "1831 -- 36 and yes -- no"),
        ("well-known X-ray", "well-known x-ray"),
        ("W. B. Yeats met Dr. Tulp of St. Mary.", "w. b. yeats met dr. tulp of st. mary ."),
        ("the U.S. Army in Washington, D.C. and on", "the u.s. army in washington , d.c. and on"),
        ("After World War I. Then George V. Later", "after world war i . then george v . later"),
        ("One end. Two ends.", "one end . two ends ."),
        ("A stop.)", "a stop . -rrb-"),
        ("  several   blanks ", "several blanks"),
        ("Irène Æthel ÉCOLE", "irène æthel école"),
        ("", ""),
    ],
)
def test_the_surface_form_of_wikibio(plain, wikibio):
    assert in_form(plain, "wikibio") == wikibio


def test_the_plain_form_changes_nothing():
    assert in_form('He said "no" (twice).', "plain") == 'He said "no" (twice).'


def test_an_unknown_form_is_refused():
    with pytest.raises(ValueError, match=r"unknown form 'wikbio': .*did you mean 'wikibio'"):
        in_form("text", "wikbio")


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.text(alphabet="aBZ9 .,'\"()[]–-:;!?", max_size=40))
def test_the_form_has_no_capital_bracket_quote_or_double_blank(text):
    form = in_form(text, "wikibio")
    assert form == form.lower()
    assert not re.search(r"[()\[\]\"–]|  |^ | $", form)


def test_documents_are_the_lines_that_are_not_blank(tmp_path):
    path = write(tmp_path / "a text.txt", "eins –\n\n  zwei \r\n\t\ndrei".encode())
    assert read_documents(path) == ["eins –", "zwei", "drei"]


@pytest.mark.parametrize("content", [b"", b"\n \n\t\n"])
def test_an_empty_text_is_one_line(tmp_path, content):
    path = write(tmp_path / "t", content)
    with pytest.raises(CorpusError, match=re.escape(f"{path}: the text is empty; give one")):
        read_documents(path)


def test_a_text_that_is_not_utf_8_is_one_line(tmp_path):
    path = write(tmp_path / "t", "abc é".encode("latin-1"))
    with pytest.raises(CorpusError, match=re.escape(f"{path}: not UTF-8 (byte 4); convert it")):
        read_documents(path)


def test_a_missing_text_is_one_line(tmp_path):
    with pytest.raises(CorpusError, match="no such text file; give one document a line"):
        read_documents(tmp_path / "t")


def test_a_batch_is_the_beginning_of_each_document(letters):
    made = batch(letters, "a b c d e", "c c c")
    assert made.ids.dtype == np.int64
    assert made.ids.tolist() == [[1, 4, 5, 6, 2], [1, 6, 6, 6, 2]]
    assert made.repeated_share.tolist() == [0.0, pytest.approx(2 / 3)]


def test_documents_that_are_too_short_are_passed_over(letters):
    made = batch(letters, "a b", "a b c", "", "d e f", "g h i", sequences=2)
    assert made.ids[:, 1:-1].tolist() == [[4, 5, 6], [7, 8, 9]]


def test_special_tokens_stand_where_the_model_wants_them(letters):
    at_end = SpecialTokens(cls=1, sep=2, pad=3, unk=0, at_end=True)
    assert batch(letters, "a b c", special=at_end).ids.tolist() == [[4, 5, 6, 2, 1]]


def test_three_tokens_are_the_least(letters):
    assert batch(letters, "a b", tokens=3).ids.tolist() == [[1, 4, 2]]
    assert batch(letters, "a b", tokens=3).repeated_share.tolist() == [0.0]
    for options in ({"tokens": 2}, {"tokens": 1}, {"sequences": 0}):
        with pytest.raises(ValueError, match="give at least 1 of 3 tokens"):
            batch(letters, "a b c", **options)


def test_too_few_long_documents_are_one_line(letters):
    with pytest.raises(CorpusError) as caught:
        batch(letters, "a b c d", "a", "a b", sequences=2, tokens=6)
    assert str(caught.value) == (
        "the text has 1 documents of 4 word pieces or more (of 3), 2 are needed: give more text, "
        "or ask for fewer sequences or tokens"
    )


@pytest.mark.parametrize("model_type", sorted(SPECIAL_TOKENS))
def test_a_borrowed_tokenizer_keeps_pieces_apart(letters, model_type):
    special = SPECIAL_TOKENS[model_type]
    documents = ("a b a zzz c", "j b d [SEP] zzz")
    own = batch(letters, *documents, tokens=7)
    made = batch(letters, *documents, tokens=7, special=special, vocabulary=200)
    start, ends = (0, slice(-2, None)) if special.at_end else (1, [0, -1])
    borrowed = made.ids[:, start : start + 5]
    assert (
        made.ids[:, ends].tolist()
        == [[special.sep, special.cls] if special.at_end else [special.cls, special.sep]] * 2
    )
    pairs = set(zip(own.ids[:, 1:-1].ravel().tolist(), borrowed.ravel().tolist(), strict=True))
    assert len(pairs) == len({piece for piece, _ in pairs}) == len({id_ for _, id_ in pairs})
    assert dict(pairs)[UNKNOWN] == special.unk
    others = {id_ for piece, id_ in pairs if piece != UNKNOWN}
    assert others.isdisjoint({special.cls, special.sep, special.pad, special.unk})
    assert all(0 <= id_ < 200 for id_ in others)
    assert made.repeated_share.tolist() == own.repeated_share.tolist()


def test_a_vocabulary_that_just_holds_the_pieces_is_enough(letters):
    special = SPECIAL_TOKENS["mpnet"]
    made = batch(letters, "a b c", "c b d", special=special, vocabulary=8)
    assert made.ids.tolist() == [[0, 4, 5, 6, 2], [0, 6, 5, 7, 2]]
    with pytest.raises(CorpusError, match="has 4 different word pieces, the model 3 ids for"):
        batch(letters, "a b c", "c b d", special=special, vocabulary=7)


def test_unknown_pieces_alone_need_no_id(letters):
    made = batch(letters, "x y z", special=SPECIAL_TOKENS["mpnet"], vocabulary=4)
    assert made.ids.tolist() == [[0, 3, 3, 3, 2]]


def test_the_biographies_are_enough_and_differ(biographies):
    assert len(biographies) >= 64
    assert len(set(biographies)) == len(biographies)
    names = [text.split("(")[0].strip() for text in biographies]
    assert len(set(names)) == len(names)


def test_each_biography_leads_with_dates(biographies):
    for text in biographies:
        assert re.match(r"[^\d(]+\(", text), text[:60]
        assert DATES.search(text[:200]), text[:60]
        assert text.endswith("."), text[-60:]
        assert " was " in text[:400], text[:60]


def test_each_life_is_of_the_past_and_of_human_length(biographies):
    for text in biographies:
        born, died = re.split(" – ", DATES.search(text).group(), maxsplit=1)
        years = [int(re.findall(r"\d{3,4}", part)[-1]) for part in (born, died)]
        before_christ = "BC" in born + died
        age = abs(years[1] - years[0])
        assert before_christ or years[0] < years[1] <= 2000, text[:60]
        assert 15 <= age <= 105, text[:60]


def test_each_biography_is_of_a_paragraphs_length(biographies):
    # 128 pieces under every tokenizer used are about 90 words.
    for text in biographies:
        assert len(text.split()) >= 130, text[:60]
        assert len(text) <= 2000, text[:60]


def test_the_biographies_have_ordinary_characters_only(biographies):
    for text in biographies:
        assert not re.search(r"[^\w (),.:;!?\"'–-]|  ", text), text[:60]
        assert text.count('"') % 2 == 0, text[:60]
        assert text.count("(") == text.count(")"), text[:60]


def test_each_biography_in_wikibio_form_has_its_dates_in_tokens(biographies):
    for text in biographies:
        form = in_form(text, "wikibio")
        assert re.search(r" -lrb- .*\d{3,4}.* -- .*\d{3,4}.* -rrb- ", form[:250]), form[:80]
        assert form.endswith(" ."), form[-60:]
        words = form.split()
        assert words.count("``") == words.count("''"), form[:80]
        for word in words:
            assert re.fullmatch(
                r"[\w'-]+|(?:\w\.)+|\w{1,3}\.|\d[\d,.]*\d|[.,:;!?]|``|''|--", word
            ), word
