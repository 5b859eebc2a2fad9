"""MPNet (Song et al. 2020): BERT's blocks with a relative position term in the scores."""

from torch import Tensor, nn
from transformers.models.mpnet.modeling_mpnet import MPNetLayer, MPNetModel

from rankcollapse.architectures import Architecture
from rankcollapse.architectures.edits import Edits, identity


def _blocks(model: MPNetModel) -> list[nn.Module]:
    return list(model.encoder.layer)


def _remove_attention_skip(block: MPNetLayer, edits: Edits) -> None:
    edits.feed_norm_from(block.attention.dropout, block.attention.LayerNorm)


def _skip_only(_branch: Tensor, skip: Tensor) -> Tensor:
    return skip


def _remove_mlp(block: MPNetLayer, edits: Edits) -> None:
    edits.replace(block.intermediate, "forward", identity)
    edits.replace(block.output, "forward", _skip_only)


def _remove_mlp_skip(block: MPNetLayer, edits: Edits) -> None:
    edits.feed_norm_from(block.output.dropout, block.output.LayerNorm)


ARCHITECTURE = Architecture(
    blocks=_blocks,
    tokens_first=False,
    remove_attention_skip=_remove_attention_skip,
    remove_mlp=_remove_mlp,
    remove_mlp_as_published=None,
    remove_mlp_skip=_remove_mlp_skip,
)
