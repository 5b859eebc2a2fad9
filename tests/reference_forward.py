"""Hidden states of ablated models from the formulas, in float64, and the tiny models to compare.

Weights come from `model.state_dict()`; no module of a model is called.

Shapes: L blocks applied, B sequences, T tokens, D features, H heads, K = D / H features of a head.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import transformers
from torch import Tensor

VARIANTS = ("san", "san_mlp", "san_skip", "transformer")
READINGS = ("as-published", "as-described")
WIDTHS = {"hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 48}
SIZES = WIDTHS | {"vocab_size": 40, "num_hidden_layers": 3, "max_position_embeddings": 48}
NARROW = SIZES | {"embedding_size": 20}
GROUPS = NARROW | {"num_hidden_groups": 2, "inner_group_num": 2, "hidden_act": "gelu"}
XLNET_SIZES = {"d_model": 32, "n_head": 4, "d_inner": 48, "vocab_size": 40, "n_layer": 3}
CONFIGS = {
    "bert": ("Bert", SIZES),
    "albert": ("Albert", NARROW),
    "albert-groups": ("Albert", GROUPS),
    "xlnet": ("XLNet", XLNET_SIZES),
    "mpnet": ("MPNet", SIZES),
}
# MPNet and XLNet know one way to attend.
CASES = tuple(
    (name, attention)
    for name in CONFIGS
    for attention in (("eager",) if name in ("xlnet", "mpnet") else ("sdpa", "eager"))
)

Weights = dict[str, Tensor]


def tiny_model(name, *, attention="eager", dtype=torch.float64, seed=0):
    """Every parameter is drawn from N(0, 0.15^2), the gain of a LayerNorm around 1."""
    family, sizes = CONFIGS[name]
    config_class = getattr(transformers, f"{family}Config")
    config = config_class(**sizes, attn_implementation=attention)
    model = getattr(transformers, f"{family}Model")(config).double().eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            gain = key.lower().endswith(("layernorm.weight", "layer_norm.weight"))
            parameter.copy_(0.15 * noise + float(gain))
    return model.to(dtype)


def tiny_inputs(model, *, padded=False, tokens=7):
    """Two sequences; where padded, the second one is two tokens shorter."""
    generator = torch.Generator().manual_seed(tokens)
    ids = torch.randint(6, 40, (2, tokens), generator=generator)
    mask = torch.ones_like(ids)
    if padded:
        ids[1, -2:] = model.config.pad_token_id
        mask[1, -2:] = 0
    return {"input_ids": ids, "attention_mask": mask}


def reference_states(model, variant, reading, input_ids, attention_mask=None, token_type_ids=None):
    """Return the input of the first block and the output of each applied one, [L + 1, B, T, D]."""
    kind = model.config.model_type
    weights = {key: value.double() for key, value in model.state_dict().items()}
    keys_hidden = torch.zeros_like(input_ids) if attention_mask is None else 1 - attention_mask
    embed, make_blocks = ARCHITECTURES[kind]
    x = embed(weights, model.config, input_ids, token_type_ids)
    states = [x]
    for block in make_blocks(weights, model.config, keys_hidden.bool(), token_type_ids):
        x = apply_block(block, x, variant, reading)
        states.append(x)
    return torch.stack(states)


@dataclass(frozen=True)
class Block:
    """The parts of one block: attention with its output projection, MLP, and the LayerNorm of each.

    bare_activation: the MLP's activation, where as published it outlives the MLP's linear maps.
    """

    attention: Callable[[Tensor], Tensor]
    attention_norm: Callable[[Tensor], Tensor]
    mlp: Callable[[Tensor], Tensor]
    mlp_norm: Callable[[Tensor], Tensor]
    bare_activation: Callable[[Tensor], Tensor] | None = None


def apply_block(block: Block, x: Tensor, variant: str, reading: str) -> Tensor:
    attended = block.attention(x)
    if variant in ("san_skip", "transformer"):
        attended = attended + x
    y = block.attention_norm(attended)
    if variant == "transformer":
        return block.mlp_norm(block.mlp(y) + y)
    if variant == "san_mlp":
        return block.mlp_norm(block.mlp(y) + (y if reading == "as-published" else 0))
    if block.bare_activation and reading == "as-published":
        return block.mlp_norm(y + block.bare_activation(y))
    return y


def gelu(x: Tensor) -> Tensor:
    return x / 2 * (1 + torch.erf(x / math.sqrt(2)))


def gelu_tanh(x: Tensor) -> Tensor:
    return x / 2 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


ACTIVATIONS = {"gelu": gelu, "gelu_new": gelu_tanh}


def linear(weights: Weights, name: str) -> Callable[[Tensor], Tensor]:
    return lambda x: x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]


def layer_norm(weights: Weights, name: str, config) -> Callable[[Tensor], Tensor]:
    def normalise(x):
        centred = x - x.mean(-1, keepdim=True)
        scale = (centred.square().mean(-1, keepdim=True) + config.layer_norm_eps).sqrt()
        return centred / scale * weights[f"{name}.weight"] + weights[f"{name}.bias"]

    return normalise


def perceptron(weights: Weights, first: str, second: str, activation) -> Callable[[Tensor], Tensor]:
    inner, outer = linear(weights, first), linear(weights, second)
    return lambda x: outer(activation(inner(x)))


def mix(scores: Tensor, values: Tensor, hidden: Tensor) -> Tensor:
    """Weigh values [B, T, H, K] by the softmax of scores [B, H, T, T]; hidden [B, 1 or T, T]."""
    share = scores.masked_fill(hidden[:, None], -torch.inf).softmax(-1)
    return torch.einsum("bhij,bjhk->bihk", share, values).flatten(2)  # [B, T, D]


def dot_product_attention(weights, names, heads, hidden, bias=0.0) -> Callable[[Tensor], Tensor]:
    """Multi-head attention with scores q . k / sqrt(K) + bias; names: q, k, v, output."""
    *inputs, output = (linear(weights, name) for name in names)

    def attend(x):
        q, k, v = (project(x).unflatten(-1, (heads, -1)) for project in inputs)  # [B, T, H, K]
        scores = torch.einsum("bihk,bjhk->bhij", q, k) / math.sqrt(q.shape[-1]) + bias
        return output(mix(scores, v, hidden[:, None]))

    return attend


def bert_embedding(weights, config, ids, segments):
    table = "embeddings.{}_embeddings.weight"
    x = weights[table.format("word")][ids] + weights[table.format("position")][: ids.shape[1]]
    x = x + weights[table.format("token_type")][0 if segments is None else segments]
    return layer_norm(weights, "embeddings.LayerNorm", config)(x)


def bert_blocks(weights, config, hidden, _segments):
    for layer in range(config.num_hidden_layers):
        at = f"encoder.layer.{layer}"
        names = [f"{at}.attention.self.{part}" for part in ("query", "key", "value")]
        names.append(f"{at}.attention.output.dense")
        yield post_norm_block(
            weights,
            config,
            dot_product_attention(weights, names, config.num_attention_heads, hidden),
            at,
            f"{at}.attention.output.LayerNorm",
        )


def post_norm_block(weights, config, attention, at, attention_norm):
    """A block of BERT or MPNet: their second halves carry the same names."""
    activation = ACTIVATIONS[config.hidden_act]
    return Block(
        attention,
        layer_norm(weights, attention_norm, config),
        perceptron(weights, f"{at}.intermediate.dense", f"{at}.output.dense", activation),
        layer_norm(weights, f"{at}.output.LayerNorm", config),
    )


def albert_embedding(weights, config, ids, segments):
    x = bert_embedding(weights, config, ids, segments)
    return linear(weights, "encoder.embedding_hidden_mapping_in")(x)


def albert_blocks(weights, config, hidden, _segments):
    activation = ACTIVATIONS[config.hidden_act]
    for layer in range(config.num_hidden_layers):
        group = layer * config.num_hidden_groups // config.num_hidden_layers
        for inner in range(config.inner_group_num):
            at = f"encoder.albert_layer_groups.{group}.albert_layers.{inner}"
            names = [f"{at}.attention.{part}" for part in ("query", "key", "value", "dense")]
            yield Block(
                dot_product_attention(weights, names, config.num_attention_heads, hidden),
                layer_norm(weights, f"{at}.attention.LayerNorm", config),
                perceptron(weights, f"{at}.ffn", f"{at}.ffn_output", activation),
                layer_norm(weights, f"{at}.full_layer_layer_norm", config),
                activation,
            )


def mpnet_embedding(weights, config, ids, _segments):
    """Positions count the tokens that are not padding (id 1), from 2; padding has position 1."""
    real = (ids != 1).long()
    positions = 1 + real.cumsum(1) * real
    x = weights["embeddings.word_embeddings.weight"][ids]
    x = x + weights["embeddings.position_embeddings.weight"][positions]
    return layer_norm(weights, "embeddings.LayerNorm", config)(x)


def mpnet_bucket(offset: int) -> int:
    """Bucket of key minus query position: 16 a side; exact below 8, then 2 a doubling, up to 15."""
    distance = abs(offset)
    # 8 + floor(2 log2(distance / 8)), without rounding
    bucket = distance if distance < 8 else min(7 + (distance**2 // 64).bit_length(), 15)
    return bucket + (16 if offset > 0 else 0)


def mpnet_blocks(weights, config, hidden, _segments):
    tokens = hidden.shape[1]
    buckets = [[mpnet_bucket(j - i) for j in range(tokens)] for i in range(tokens)]
    bias = weights["encoder.relative_attention_bias.weight"][torch.tensor(buckets)]  # [T, T, H]
    bias = bias.permute(2, 0, 1)
    for layer in range(config.num_hidden_layers):
        at = f"encoder.layer.{layer}"
        names = [f"{at}.attention.attn.{part}" for part in "qkvo"]
        attention = dot_product_attention(weights, names, config.num_attention_heads, hidden, bias)
        yield post_norm_block(weights, config, attention, at, f"{at}.attention.LayerNorm")


def xlnet_embedding(weights, _config, ids, _segments):
    return weights["word_embedding.weight"][ids]


def xlnet_positions(features: int, tokens: int) -> Tensor:
    """Return sinusoids of each query minus key position, [T, T, D].

    In float32, as the model makes them whatever its own precision: they are part of its weights.
    """
    frequency = 1 / torch.pow(10000, torch.arange(0, features, 2).float() / features)
    position = torch.arange(tokens, -tokens, -1).float()
    angle = position[:, None] * frequency
    table = torch.cat([angle.sin(), angle.cos()], dim=-1).double()  # [2 T, D]
    query, key = torch.arange(tokens)[:, None], torch.arange(tokens)
    return table[tokens - (query - key)]


def xlnet_attention(weights, at, positions, hidden, segments) -> Callable[[Tensor], Tensor]:
    """Relative attention of Transformer-XL, with the segment term of XLNet."""
    w = {name: weights[f"{at}.{name}"] for name in ("q", "k", "v", "o", "r", "seg_embed")}
    bias = {name: weights[f"{at}.r_{name}_bias"] for name in "wrs"}  # content, position, segment
    k_position = torch.einsum("ijd,dhk->ijhk", positions, w["r"])

    def attend(x):
        q, k, v = (torch.einsum("bid,dhk->bihk", x, w[name]) for name in "qkv")
        scores = torch.einsum("bihk,bjhk->bhij", q + bias["w"], k)
        scores = scores + torch.einsum("bihk,ijhk->bhij", q + bias["r"], k_position)
        if segments is not None:
            differs = (segments[:, :, None] != segments[:, None]).long()  # [B, T, T]
            key = w["seg_embed"][differs]
            scores = scores + torch.einsum("bihk,bijhk->bhij", q + bias["s"], key)
        return mix(scores / math.sqrt(q.shape[-1]), v, hidden) @ w["o"].flatten(1).T

    return attend


def xlnet_blocks(weights, config, hidden, segments):
    tokens = hidden.shape[1]
    positions = xlnet_positions(config.d_model, tokens)
    # A token always sees itself, padding too.
    hidden = hidden[:, None] & ~torch.eye(tokens, dtype=torch.bool)
    activation = ACTIVATIONS[config.ff_activation]
    for layer in range(config.n_layer):
        at = f"layer.{layer}"
        yield Block(
            xlnet_attention(weights, f"{at}.rel_attn", positions, hidden, segments),
            layer_norm(weights, f"{at}.rel_attn.layer_norm", config),
            perceptron(weights, f"{at}.ff.layer_1", f"{at}.ff.layer_2", activation),
            layer_norm(weights, f"{at}.ff.layer_norm", config),
        )


ARCHITECTURES = {
    "albert": (albert_embedding, albert_blocks),
    "bert": (bert_embedding, bert_blocks),
    "mpnet": (mpnet_embedding, mpnet_blocks),
    "xlnet": (xlnet_embedding, xlnet_blocks),
}
