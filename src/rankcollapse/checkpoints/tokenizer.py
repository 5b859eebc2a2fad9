"""The tokenizer of a checkpoint, without the model's library."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankcollapse.checkpoints.manifest import (
    TOKENIZER,
    TOKENIZER_FILES,
    CheckpointError,
    read_manifest,
    verify,
)

if TYPE_CHECKING:
    import tokenizers

# Where a checkpoint's files do not name a special token, it has one of these spellings.
SPELLINGS = {
    "cls": ("[CLS]", "<cls>", "<s>"),
    "sep": ("[SEP]", "<sep>", "</s>"),
    "pad": ("[PAD]", "<pad>"),
    "unk": ("[UNK]", "<unk>"),
}


@dataclass(frozen=True)
class Tokenizer:
    """Text to tokens.

    Attributes:
        special: ids of the special tokens "cls", "sep", "pad", "unk", as far as there are any.
        size: number of ids, added tokens included.
    """

    special: dict[str, int]
    size: int
    _backend: "tokenizers.Tokenizer"

    def encode(self, text: str) -> tuple[list[int], list[str]]:
        """Return the ids and the tokens of a text, without special tokens, uncut."""
        encoding = self._backend.encode(text, add_special_tokens=False)
        return encoding.ids, encoding.tokens


def load_tokenizer(folder: Path) -> Tokenizer:
    """Load the tokenizer of a checkpoint.

    Raises:
        CheckpointError: the checkpoint has none, or its files are not what the manifest says.
    """
    import tokenizers

    manifest = read_manifest(folder)
    if TOKENIZER not in manifest.files:
        raise CheckpointError(
            f"{folder}: has no {TOKENIZER}; name another checkpoint whose tokenizer it shall take"
        )
    verify(folder, [name for name in TOKENIZER_FILES if name in manifest.files])
    try:
        backend = tokenizers.Tokenizer.from_file(str(folder / TOKENIZER))
    except Exception as error:  # The library raises nothing more specific.
        raise CheckpointError(
            f"{folder / TOKENIZER}: cannot be loaded ({error}); fetch the checkpoint again"
        ) from None
    backend.no_truncation()
    backend.no_padding()
    return Tokenizer(_special(folder, backend), backend.get_vocab_size(), backend)


def _special(folder: Path, backend: "tokenizers.Tokenizer") -> dict[str, int]:
    named = {
        **_json(folder / "tokenizer_config.json"),
        **_json(folder / "special_tokens_map.json"),
    }
    found = {}
    for role, spellings in SPELLINGS.items():
        entry = named.get(f"{role}_token")
        text = entry.get("content") if isinstance(entry, dict) else entry
        candidates = (text,) if isinstance(text, str) else spellings
        ids = [backend.token_to_id(token) for token in candidates]
        known = [number for number in ids if number is not None]
        if known:
            found[role] = known[0]
    return found


def _json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes()) if path.exists() else {}
    except ValueError as error:
        raise CheckpointError(f"{path}: not JSON ({error}); fetch the checkpoint again") from None
    return content if isinstance(content, dict) else {}
