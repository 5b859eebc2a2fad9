"""BERT (Devlin et al. 2019): LayerNorm(x + attention(x)), then LayerNorm(y + MLP(y))."""

from torch import nn
from transformers.models.bert.modeling_bert import BertLayer, BertModel

from rankcollapse.architectures import Architecture
from rankcollapse.architectures.edits import Edits, identity


def _blocks(model: BertModel) -> list[nn.Module]:
    return list(model.encoder.layer)


def _remove_attention_skip(block: BertLayer, edits: Edits) -> None:
    edits.feed_norm_from(block.attention.output.dropout, block.attention.output.LayerNorm)


def _remove_mlp(block: BertLayer, edits: Edits) -> None:
    edits.replace(block, "feed_forward_chunk", identity)


def _remove_mlp_skip(block: BertLayer, edits: Edits) -> None:
    edits.feed_norm_from(block.output.dropout, block.output.LayerNorm)


ARCHITECTURE = Architecture(
    blocks=_blocks,
    tokens_first=False,
    remove_attention_skip=_remove_attention_skip,
    remove_mlp=_remove_mlp,
    remove_mlp_as_published=None,
    remove_mlp_skip=_remove_mlp_skip,
)
