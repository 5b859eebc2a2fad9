"""BERT's block (Devlin et al. 2019)."""

from transformers.models.bert.modeling_bert import BertLayer

from rankcollapse.architectures.parts import Anatomy, Map, Parts, watching


def _parts(block: BertLayer) -> Parts:
    attention = block.attention.self
    return Parts(
        heads=attention.num_attention_heads,
        query=Map.of(attention.query),
        key=Map.of(attention.key),
        value=Map.of(attention.value),
        output=Map.of(block.attention.output.dense),
        attention_norm=block.attention.output.LayerNorm,
        inner=block.intermediate.dense,
        outer=block.output.dense,
        mlp_norm=block.output.LayerNorm,
        watch=watching(attention, lambda output: output[1]),
    )


ANATOMY = Anatomy(parts=_parts, activation=lambda config: config.hidden_act, needs_eager=True)
