"""ALBERT's block (Lan et al. 2020)."""

from transformers.models.albert.modeling_albert import AlbertLayer

from rankcollapse.architectures.parts import Anatomy, Map, Parts, watching


def _parts(block: AlbertLayer) -> Parts:
    attention = block.attention
    return Parts(
        heads=attention.num_attention_heads,
        query=Map.of(attention.query),
        key=Map.of(attention.key),
        value=Map.of(attention.value),
        output=Map.of(attention.dense),
        attention_norm=attention.LayerNorm,
        inner=block.ffn,
        outer=block.ffn_output,
        mlp_norm=block.full_layer_layer_norm,
        watch=watching(attention, lambda output: output[1]),
    )


ANATOMY = Anatomy(parts=_parts, activation=lambda config: config.hidden_act, needs_eager=True)
