import numpy as np
import pytest
import torch

from rankcollapse import bench, reread
from rankcollapse.controls import lengths_used, scores, trivial
from rankcollapse.experiments import experiment, reading_examples, run, training_examples
from rankcollapse.measures import composite_ratio
from rankcollapse.paths import path_length_proportions
from rankcollapse.sampled_paths import all_paths, draw_paths, walk
from rankcollapse.san import classify, embed, forward, normalise
from rankcollapse.task_tables import LENGTH_COLUMNS, SCORE_COLUMNS
from rankcollapse.tasks import convex_hull, memorization, sorting

SEEDS = [4, 0]
SHAPE = {"depth": 2, "width": 8, "epochs": 2, "learning_rate": 1e-2, "batch": 10}
RANDOM = np.random.default_rng(0)
TEXTS = [RANDOM.integers(12, size=length).tolist() for length in (5, 7, 7, 9, 4, 6)]
WORDS = 12


@pytest.fixture(scope="module", autouse=True)
def few_examples():
    with pytest.MonkeyPatch.context() as patch:
        for task in (sorting, convex_hull):
            patch.setattr(task, "TRAIN", 60)
            patch.setattr(task, "HELD_OUT", 20)
        patch.setattr(reread, "EXAMPLES", 40)
        yield


class Judged:
    """Networks that were trained a little, and their scores."""

    def __init__(self, task, training="residual"):
        words = {"vocabulary": WORDS} if task == "memorization" else {}
        heads = {} if task == "memorization" else {"heads": 2}
        self.chosen = experiment(task, seeds=SEEDS, training=training, **SHAPE, **heads, **words)
        self.parameters, _ = run(self.chosen, TEXTS)
        self.examples = reading_examples(self.chosen, TEXTS)
        self.table = scores(self.chosen, self.parameters, TEXTS)

    def pick(self, control, paths=None, length=None):
        rows = self.table[self.table["control"] == control]
        rows = rows if paths is None else rows[rows["paths"] == paths]
        return rows if length is None else rows[rows["length"] == length]


@pytest.fixture(scope="module")
def judged(few_examples):
    return Judged("sorting")


@pytest.fixture(scope="module")
def texts(few_examples):
    return Judged("memorization")


def right(judged, state):
    """Return the accuracy of each seed."""
    predicted = classify(judged.parameters, state).argmax(-1)
    return (predicted == judged.examples.labels).double().mean(1).tolist()


def last(judged, **named):
    inputs, lengths = judged.examples.inputs, judged.examples.lengths
    return forward(judged.chosen.network, judged.parameters, inputs, lengths, **named)[-1]


def test_every_control_has_its_rows(judged):
    assert list(judged.table.columns) == SCORE_COLUMNS
    counts = judged.table.fillna({"length": -1}).groupby(["control", "paths"])["length"].agg(list)
    every = [0, 0, 1, 1, 2, 2]
    expected = {("entire", ""): [-1, -1], ("trivial", ""): [-1, -1], ("reread", "20"): every}
    for control in ("published", "residual_kept"):
        expected |= {(control, paths): every for paths in ("5", "20", "all")}
    expected |= {("frozen", "only"): every, ("frozen", "without"): every}
    expected |= {("frozen_cumulative", "up_to"): every}
    assert counts.to_dict() == expected
    assert (judged.table["seed"].values.reshape(-1, 2) == SEEDS).all()


def test_every_row_says_what_was_trained(judged):
    named = judged.table[["task", "reading", "epochs", "heads", "depth", "width", "training"]]
    assert named.drop_duplicates().values.tolist() == [
        ["sorting", "as-published", 2, 2, 2, 8, "residual"]
    ]


def test_every_number_is_there_where_it_has_a_meaning(judged):
    table = judged.table.set_index("control")
    assert table["accuracy"].between(0, 1).all()
    assert table["residual_ratio"].drop("trivial").between(0, 2).all()
    assert table["std_examples"].drop("trivial").between(0, 0.5).all()
    assert (
        table.loc["trivial", ["residual_ratio", "std_draws", "std_examples"]].isna().all(axis=None)
    )
    drawn = table["paths"].isin(["5", "20", "all"]) & ~table.index.isin(["reread"])
    assert table["std_draws"].notna().tolist() == drawn.tolist()


def test_there_is_one_path_of_length_nought(judged):
    for control in ("published", "residual_kept"):
        rows = judged.pick(control, length=0)
        assert (rows["std_draws"] == 0).all()
        assert rows.groupby("seed")["accuracy"].nunique().tolist() == [1, 1]
    inputs, lengths = judged.examples.inputs, judged.examples.lengths
    embedded = embed(judged.chosen.network, judged.parameters, inputs, lengths)
    expected = right(judged, normalise(embedded))
    assert judged.pick("published", "5", 0)["accuracy"].tolist() == pytest.approx(expected)


def test_the_entire_network_is_read_as_it_is(judged):
    state = last(judged)
    rows = judged.pick("entire")
    assert rows["accuracy"].tolist() == pytest.approx(right(judged, state))
    ratios = composite_ratio(state.view(2, 20, 8, 8)).mean(1)
    assert rows["residual_ratio"].tolist() == pytest.approx(ratios.tolist())
    shares = classify(judged.parameters, state).argmax(-1) == judged.examples.labels
    spread = shares.view(2, 20, 8).double().mean(-1).std(1, correction=0)
    assert rows["std_examples"].tolist() == pytest.approx(spread.tolist())


def test_all_frozen_terms_are_the_entire_network(judged, texts):
    for one in (judged, texts):
        depth = one.chosen.network.depth
        upto = one.pick("frozen_cumulative", "up_to", depth)
        entire = one.pick("entire")
        for column in ("accuracy", "residual_ratio", "std_examples"):
            assert upto[column].tolist() == pytest.approx(entire[column].tolist(), abs=1e-5)
        first = one.pick("frozen", "only", 0)["accuracy"].tolist()
        assert one.pick("frozen_cumulative", "up_to", 0)["accuracy"].tolist() == first
        # All but the longest are all up to the one before.
        without = one.pick("frozen", "without", depth)["accuracy"].tolist()
        before = one.pick("frozen_cumulative", "up_to", depth - 1)["accuracy"].tolist()
        assert without == pytest.approx(before)


@pytest.mark.parametrize(("control", "residual"), [("published", False), ("residual_kept", True)])
@pytest.mark.parametrize("length", [1, 2])
def test_all_single_paths_are_judged_one_by_one(judged, control, residual, length):
    inputs, lengths, network = (
        judged.examples.inputs,
        judged.examples.lengths,
        judged.chosen.network,
    )
    embedded = embed(network, judged.parameters, inputs, lengths)
    paths = all_paths(network, length)
    walked = walk(network, judged.parameters, embedded, lengths, paths, residual=residual)
    each = np.array([right(judged, normalise(state)) for _, state in walked])  # [path, S]
    assert len(each) == 4
    rows = judged.pick(control, "all", length)
    assert rows["accuracy"].tolist() == pytest.approx(each.mean(0).tolist())
    assert rows["std_draws"].tolist() == pytest.approx(each.std(0).tolist())


def test_a_set_of_paths_is_summed_with_its_duplicates_and_normalised(judged, monkeypatch):
    network, examples = judged.chosen.network, judged.examples
    sets = []

    def draw(network, length, count, random):
        paths = all_paths(network, length)
        some = [paths[i] for i in random.integers(min(2, len(paths)), size=count)]
        if (length, count) == (1, 5):
            sets.append(some)
        return some

    monkeypatch.setattr(bench, "draw_paths", draw)
    table = scores(judged.chosen, judged.parameters, None)
    rows = table.query("control == 'published' and paths == '5' and length == 1")
    embedded = embed(network, judged.parameters, examples.inputs, examples.lengths)
    paths = all_paths(network, 1)
    walked = dict(
        walk(network, judged.parameters, embedded, examples.lengths, paths, residual=False)
    )
    each = [right(judged, normalise(sum(walked[path] for path in one))) for one in sets[:5]]
    assert rows["accuracy"].tolist() == pytest.approx(np.mean(each, axis=0).tolist())
    assert rows["std_draws"].tolist() == pytest.approx(np.std(each, axis=0).tolist())


def test_every_set_has_its_size_and_there_are_five_of_each(judged, monkeypatch):
    asked = []

    def draw(network, length, count, random):
        asked.append((length, count))
        return draw_paths(network, length, count, random)

    monkeypatch.setattr(bench, "draw_paths", draw)
    scores(judged.chosen, judged.parameters, None)
    drawn = {one: asked.count(one) for one in asked}
    assert set(drawn) == {(length, size) for length in range(3) for size in (5, 20)}
    assert {count % 5 for count in drawn.values()} == {0}


def test_the_trivial_predictor_is_the_tasks(judged, texts):
    learned = training_examples(judged.chosen, None)
    expected = sorting.trivial(learned, judged.examples).tolist()
    assert judged.pick("trivial")["accuracy"].tolist() == expected
    expected = memorization.trivial(texts.examples, texts.examples).tolist()
    assert texts.pick("trivial")["accuracy"].tolist() == expected
    hull = experiment("convex_hull", seeds=SEEDS)
    test = reading_examples(hull, None)
    expected = convex_hull.trivial(training_examples(hull, None), test).tolist()
    assert trivial(hull, None, test).tolist() == expected


def test_scores_are_the_same_each_time(judged):
    again = scores(judged.chosen, judged.parameters, None)
    assert again.equals(judged.table)


def test_a_seed_is_judged_by_itself(judged):
    alone = experiment("sorting", seeds=[0], heads=2, **SHAPE)
    parameters = {name: value[1:] for name, value in judged.parameters.items()}
    table = scores(alone, parameters, None)
    among = judged.table[judged.table["seed"] == 0].reset_index(drop=True)
    for column in ("accuracy", "std_draws", "residual_ratio"):
        assert table[column].values == pytest.approx(among[column].values, abs=0.02, nan_ok=True)


def test_texts_of_several_lengths_are_judged_beside_shuffled_labels(texts):
    assert texts.pick("reread", "shuffled")["length"].tolist() == [
        k for k in range(3) for _ in "ab"
    ]
    assert texts.pick("entire")["accuracy"].tolist() == pytest.approx(right(texts, last(texts)))
    assert texts.table.set_index("control")["residual_ratio"].drop("trivial").between(0, 2).all()


@pytest.mark.parametrize("training", ["layer_drop", "pure"])
def test_networks_trained_otherwise_are_a_control_of_their_own(training):
    one = Judged("convex_hull", training)
    assert set(one.table["control"]) == set(one.table["training"]) == {training}
    assert set(one.table["paths"]) == {"", "5", "20", "all"}
    entire = one.table[one.table["paths"] == ""]
    state = last(one, residual=training != "pure")
    assert entire["accuracy"].tolist() == pytest.approx(right(one, state))
    assert entire["length"].isna().all()
    assert np.isfinite(one.table["residual_ratio"]).all()


def states(random, lost):
    """Return states and labels of 400 examples of 4 tokens: 5 classes, 16 features."""
    labels = torch.randint(5, (1, 1600), generator=random)
    if lost:
        state = (
            torch.randn(1, 400, 1, 16, generator=random).expand(-1, -1, 4, -1).reshape(1, 1600, 16)
        )
    else:
        shift = torch.randn(5, 16, generator=torch.Generator().manual_seed(9))
        noise = torch.randn(1, 1600, 16, generator=random)
        state = 100 + 3 * (shift[labels] + 0.1 * noise)
    return state, labels


def test_lost_rank_cannot_be_read_back_and_a_shifted_distribution_can():
    random = torch.Generator().manual_seed(0)
    accuracies = {}
    for lost in (True, False):
        fit, labels = states(random, lost)
        read, truth = states(random, lost)
        right = reread._right(fit, labels, read, truth)
        assert right.shape == (1, 1600)
        accuracies[lost] = float(right.double().mean())
    assert accuracies[True] == pytest.approx(0.2, abs=0.05)
    assert accuracies[False] > 0.99


def test_the_lengths_used_are_shares_of_the_terms(judged):
    table = lengths_used(judged.chosen, judged.parameters, None)
    assert list(table.columns) == LENGTH_COLUMNS
    assert table[["seed", "length"]].values.tolist() == [[s, k] for s in SEEDS for k in range(3)]
    shares = table.groupby("seed")[["share_used", "share_binomial"]].sum()
    assert shares.values == pytest.approx(np.ones((2, 2)))
    assert (table["share_used"] > 0).all()
    binomial = path_length_proportions(2, 2).tolist()
    assert table["share_binomial"].tolist() == pytest.approx(2 * binomial)
    accuracy = dict(zip(SEEDS, judged.pick("entire")["accuracy"], strict=True))
    assert table["accuracy"].tolist() == pytest.approx([accuracy[s] for s in table["seed"]])
    # 10 x 8 ids, 8 x 8 positions; linear map, norm; two blocks; classifier.
    block = 8 * 24 + 24 + 8 * 8 + 8 + 16
    assert set(table["parameters"]) == {80 + 64 + 72 + 16 + 2 * block + 90}


def test_without_attention_only_length_nought_is_used(judged):
    silent = {name: value.clone() for name, value in judged.parameters.items()}
    for layer in (0, 1):
        for name in ("weight", "bias"):
            silent[f"layer{layer}.out.{name}"].zero_()
    table = lengths_used(judged.chosen, silent, None)
    assert table["share_used"].tolist() == pytest.approx([1, 0, 0] * 2, abs=1e-6)


def test_progress_is_told(judged, capsys):
    scores(judged.chosen, judged.parameters, None)
    assert "sorting, published: path length 2 of 2\n" in capsys.readouterr().err
