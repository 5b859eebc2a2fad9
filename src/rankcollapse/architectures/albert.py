"""ALBERT (Lan et al. 2020): BERT's blocks, their weights shared by groups of layers."""

from torch import Tensor, nn
from transformers.models.albert.modeling_albert import AlbertLayer, AlbertModel

from rankcollapse.architectures import Architecture
from rankcollapse.architectures.edits import Edits, identity


def _blocks(model: AlbertModel) -> list[nn.Module]:
    """Return the blocks in the order of application: a layer applies a whole group of them."""
    layers, groups = model.config.num_hidden_layers, model.config.num_hidden_groups
    encoder = model.encoder
    order = [encoder.albert_layer_groups[int(i / (layers / groups))] for i in range(layers)]
    return [block for group in order for block in group.albert_layers]


def _remove_attention_skip(block: AlbertLayer, edits: Edits) -> None:
    edits.feed_norm_from(block.attention.output_dropout, block.attention.LayerNorm)


def _zero(states: Tensor) -> Tensor:
    return states.new_zeros(()).expand_as(states)


def _remove_mlp(block: AlbertLayer, edits: Edits) -> None:
    # The block adds the attention's output to what ff_chunk gives: zero leaves it as it is.
    edits.replace(block, "ff_chunk", _zero)
    edits.replace(block.full_layer_layer_norm, "forward", identity)


def _remove_mlp_as_published(block: AlbertLayer, edits: Edits) -> None:
    """Leave LayerNorm(x + gelu(x)): only the two linear maps of the MLP go."""
    edits.replace(block.ffn, "forward", identity)
    edits.replace(block.ffn_output, "forward", identity)


def _remove_mlp_skip(block: AlbertLayer, edits: Edits) -> None:
    if block.chunk_size_feed_forward:
        raise ValueError("cannot remove ALBERT's MLP skip while chunk_size_feed_forward is not 0")
    edits.feed_norm_from(block.ffn_output, block.full_layer_layer_norm)


ARCHITECTURE = Architecture(
    blocks=_blocks,
    tokens_first=False,
    remove_attention_skip=_remove_attention_skip,
    remove_mlp=_remove_mlp,
    remove_mlp_as_published=_remove_mlp_as_published,
    remove_mlp_skip=_remove_mlp_skip,
)
