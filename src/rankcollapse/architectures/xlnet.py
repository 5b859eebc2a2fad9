"""XLNet (Yang et al. 2019): post-norm blocks with relative positions, states [T, B, D]."""

from functools import partial

from torch import nn
from transformers.models.xlnet.modeling_xlnet import XLNetLayer, XLNetModel

from rankcollapse.architectures import Architecture
from rankcollapse.architectures.edits import Edits, identity


def _blocks(model: XLNetModel) -> list[nn.Module]:
    return list(model.layer)


def _remove_attention_skip(block: XLNetLayer, edits: Edits) -> None:
    attention = block.rel_attn
    edits.replace(attention, "post_attention", partial(attention.post_attention, residual=False))


def _remove_mlp(block: XLNetLayer, edits: Edits) -> None:
    edits.replace(block, "ff_chunk", identity)


def _remove_mlp_skip(block: XLNetLayer, edits: Edits) -> None:
    # The MLP calls its one dropout twice; the last call ends the branch.
    edits.feed_norm_from(block.ff.dropout, block.ff.layer_norm)


ARCHITECTURE = Architecture(
    blocks=_blocks,
    tokens_first=True,
    remove_attention_skip=_remove_attention_skip,
    remove_mlp=_remove_mlp,
    remove_mlp_as_published=None,
    remove_mlp_skip=_remove_mlp_skip,
)
