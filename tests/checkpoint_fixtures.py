"""Tiny models of the real classes, as `save_pretrained` leaves them."""

import json

import tokenizers
import torch
from transformers import (
    AlbertConfig,
    AlbertForMaskedLM,
    BertConfig,
    BertForMaskedLM,
    MPNetConfig,
    MPNetForMaskedLM,
    XLNetConfig,
    XLNetLMHeadModel,
)

WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "c", "cat", "##s", ".")
SIZE = {"vocab_size": 40, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
WIDE = {**SIZE, "intermediate_size": 48, "max_position_embeddings": 64}
XLNET = {"vocab_size": 40, "d_model": 32, "n_layer": 2, "n_head": 2, "d_inner": 48}
CONFIGS = {
    "bert": BertConfig(**WIDE),
    "albert": AlbertConfig(**WIDE, embedding_size=16),
    "mpnet": MPNetConfig(**WIDE, bos_token_id=0, eos_token_id=2),
    "xlnet": XLNetConfig(**XLNET),
}
WITH_HEADS = {
    "bert": BertForMaskedLM,
    "albert": AlbertForMaskedLM,
    "mpnet": MPNetForMaskedLM,
    "xlnet": XLNetLMHeadModel,
}


def save_config(folder, architecture):
    """Write the tiny config.json of an architecture and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    CONFIGS[architecture].save_pretrained(folder)
    return folder / "config.json"


def save_tokenizer(folder):
    """Write a WordPiece tokenizer that, as published ones do, cuts and pads."""
    model = tokenizers.models.WordPiece(
        {word: number for number, word in enumerate(WORDS)}, unk_token="[UNK]"
    )
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    tokenizer.enable_truncation(3)
    tokenizer.enable_padding(length=8)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "vocab.txt").write_text("\n".join(WORDS), encoding="utf-8")
    settings = {"do_lower_case": True, "cls_token": {"content": "[CLS]"}}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")


def save_model(folder, architecture="bert", seed=0, heads=True):
    """Save a tiny model, by default with its language-model head, and a tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = WITH_HEADS[architecture](CONFIGS[architecture])
    (model if heads else model.base_model).save_pretrained(folder)
    save_tokenizer(folder)
    return model


def names(folder):
    """Return the names of everything in a folder, hidden files too."""
    return sorted(path.name for path in folder.iterdir())
