"""Terms by path length against the model's own states, and against every path by itself."""

import collections

import pytest
import torch
from reference_forward import CASES, CONFIGS, READINGS, VARIANTS, tiny_inputs, tiny_model
from transformers import GPT2Config, GPT2Model
from transformers.activations import ACT2FN

from rankcollapse import ablate, decompose, hidden_states
from rankcollapse.decomposition import BATCH
from rankcollapse.sweep import SOURCES
from rankcollapse.trace import GATES, trace

torch.set_num_threads(1)


def relative(difference, whole):
    return float(difference.norm() / whole.norm())


def states_of(model, inputs, variant="transformer", reading="as-published"):
    with torch.no_grad(), ablate(model, variant, reading=reading):
        return hidden_states(model, **inputs)


@pytest.mark.parametrize("mlp", ["gate", "source"])
@pytest.mark.parametrize("reading", READINGS)
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_the_terms_sum_to_the_models_own_states(case, variant, reading, mlp):
    model = tiny_model(case[0], attention=case[1])
    inputs = tiny_inputs(model, padded=True)
    terms = decompose(model, variant=variant, reading=reading, mlp=mlp, **inputs).terms()
    expected = states_of(model, inputs, variant, reading)
    assert terms.shape == (len(expected), *expected.shape)
    for layer, state in enumerate(expected):
        assert relative(terms[layer].sum(0) - state, state) < 1e-12
        assert not terms[layer, layer + 1 :].any()
    assert model.config._attn_implementation == case[1]


@pytest.mark.parametrize("variant", ["transformer", "san_skip"])
@pytest.mark.parametrize("name", CONFIGS)
def test_they_do_in_float32_too(name, variant):
    model = tiny_model(name, dtype=torch.float32)
    inputs = tiny_inputs(model)
    terms = decompose(model, variant=variant, **inputs).terms()
    state = states_of(model, inputs, variant)
    assert terms.dtype == torch.float32
    assert relative(terms.sum(1) - state, state) < 1e-5


class Dense:
    """The frozen network as matrices on flattened states: N = T D numbers of one sequence."""

    def __init__(self, model, inputs, variant):
        seen = trace(model, inputs, variant=variant)
        self.structure = seen.structure
        tokens, width = seen.states.shape[2:]
        self.start = seen.states[0, 0].flatten()
        eye = torch.eye(tokens, dtype=torch.float64)
        centre = torch.eye(width, dtype=torch.float64) - 1 / width
        self.blocks = []
        for part, frozen in zip(seen.parts, seen.frozen, strict=True):
            block = self._attention(part, frozen, width // part.heads) | {
                "norm": norm_matrix(frozen.scale, part.attention_norm, centre),
                "norm bias": part.attention_norm.bias.repeat(tokens),
            }
            if frozen.mlp is not None:
                block |= self._mlp(part, frozen.mlp, eye, centre)
            self.blocks.append(block)

    def _attention(self, part, frozen, d):
        tokens = frozen.attention.shape[-1]
        heads, biases = [], []
        for head in range(part.heads):
            rows = slice(head * d, (head + 1) * d)
            out, value = part.output.weight[:, rows], part.value.weight[rows]
            heads.append(torch.kron(frozen.attention[0, head], out @ value))
            if part.value.bias is not None:
                biases.append((out @ part.value.bias[rows]).repeat(tokens))
        whole = [] if part.output.bias is None else [part.output.bias.repeat(tokens)]
        return {"heads": heads, "head biases": biases, "output bias": whole}

    def _mlp(self, part, mlp, eye, centre):
        tokens, width = len(eye), len(centre)
        gate = torch.diag(mlp.gate[0].flatten())
        matrix, bias = gate, gate.new_zeros(tokens * width)
        if self.structure.maps:
            outer = torch.kron(eye, part.outer.weight)
            matrix = outer @ gate @ torch.kron(eye, part.inner.weight)
            bias = outer @ gate @ part.inner.bias.repeat(tokens) + part.outer.bias.repeat(tokens)
        return {
            "mlp": matrix + torch.eye(tokens * width),
            "mlp bias": bias,
            "mlp norm": norm_matrix(mlp.scale, part.mlp_norm, centre),
            "mlp norm bias": part.mlp_norm.bias.repeat(tokens),
        }

    def after_attention(self, index, x, place="attention"):
        """Go on behind the attention sub-layer's sum of a block, without any bias."""
        block = self.blocks[index]
        for name in ("norm", "mlp", "mlp norm"):
            order = {"attention": 0, "norm": 1, "mlp": 2, "mlp norm": 3}
            if name in block and order[name] > order[place]:
                x = block[name] @ x
        return x

    def starts(self, index):
        """Yield the head (-1: all) or None, and what starts there, carried to the block's end."""
        block = self.blocks[index]
        for head, bias in enumerate(block["head biases"]):
            yield head, self.after_attention(index, bias)
        for bias in block["output bias"]:
            yield -1, self.after_attention(index, bias)
        yield None, self.after_attention(index, block["norm bias"], "norm")
        if "mlp" in block:
            yield None, self.after_attention(index, block["mlp bias"], "mlp")
            yield None, block["mlp norm bias"]

    def every_path(self):
        """Yield whether it starts at a bias, its heads (-1: all) by block, and its end."""
        depth = len(self.blocks)
        begins = [(0, {}, self.start)]
        for index in range(depth):
            begins += [
                (index + 1, {} if head is None else {index + 1: head}, x)
                for head, x in self.starts(index)
            ]
        for number, (passed, taken, x) in enumerate(begins):
            for more, end in self._onwards(passed, x):
                yield number > 0, taken | more, end

    def _onwards(self, index, x):
        if index == len(self.blocks):
            yield {}, x
            return
        for head in (None, *range(len(self.blocks[index]["heads"]))):
            y = x if head is None else self.blocks[index]["heads"][head] @ x
            for taken, end in self._onwards(index + 1, self.after_attention(index, y)):
                yield (taken if head is None else {index + 1: head} | taken), end


def norm_matrix(scale, norm, centre):
    return torch.kron(torch.diag(scale[0, :, 0]), norm.weight[:, None] * centre)


@pytest.fixture(scope="module", params=[*CONFIGS])
def network(request):
    return tiny_model(request.param).requires_grad_(False)


@pytest.mark.parametrize("variant", ["transformer", "san_skip"])
def test_they_are_the_sums_over_every_single_path(network, variant):
    inputs = {"input_ids": tiny_inputs(network, tokens=3)["input_ids"][:1]}
    found = decompose(network, variant=variant, **inputs)
    dense = Dense(network, inputs, variant)
    depth = len(dense.blocks)
    sums, embedded, of_head = (
        torch.zeros(depth + 1, len(dense.start), dtype=torch.float64) for _ in range(3)
    )
    of_layers = collections.defaultdict(lambda: torch.zeros_like(dense.start))
    count = 0
    for late, taken, end in dense.every_path():
        count += not late
        sums[len(taken)] += end
        embedded[len(taken)] += 0 if late else end
        of_head[len(taken)] += end if taken.get(2) == 1 else 0
        of_layers[frozenset(taken)] += end
    assert count == 5**depth
    terms = found.terms()[-1, :, 0].flatten(1)
    assert relative(terms - sums, sums) < 1e-12
    own = found.terms(sources=["embedding"])[-1, :, 0].flatten(1)
    assert relative(own - embedded, embedded) < 1e-12
    head = found.through_heads({2: 1})[:, 0].flatten(1)
    assert relative(head - of_head, of_head) < 1e-12
    assert len(of_layers) == 2**depth
    for layers in [(), (1,), (1, 3), (2, 3), tuple(range(1, depth + 1))]:
        term = found.through_layers(layers)[0].flatten()
        expected = of_layers[frozenset(layers)]
        assert relative(term - expected, sums) < 1e-12
        assert expected.norm() > 1e-9


def test_a_pair_of_heads_carries_what_passes_both(network):
    inputs = {"input_ids": tiny_inputs(network, tokens=3)["input_ids"][:1]}
    dense = Dense(network, inputs, "transformer")
    expected = torch.zeros(len(dense.blocks) + 1, len(dense.start), dtype=torch.float64)
    for _, taken, end in dense.every_path():
        if (taken.get(1), taken.get(3)) == (2, 0):
            expected[len(taken)] += end
    found = decompose(network, **inputs).through_heads({1: 2, 3: 0})[:, 0].flatten(1)
    assert relative(found - expected, expected) < 1e-12


@pytest.mark.parametrize("name", CONFIGS)
def test_the_sources_sum_to_the_whole(name):
    model = tiny_model(name)
    found = decompose(model, **tiny_inputs(model, padded=True))
    whole = found.terms()
    each = {source: found.terms(sources=[source]) for source in SOURCES}
    assert relative(sum(each.values()) - whole, whole) < 1e-12
    assert not each["embedding"][0, 0].equal(torch.zeros_like(whole[0, 0]))
    for source, terms in each.items():
        assert terms.any() == (source != "attention" or model.config.model_type != "xlnet")


def test_one_length_is_a_term_of_the_last_state():
    model = tiny_model("albert-groups")
    found = decompose(model, **tiny_inputs(model))
    for length in range(7):
        assert torch.equal(found.of_length(length), found.terms()[-1, length])
    for length in (-1, 7):
        with pytest.raises(ValueError, match=f"no path has length {length}; they are 0 to 6"):
            found.of_length(length)


def test_terms_that_miss_the_models_own_state_are_refused():
    model = tiny_model("bert")
    hook = model.encoder.layer[1].output.register_forward_hook(lambda *call: call[2] * 1.001)
    with pytest.raises(ValueError, match=r"layer 2 miss the model's own state by 1\.0e-03"):
        decompose(model, **tiny_inputs(model)).terms()
    hook.remove()
    decompose(model, **tiny_inputs(model)).terms()


def test_with_mlps_as_sources_nothing_comes_through_them():
    model = tiny_model("bert")
    inputs = tiny_inputs(model)
    gate = decompose(model, **inputs).terms(sources=["embedding"])
    source = decompose(model, mlp="source", **inputs).terms(sources=["embedding"])
    assert relative(gate - source, gate) > 0.01
    with torch.no_grad():
        for layer in model.encoder.layer:
            layer.output.dense.weight.zero_()
    gate, source = (
        decompose(model, mlp=mlp, **inputs).terms(sources=["embedding"])
        for mlp in ("gate", "source")
    )
    assert torch.equal(gate, source)


@pytest.mark.parametrize("name", GATES)
def test_an_activation_is_its_input_times_its_gate(name):
    u = torch.arange(-500, 501, dtype=torch.float64) / 50
    assert u[500] == 0
    expected = ACT2FN[name](u)
    assert (u * GATES[name](u) - expected).abs().max() < 1e-14
    assert 0 <= GATES[name](torch.zeros(1)).item() <= 0.5


@pytest.mark.parametrize("name", CONFIGS)
def test_padding_changes_no_term(name):
    model = tiny_model(name)
    inputs = tiny_inputs(model, padded=True)
    padded = decompose(model, **inputs).terms()[:, :, 1, :-2]
    short = decompose(model, input_ids=inputs["input_ids"][1:, :-2]).terms()[:, :, 0]
    assert relative(padded - short, short) < 1e-10


def test_many_sequences_are_taken_a_few_at_a_time_and_by_themselves():
    model = tiny_model("mpnet")
    ids = torch.randint(6, 40, (BATCH + 2, 5), generator=torch.Generator().manual_seed(1))
    found = decompose(model, input_ids=ids)
    parts = list(found.parts())
    assert [(p.sequences.start, p.sequences.stop, p.layer) for p in parts] == [
        (*ends, layer) for ends in ((0, BATCH), (BATCH, BATCH + 2)) for layer in range(4)
    ]
    assert all(part.terms.shape[0] == part.layer + 1 for part in parts)
    alone = decompose(model, input_ids=ids[-1:]).terms()[:, :, 0]
    assert relative(found.terms()[:, :, -1] - alone, alone) < 1e-12
    last = found.through_layers([])
    assert last.shape == (BATCH + 2, 5, 32)


def test_inputs_may_be_embeddings_or_the_same_for_all_sequences():
    model = tiny_model("bert")
    ids = torch.randint(6, 40, (BATCH + 2, 5), generator=torch.Generator().manual_seed(1))
    expected = decompose(model, input_ids=ids).terms()
    positions = torch.arange(5).unsqueeze(0)
    shared = decompose(model, input_ids=ids, position_ids=positions).terms()
    assert torch.equal(shared, expected)
    with torch.no_grad():
        embedded = model.embeddings.word_embeddings(ids)
    found = decompose(model, input_ids=None, inputs_embeds=embedded).terms()
    assert relative(found - expected, expected) < 1e-12


def test_one_token_is_decomposed():
    model = tiny_model("bert")
    ids = torch.tensor([[7]])
    terms = decompose(model, input_ids=ids).terms()
    state = states_of(model, {"input_ids": ids})
    assert relative(terms.sum(1) - state, state) < 1e-12


def test_a_decomposition_leaves_the_model_and_autograd_alone():
    model = tiny_model("xlnet", attention="eager")
    inputs = tiny_inputs(model)
    before = [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()]
    for part in decompose(model, **inputs).parts():
        assert torch.is_grad_enabled()
        part.terms.mul_(2)
        break
    after = [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()]
    assert after == before


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"variant": "none"}, "unknown variant 'none'"),
        ({"reading": "none"}, "unknown reading 'none'"),
        ({"mlp": "none"}, "unknown mlp 'none'"),
        ({"input_ids": torch.zeros(1, 0, dtype=torch.long)}, "there are no tokens"),
        ({"input_ids": torch.zeros(0, 4, dtype=torch.long)}, "there are no tokens"),
        ({"input_ids": None}, "there are no tokens"),
        ({"input_ids": torch.tensor([7, 8])}, "there are no tokens"),
        ({"input_mask": torch.ones(2, 3)}, "input_mask is not known here"),
        ({"attention_mask": torch.ones(2, 1, 3, 3)}, r"shape \[2, 1, 3, 3\]; expected \[2, 3\]"),
        (
            {"attention_mask": torch.tensor([[1, 1, 1], [0, 0, 0]])},
            "sequence 1 is all padding",
        ),
    ],
)
def test_what_cannot_be_decomposed_is_named(words, message):
    model = tiny_model("bert")
    inputs = {"input_ids": torch.tensor([[7, 8, 9], [9, 8, 7]])} | words
    with pytest.raises(ValueError, match=message):
        decompose(model, **inputs)


def test_blocks_and_heads_that_are_not_there_are_named():
    found = decompose(tiny_model("bert"), input_ids=torch.tensor([[7, 8]]))
    for call, message in (
        (lambda: found.through_layers([4]), "no block 4; they are 1 to 3"),
        (lambda: found.through_heads({0: 1}), "no block 0; they are 1 to 3"),
        (lambda: found.through_heads({1: 4}), "no head 4; they are 0 to 3"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
    with pytest.raises(ValueError, match="unknown source 'x'"):
        next(found.parts(sources=["x"]))


def test_models_that_cannot_be_decomposed_are_named():
    ids = torch.tensor([[7, 8]])
    model = tiny_model("bert")
    model.config.hidden_act = "mish"
    with pytest.raises(ValueError, match=r"unknown activation 'mish'.*gelu"):
        decompose(model, input_ids=ids).terms()
    other = GPT2Model(GPT2Config(n_layer=1, n_embd=8, n_head=2, vocab_size=20)).eval()
    with pytest.raises(ValueError, match="model_type 'gpt2' is not known"):
        decompose(other, input_ids=ids).terms()
    with pytest.raises(ValueError, match=r"training mode.*eval"):
        decompose(tiny_model("bert").train(), input_ids=ids).terms()


def test_weights_that_are_not_finite_are_named():
    model = tiny_model("bert")
    with torch.no_grad():
        model.encoder.layer[1].output.dense.weight[0, 0] = float("nan")
    with pytest.raises(ValueError, match=r"state 2 .* not finite"):
        decompose(model, input_ids=torch.tensor([[7, 8]])).terms()


def test_terms_that_do_not_fit_say_how_much_they_need(monkeypatch):
    import psutil

    class Small:
        available = 1_000_000

    monkeypatch.setattr(psutil, "virtual_memory", Small)
    with pytest.raises(MemoryError, match=r"need 1\.05 GB, 0\.00 GB are free; .*parts\(\)"):
        # 4 x 4 terms of 32 features in float64, 4,096 bytes a token
        decompose(tiny_model("bert"), input_ids=torch.full((256_000 // 40, 40), 7)).terms()
