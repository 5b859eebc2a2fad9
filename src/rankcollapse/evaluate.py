"""Run every ablation of one checkpoint on one text, and store the hidden states.

Shapes: L layers, B sequences, T tokens, D features.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from rankcollapse.ablation import ablate, readings_differ
from rankcollapse.checkpoints.load import load_model
from rankcollapse.checkpoints.manifest import read_manifest
from rankcollapse.checkpoints.tokenizer import load_tokenizer
from rankcollapse.corpus import (
    SPECIAL_TOKENS,
    SpecialTokens,
    TokenBatch,
    in_form,
    read_documents,
    token_batch,
)
from rankcollapse.errors import RankCollapseError
from rankcollapse.files import atomic_directory, free_bytes, sha256
from rankcollapse.products import OneDNN
from rankcollapse.progress import steps
from rankcollapse.states import hidden_states
from rankcollapse.vocabulary import DEVICES, READINGS, VARIANTS, require_known

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# Sequences in one forward pass: their activations stay near the CPU's cache.
BATCH = 8


class EvaluationError(RankCollapseError):
    """A checkpoint cannot be evaluated here."""


@dataclass(frozen=True)
class Text:
    """A text file, the surface form it is read in, and the name it has in tables."""

    name: str
    path: Path
    form: str


def evaluate(
    checkpoint: Path,
    output: Path,
    *,
    text: Text,
    tokenizer: Path,
    variants: Sequence[str],
    readings: Sequence[str],
    precision: str,
    sequences: int,
    tokens: int,
    device: str = "auto",
    tf32: bool = False,
) -> dict[str, Any]:
    """Store the hidden states of every ablation of a checkpoint.

    A variant that is the same network in both readings is run once, as published.

    Args:
        checkpoint: folder of the checkpoint.
        output: folder to make: `index.json` and one safetensors file an ablation.
        text: what the model reads.
        tokenizer: folder of the checkpoint whose tokenizer is taken; may be `checkpoint`.
        variants: of `rankcollapse.ablate`.
        readings: of `rankcollapse.ablate`.
        precision: "float32", "float64" or "bfloat16".
        sequences: B.
        tokens: T, with the model's special tokens.
        device: "auto" (CUDA where there is one), "cpu" or "cuda".
        tf32: let CUDA round float32 products to TF32.

    Returns:
        What `index.json` holds.

    Raises:
        RankCollapseError: a file is missing, broken or too short, the model has too few
            positions, the device is not there, or the disk has too little room.
        ValueError: a name is not known, or the variants are not networks of the reading's own.
    """
    place = _device(device)
    batch = read_batch(checkpoint, tokenizer, text, sequences=sequences, tokens=tokens)
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    model = load_model(checkpoint, precision=precision, device=place)
    runs = _ablations(model.config.model_type, variants, readings)
    _require_positions(checkpoint, model, tokens)
    _require_room(output, model, batch, len(runs))
    ids = torch.from_numpy(batch.ids).to(place)
    manifest = read_manifest(checkpoint)
    with atomic_directory(output) as folder:
        states = []
        for reading, variant in steps(runs, f"evaluating {checkpoint.name}"):
            name = f"{reading}.{variant}.safetensors"
            _save(folder / name, _run(model, ids, variant, reading), output)
            states.append({"reading": reading, "variant": variant, "file": name})
        index = {
            "checkpoint": manifest.name,
            "weights": manifest.weights,
            "seed": getattr(manifest.source, "seed", None),
            "weights_sha256": manifest.weights_sha256,
            "text": text.name,
            "text_form": text.form,
            "text_sha256": sha256(text.path),
            "tokens_sha256": _ids_digest(batch),
            "precision": precision,
            "tf32": tf32,
            "device": place,
            "sequences": sequences,
            "tokens": tokens,
            "repeated_share": batch.repeated_share.tolist(),
            "states": states,
        }
        (folder / "index.json").write_text(json.dumps(index, indent=1) + "\n", encoding="utf-8")
    return index


def read_batch(
    checkpoint: Path, tokenizer: Path, text: Text, *, sequences: int, tokens: int
) -> TokenBatch:
    """Return the tokens that a checkpoint reads.

    A checkpoint of another vocabulary than the tokenizer's keeps its own special tokens and
    gives every piece an id of its own.

    Raises:
        RankCollapseError: a file is missing or broken, or the text is too short.
    """
    documents = [in_form(document, text.form) for document in read_documents(text.path)]
    pieces = load_tokenizer(tokenizer)
    (model_type, vocabulary), lender = _vocabulary(checkpoint), _vocabulary(tokenizer)
    require_known("model_type", model_type, SPECIAL_TOKENS)
    special = SPECIAL_TOKENS[model_type]
    own = (model_type, vocabulary) == lender
    if own:
        if missing := {"cls", "sep", "pad", "unk"} - pieces.special.keys():
            raise EvaluationError(f"{tokenizer}: its tokenizer has no {sorted(missing)} token")
        special = SpecialTokens(**pieces.special, at_end=special.at_end)
    return token_batch(
        documents,
        pieces,
        sequences=sequences,
        tokens=tokens,
        special=special,
        vocabulary=None if own else vocabulary,
    )


def _device(name: str) -> str:
    require_known("device", name, DEVICES)
    there = torch.cuda.is_available()
    if name == "cuda" and not there:
        raise EvaluationError(
            "no CUDA device: install the CUDA build of torch, or use --device cpu"
        )
    return "cuda" if there and name != "cpu" else "cpu"


def _vocabulary(checkpoint: Path) -> tuple[str, int]:
    """Return model type and number of token ids, from a checkpoint's config."""
    path = checkpoint / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        return config["model_type"], config["vocab_size"]
    except (OSError, ValueError, KeyError) as error:
        raise EvaluationError(f"{path}: not a model config ({error}); fetch it again") from None


def _ablations(
    model_type: str, variants: Sequence[str], readings: Sequence[str]
) -> list[tuple[str, str]]:
    """Return the pairs of reading and variant that are different networks."""
    for reading in readings:
        require_known("reading", reading, READINGS)
    for variant in variants:
        require_known("variant", variant, VARIANTS)
    runs = [
        (reading, variant)
        for reading in dict.fromkeys(readings)
        for variant in dict.fromkeys(variants)
        if reading == "as-published" or readings_differ(model_type, variant)
    ]
    if not runs:
        raise ValueError(
            f"{', '.join(variants)} of {model_type} is one network in both readings: "
            "ask for as-published"
        )
    return runs


def _run(model: "PreTrainedModel", ids: Tensor, variant: str, reading: str) -> Tensor:
    """Return the states [L + 1, B, T, D] of one ablation, on the CPU."""
    with torch.inference_mode(), OneDNN(), ablate(model, variant, reading=reading):
        parts = [hidden_states(model, input_ids=part).cpu() for part in torch.split(ids, BATCH)]
    return torch.cat(parts, dim=1)


def _save(path: Path, states: Tensor, output: Path) -> None:
    try:
        save_file({"states": states}, path)
    except SafetensorError as error:
        raise EvaluationError(f"{output}: cannot be written ({error}); make room") from None


def _require_positions(checkpoint: Path, model: "PreTrainedModel", tokens: int) -> None:
    config = model.config
    positions = config.max_position_embeddings  # -1: XLNet has no limit.
    if config.model_type == "mpnet":  # It numbers them from its padding id on.
        positions -= config.pad_token_id + 1
    if 0 < positions < tokens:
        raise EvaluationError(
            f"{checkpoint}: the model has {positions} positions, {tokens} tokens are asked for; "
            "ask for fewer"
        )


def _require_room(output: Path, model: "PreTrainedModel", batch: TokenBatch, runs: int) -> None:
    config = model.config
    states = (config.num_hidden_layers + 1) * batch.ids.size * config.hidden_size
    needed = runs * states * model.dtype.itemsize
    free = free_bytes(output)
    if needed > free:
        raise EvaluationError(
            f"{output}: the hidden states need {needed / 1e9:.1f} GB, the disk has "
            f"{free / 1e9:.1f} GB free; make room or ask for fewer sequences"
        )


def _ids_digest(batch: TokenBatch) -> str:
    return hashlib.sha256(batch.ids.tobytes()).hexdigest()
