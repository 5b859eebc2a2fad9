"""MPNet's block (Song et al. 2020)."""

from transformers.models.mpnet.modeling_mpnet import MPNetLayer

from rankcollapse.architectures.parts import Anatomy, Map, Parts, watching


def _parts(block: MPNetLayer) -> Parts:
    attention = block.attention.attn
    return Parts(
        heads=attention.num_attention_heads,
        query=Map.of(attention.q),
        key=Map.of(attention.k),
        value=Map.of(attention.v),
        output=Map.of(attention.o),
        attention_norm=block.attention.LayerNorm,
        inner=block.intermediate.dense,
        outer=block.output.dense,
        mlp_norm=block.output.LayerNorm,
        watch=watching(attention.dropout, lambda output: output),
    )


ANATOMY = Anatomy(parts=_parts, activation=lambda config: config.hidden_act, needs_eager=False)
