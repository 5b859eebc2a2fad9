"""From a text file to a batch of tokens.

A text file holds one document a line, in UTF-8. Shapes: B sequences, T tokens.
"""

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rankcollapse.checkpoints.tokenizer import Tokenizer
from rankcollapse.errors import RankCollapseError
from rankcollapse.vocabulary import FORMS, require_known


class CorpusError(RankCollapseError):
    """A text is missing, unreadable or too short."""


@dataclass(frozen=True)
class SpecialTokens:
    """The ids of a model's special tokens, and whether they stand around the text or after it."""

    cls: int
    sep: int
    pad: int
    unk: int
    at_end: bool = False

    def around(self, content: np.ndarray) -> np.ndarray:
        """Return the ids [B, T] of sequences whose text is `content` [B, T - 2]."""
        cls, sep = (np.full((len(content), 1), id_, np.int64) for id_ in (self.cls, self.sep))
        order = (content, sep, cls) if self.at_end else (cls, content, sep)
        return np.concatenate(order, axis=1)


# The published tokenizers' ids, for checkpoints at initialisation, which have no tokenizer.
SPECIAL_TOKENS = {
    "albert": SpecialTokens(cls=2, sep=3, pad=0, unk=1),
    "bert": SpecialTokens(cls=101, sep=102, pad=0, unk=100),
    "mpnet": SpecialTokens(cls=0, sep=2, pad=1, unk=3),
    "xlnet": SpecialTokens(cls=3, sep=4, pad=5, unk=0, at_end=True),
}


@dataclass(frozen=True)
class TokenBatch:
    """Token ids [B, T], and for each sequence the share of its text that repeats a token [B]."""

    ids: np.ndarray
    repeated_share: np.ndarray


def read_documents(path: Path) -> list[str]:
    """Return the documents of a text file: its lines that are not blank.

    Raises:
        CorpusError: the file is missing, empty, or not UTF-8.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise CorpusError(f"{path}: no such text file; give one document a line") from None
    except UnicodeDecodeError as error:
        raise CorpusError(
            f"{path}: not UTF-8 (byte {error.start}); convert it, as with iconv -t utf-8"
        ) from None
    documents = [line.strip() for line in text.split("\n") if line.strip()]
    if not documents:
        raise CorpusError(f"{path}: the text is empty; give one document a line")
    return documents


def in_form(text: str, form: str) -> str:
    """Return `text` in a surface form.

    Args:
        text: ordinary spelling.
        form: "plain" leaves it; "wikibio" writes it as the WikiBio data set does, with which the
            published figures were made: lower case, punctuation set apart by spaces, brackets
            as -lrb- and -rrb-, quotes as `` and '', an en dash as --.

    Raises:
        ValueError: the form is not known.

    Source: Lebret et al. 2016, the WikiBio data set (Penn Treebank tokens, lower case).
    """
    require_known("form", form, FORMS)
    return _wikibio(text) if form == "wikibio" else text


_REWRITES = (
    (re.compile(r'(^|[\s(])"'), r"\1 `` "),
    (re.compile(r'"'), " '' "),
    (re.compile(r"\(|\["), " -lrb- "),
    (re.compile(r"\)|\]"), " -rrb- "),
    (re.compile("[\u2013\u2014]"), " -- "),
    (re.compile(r"([,;:?!])(?!\d)"), r" \1 "),
    (re.compile(r"('s|'re|'ve|'ll|'d|'m|n't)\b"), r" \1"),
    (re.compile(r"s' "), "s ' "),
    (re.compile(r"(?<=[\w'])\.(?=\s*(?:''|-rrb-|$))"), " . "),
    # Not after an initial or a title. I, V and X are numerals: they end sentences.
    (
        re.compile(
            r"(?<=[\w'])(?<!\b[A-HJ-UWYZc])(?<!\b(?:Dr|Jr|Mr|Ms|St))(?<!\bMrs)\.(?=\s+[A-Z`-])"
        ),
        " . ",
    ),
)


def _wikibio(text: str) -> str:
    for pattern, replacement in _REWRITES:
        text = pattern.sub(replacement, text)
    return " ".join(text.lower().split())


def token_batch(
    documents: list[str],
    tokenizer: Tokenizer,
    *,
    sequences: int,
    tokens: int,
    special: SpecialTokens,
    vocabulary: int | None = None,
) -> TokenBatch:
    """Return the beginnings of the first documents that are long enough.

    Args:
        documents: in the surface form wanted.
        tokenizer: makes the pieces.
        sequences: how many documents to take, B.
        tokens: length of each sequence with its two special tokens, T; nothing is padded.
        special: the model's special tokens.
        vocabulary: the number of token ids of a model that borrows this tokenizer: pieces get
            ids of their own below it, equal pieces the same, none of them a special token's; not
            given, the tokenizer is the model's own.

    Returns:
        Ids [B, T] and the share of repetitions among each sequence's T - 2 pieces: 1 less the
        number of different pieces over the number of pieces.

    Raises:
        CorpusError: too few documents are long enough, or the vocabulary is too small.
        ValueError: fewer than one sequence, or than three tokens.
    """
    if sequences < 1 or tokens < 3:
        raise ValueError(
            f"{sequences} sequences of {tokens} tokens: give at least 1 of 3 tokens, "
            "as two of them are the model's special tokens"
        )
    pieces = (tokenizer.encode(document)[0] for document in documents)
    encoded = [ids[: tokens - 2] for ids in pieces if len(ids) >= tokens - 2]
    if len(encoded) < sequences:
        raise CorpusError(
            f"the text has {len(encoded)} documents of {tokens - 2} word pieces or more (of "
            f"{len(documents)}), {sequences} are needed: give more text, or ask for fewer "
            "sequences or tokens"
        )
    content = np.array(encoded[:sequences], dtype=np.int64)
    share = np.array([1 - len(set(ids)) / len(ids) for ids in encoded[:sequences]])
    if vocabulary is not None:
        content = _remap(content, tokenizer.special.get("unk"), special, vocabulary)
    return TokenBatch(special.around(content), share)


def _remap(
    content: np.ndarray, unknown: int | None, special: SpecialTokens, vocabulary: int
) -> np.ndarray:
    """Give the different pieces different ids of the borrowing model, in the same order."""
    taken = {special.cls, special.sep, special.pad, special.unk}
    free = np.array([i for i in range(vocabulary) if i not in taken], dtype=np.int64)
    pieces = [piece for piece in np.unique(content).tolist() if piece != unknown]
    if len(pieces) > len(free):
        raise CorpusError(
            f"the text has {len(pieces)} different word pieces, the model {len(free)} ids for "
            "them: ask for fewer sequences or take a model with a larger vocabulary"
        )
    ids = dict(zip(pieces, free.tolist(), strict=False))
    if unknown is not None:
        ids[unknown] = special.unk
    return np.array([[ids[piece] for piece in row] for row in content.tolist()], dtype=np.int64)
