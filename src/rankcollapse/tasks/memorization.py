"""Memorisation: pairs of sentences whose every token has a random label.

Shapes: S training seeds, N tokens of all texts, V different word pieces.

Source: Dong et al. 2021, section 4.1 and figure 4.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from rankcollapse.checkpoints.tokenizer import Tokenizer, load_tokenizer
from rankcollapse.corpus import SpecialTokens, read_documents
from rankcollapse.tasks import Examples, TaskError, streams

TEXTS = 500
LONGEST = 128
READ = 88  # of the texts that paths are evaluated on, as published
CLASSES = 2

Pair = tuple[str, str]

# Not after an initial, a title or "c."; I, V and X are numerals: they end sentences.
_SENTENCE_END = re.compile(
    r"(?:(?<=[.!?])(?<!\b[A-HJ-UWYZc]\.)(?<!\b(?:Dr|Jr|Mr|Ms|St)\.)(?<!\bMrs\.)|(?<=[.!?]\"))"
    r"\s+(?=[\"'A-Z])"
)
_HYPOTHESES = 2


def read_texts(text: Path, tokenizer: Path) -> tuple[list[list[int]], int]:
    """Return the texts to memorise as ids without gaps, and how many ids there are, V.

    Args:
        text: pairs of sentences parted by a tab, one a line, or biographies, one a line.
        tokenizer: folder of the checkpoint whose tokenizer splits them.

    Raises:
        RankCollapseError: a file is missing or broken, or the text is too short.
    """
    documents = read_documents(text)
    of_file = "\t" in documents[0]
    pairs = pairs_from_file(text) if of_file else pairs_from_biographies(documents)
    pieces = load_tokenizer(tokenizer)
    if missing := {"cls", "sep", "pad", "unk"} - pieces.special.keys():
        raise TaskError(f"{tokenizer}: its tokenizer has no {sorted(missing)} token; take another")
    return compact(tokenise(pairs, pieces, SpecialTokens(**pieces.special, at_end=False)))


def pairs_from_biographies(documents: Sequence[str], count: int = TEXTS) -> list[Pair]:
    """Return pairs of texts about one person, of about the lengths of the RTE data set.

    The first text is two neighbouring sentences; the second, always shorter, is one of the two
    shortest sentences among the document's others. No pair occurs twice.

    Args:
        documents: biographies.
        count: how many pairs to take.

    Raises:
        TaskError: the documents have fewer pairs.
    """
    sentences = [_SENTENCE_END.split(document) for document in documents]
    found = (
        pair
        for turn in range(_HYPOTHESES)
        for document in sentences
        for pair in _pairs(document, turn)
    )
    return _first(list(dict.fromkeys(found)), count, "the biographies")


def _pairs(sentences: list[str], turn: int) -> Iterator[Pair]:
    for start in range(len(sentences) - 1):
        premise = " ".join(sentences[start : start + 2])
        shortest = sorted(sentences[:start] + sentences[start + 2 :], key=len)[:_HYPOTHESES]
        which = (start + turn) % _HYPOTHESES
        if which < len(shortest) and len(shortest[which]) < len(premise):
            yield premise, shortest[which]


def pairs_from_file(path: Path, count: int = TEXTS) -> list[Pair]:
    """Return the first pairs of a file with one pair a line, its two texts parted by a tab.

    Raises:
        TaskError: the file is missing, not UTF-8 or too short, or a line is not a pair.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise TaskError(
            f"{path}: {error.strerror}; give a file with one pair of sentences a line"
        ) from None
    except UnicodeDecodeError as error:
        raise TaskError(
            f"{path}: not UTF-8 (byte {error.start}); convert it, as with iconv -t utf-8"
        ) from None
    lines = text.removesuffix("\n").split("\n") if text else []
    return _first([_pair(path, *line) for line in enumerate(lines, 1)], count, str(path))


def _pair(path: Path, number: int, line: str) -> Pair:
    texts = line.split("\t")
    if len(texts) != 2:
        raise TaskError(
            f"{path}: line {number} has {len(texts) - 1} tabs; give two sentences with one between"
        )
    return texts[0], texts[1]


def _first(pairs: list[Pair], count: int, source: str) -> list[Pair]:
    if len(pairs) < count:
        raise TaskError(
            f"{source}: {len(pairs)} pairs of sentences, {count} are needed; "
            "give more text or ask for fewer"
        )
    return pairs[:count]


def tokenise(
    pairs: Sequence[Pair], tokenizer: Tokenizer, special: SpecialTokens
) -> list[list[int]]:
    """Return the ids of each pair: [CLS] a [SEP] b [SEP], at most 128.

    What is too long loses word pieces from the end of the longer text, of the second if equal.

    Raises:
        TaskError: a text has no word pieces.
    """
    return [
        _text(number, [tokenizer.encode(text)[0] for text in pair], special)
        for number, pair in enumerate(pairs, 1)
    ]


def _text(number: int, pieces: list[list[int]], special: SpecialTokens) -> list[int]:
    first, second = pieces
    if not first or not second:
        raise TaskError(f"pair {number} of the texts has a sentence without words; remove it")
    while len(first) + len(second) > LONGEST - 3:
        (first if len(first) > len(second) else second).pop()
    ids: list[int] = special.around(np.array([[*first, special.sep, *second]]))[0].tolist()
    return ids


def compact(texts: Sequence[Sequence[int]]) -> tuple[list[list[int]], int]:
    """Return texts with the ids that occur renumbered from 0, in order, and how many there are, V.

    A row of the word embedding that never occurs has no gradient, and Adam without weight decay
    does not move it: it need not be stored.
    """
    known = {id_: row for row, id_ in enumerate(sorted({id_ for text in texts for id_ in text}))}
    return [[known[id_] for id_ in text] for text in texts], len(known)


def examples(seeds: Sequence[int], texts: Sequence[Sequence[int]]) -> Examples:
    """Give each token of each text, special tokens too, an independent uniform label, 0 or 1.

    Args:
        seeds: of the trainings; the texts are the same for all, the labels are not.
        texts: their token ids.

    Returns:
        Ids [S, N].

    Raises:
        TaskError: there are no seeds or texts, or a text is empty.
    """
    if not texts:
        raise TaskError("there are no texts to memorise; give at least one")
    if not all(texts):
        number = [len(text) for text in texts].index(0) + 1
        raise TaskError(f"text {number} of {len(texts)} is empty; remove it")
    ids = torch.tensor([id_ for text in texts for id_ in text])  # [N]
    drawn = [random.integers(CLASSES, size=len(ids)) for random in streams(seeds, "memorization")]
    labels = torch.from_numpy(np.stack(drawn))
    return Examples(ids.repeat(len(labels), 1), labels, tuple(len(text) for text in texts))


def ceiling(examples: Examples) -> Tensor:
    """Return the best that a network without positions can reach.

    It cannot tell equal word pieces of one text apart, and does best to give all of them their
    more frequent label.

    Returns:
        The share of right tokens of each seed [S], float64.
    """
    lengths = torch.tensor(examples.lengths)
    text = torch.arange(len(lengths)).repeat_interleave(lengths)  # [N]
    return _majority(text * (examples.inputs.max() + 1) + examples.inputs, examples.labels)


def trivial(train: Examples, test: Examples) -> Tensor:
    """Return how well each word piece's more frequent label in all texts tells the label.

    Args:
        train: the texts to memorise.
        test: those of them that are read.

    Returns:
        The share of right tokens of each seed [S], float64.
    """
    ids = int(train.inputs.max()) + 1
    right = []
    for pieces, labels, read, truth in zip(
        train.inputs, train.labels, test.inputs, test.labels, strict=True
    ):
        ones = torch.bincount(pieces, weights=labels.double(), minlength=ids)
        guess = 2 * ones > torch.bincount(pieces, minlength=ids)
        right.append((guess[read] == truth).double().mean())
    return torch.stack(right)


def _majority(groups: Tensor, labels: Tensor) -> Tensor:
    """Return the share [S] of tokens that have the more frequent label of their group."""
    right = []
    for group, label in zip(groups.numpy(), labels.numpy(), strict=True):
        _, inverse, sizes = np.unique(group, return_inverse=True, return_counts=True)
        ones = np.bincount(inverse, weights=label)
        right.append(np.maximum(ones, sizes - ones).sum() / len(label))
    return torch.tensor(right, dtype=torch.float64)
