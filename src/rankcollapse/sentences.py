"""Pairs of sentences that a model embeds: the mean over its last state's tokens is the embedding.

Shapes: P pairs, T tokens of the longest sentence, K path lengths beside 0, D features.
"""

from pathlib import Path

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from rankcollapse.checkpoints.manifest import TOKENIZER, read_manifest
from rankcollapse.checkpoints.tokenizer import load_tokenizer
from rankcollapse.corpus import SPECIAL_TOKENS, CorpusError, SpecialTokens, read_documents
from rankcollapse.decomposition import Decomposition
from rankcollapse.tasks.memorization import TEXTS, pairs_from_biographies, pairs_from_file

Sentences = tuple[Int64[Tensor, "sentence token"], Bool[Tensor, "sentence token"]]


def read_sentences(checkpoint: Path, text: Path, *, pairs: int, longest: int) -> Sentences | None:
    """Read pairs of sentences, evenly from the first 500 of a text.

    Args:
        checkpoint: folder of the checkpoint.
        text: pairs of sentences parted by a tab, one a line, or biographies, one a line.
        pairs: P.
        longest: T at most; the rest of a sentence is cut.

    Returns:
        Ids and which of them are not padding, [2 P, T] each, first P first sentences; None for a
        checkpoint without a tokenizer of its own, to which sentences mean nothing.

    Raises:
        RankCollapseError: a file is missing or broken, or the text is too short.
    """
    manifest = read_manifest(checkpoint)
    if TOKENIZER not in manifest.files:
        return None
    documents = read_documents(text)
    of_file = "\t" in documents[0]
    found = pairs_from_file(text) if of_file else pairs_from_biographies(documents)
    if pairs > TEXTS:
        raise CorpusError(f"{pairs} pairs of sentences are asked for; at most {TEXTS} are read")
    chosen = [found[index * TEXTS // pairs] for index in range(pairs)]
    tokenizer = load_tokenizer(checkpoint)
    if missing := {"cls", "sep", "pad", "unk"} - tokenizer.special.keys():
        raise CorpusError(f"{checkpoint}: its tokenizer has no {sorted(missing)} token")
    special = SpecialTokens(**tokenizer.special, at_end=SPECIAL_TOKENS[manifest.model_type].at_end)
    sentences = [first for first, _ in chosen] + [second for _, second in chosen]
    return padded(
        [tokenizer.encode(sentence)[0] for sentence in sentences], special, longest=longest
    )


def padded(pieces: list[list[int]], special: SpecialTokens, *, longest: int) -> Sentences:
    """Return sentences with their special tokens, cut and padded at the end.

    Raises:
        CorpusError: a sentence has no word pieces.
    """
    if not all(pieces):
        number = [len(one) for one in pieces].index(0) + 1
        raise CorpusError(f"sentence {number} of {len(pieces)} has no words; remove it")
    rows = [special.around(np.array([one[: longest - 2]]))[0] for one in pieces]
    ids = torch.full((len(rows), max(map(len, rows))), special.pad)
    mask = torch.zeros(ids.shape, dtype=torch.bool)
    for index, row in enumerate(rows):
        ids[index, : len(row)] = torch.from_numpy(row)
        mask[index, : len(row)] = True
    return ids, mask


def similarity_errors(found: Decomposition) -> Float[Tensor, " length"]:
    """Return how the similarities of sentences change without the terms of each length, [K + 1].

    Args:
        found: of 2 P sentences as `read_sentences` has them.

    Returns:
        Root of the mean square by which the cosine of two embeddings changes, over all P^2 pairs
        of a first and a second sentence.
    """
    states, without = [], []
    for part in found.parts():
        if part.layer < found.layers:
            continue
        for index, mask in enumerate(found.masks(part.sequences)):
            state = part.state[index][mask].double().mean(0)
            states.append(state)
            without.append(state - part.terms[:, index][:, mask].double().mean(1))
    changes = _cosines(torch.stack(without, 1)) - _cosines(torch.stack(states))
    return changes.square().mean((-2, -1)).sqrt()


def _cosines(embeddings: Tensor) -> Tensor:
    """Return the cosines of first and second sentences, [..., 2 P, D] -> [..., P, P]."""
    first, second = torch.nn.functional.normalize(embeddings, dim=-1).chunk(2, dim=-2)
    return first @ second.mT
