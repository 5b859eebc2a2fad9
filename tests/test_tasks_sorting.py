import re

import numpy as np
import pytest
import torch

from rankcollapse.tasks import Examples, TaskError, stream
from rankcollapse.tasks.sorting import CLASSES, LENGTH, TRAIN, examples, trivial


def packed(*sequences):
    labels = torch.tensor(sequences).reshape(1, -1)
    return Examples(labels, labels, (8,) * len(sequences))


def test_the_label_of_a_position_is_the_digit_of_that_rank():
    drawn = examples([5], 50, "train")
    for digits, labels in zip(
        drawn.inputs[0].split(LENGTH), drawn.labels[0].split(LENGTH), strict=True
    ):
        assert labels.tolist() == sorted(digits.tolist())
    assert drawn.lengths == (8,) * 50


def test_digits_are_uniform_and_repeat():
    digits = examples([0], TRAIN, "train").inputs
    counts = torch.bincount(digits.flatten(), minlength=CLASSES)
    assert len(counts) == CLASSES
    # 800 are expected of each, with a standard deviation of 27.
    assert (counts - 800).abs().max() < 4 * 27
    distinct = np.mean([len(set(row.tolist())) for row in digits.view(-1, LENGTH)])
    assert distinct == pytest.approx(10 * (1 - 0.9**8), abs=0.1)


def test_a_seed_has_the_same_data_whatever_seeds_are_beside_it():
    alone, among = examples([3], 20, "train"), examples([1, 3], 20, "train")
    assert torch.equal(alone.inputs[0], among.inputs[1])
    assert torch.equal(alone.labels[0], among.labels[1])
    assert not torch.equal(among.inputs[0], among.inputs[1])


def test_the_splits_share_no_sequence():
    rows = [
        {tuple(row.tolist()) for row in examples([0], 200, split).inputs.view(-1, LENGTH)}
        for split in ("train", "held-out")
    ]
    assert not rows[0] & rows[1]


def test_trivial_by_hand():
    # Most frequent by position: 0 0 0 0 1 1 1 9; the smaller of equals in the last.
    train = packed(
        [0, 0, 0, 0, 1, 1, 1, 9],
        [0, 0, 0, 0, 1, 1, 1, 9],
        [2, 3, 4, 5, 6, 7, 8, 9],
    )
    assert trivial(train, packed([0, 0, 1, 1, 1, 1, 2, 9])).tolist() == [5 / 8]
    tied = packed([5] * 8, [4] * 8)
    assert trivial(tied, packed([4, 4, 4, 4, 4, 4, 5, 5])).tolist() == [6 / 8]


def test_trivial_reads_each_seed_on_its_own():
    train, test = (examples([0, 1], 1000, split) for split in ("train", "held-out"))
    both = trivial(train, test)
    alone = trivial(examples([1], 1000, "train"), examples([1], 1000, "held-out"))
    assert both.dtype == torch.float64
    assert both[1] == alone[0]
    # Measured with the published code: 0.346.
    assert both.numpy() == pytest.approx(0.346, abs=0.02)


def test_an_unknown_split_lists_the_known():
    with pytest.raises(ValueError, match="'test': known are train, held-out"):
        examples([0], 5, "test")


def test_no_seeds_and_no_examples():
    with pytest.raises(TaskError, match="no training seeds; give at least one"):
        examples([], 5, "train")
    with pytest.raises(ValueError, match="at least one example"):
        examples([0], 0, "train")


def test_streams_are_told_apart_by_seed_and_name():
    names = [(0, "a"), (1, "a"), (0, "b"), (0, "a", "b"), (0,)]
    first = {stream(seed, *rest).random() for seed, *rest in names}
    assert len(first) == len(names)
    assert stream(0, "a").random() in first


@pytest.mark.parametrize(
    ("inputs", "labels", "lengths", "message"),
    [
        (torch.zeros(1, 3).long(), torch.zeros(1, 3).long(), (), "at least one example"),
        (torch.zeros(1, 3).long(), torch.zeros(1, 3).long(), (3, 0), "at least one token"),
        (torch.zeros(1, 3).long(), torch.zeros(1, 3).long(), (2, 2), "the lengths ask for"),
        (torch.zeros(0, 3).long(), torch.zeros(0, 3).long(), (3,), "the lengths ask for"),
        (torch.zeros(2, 3).long(), torch.zeros(1, 3).long(), (3,), r"inputs have shape (2, 3)"),
        (torch.zeros(1, 3, 3), torch.zeros(1, 3).long(), (3,), r"or (1, 3, 2) coordinates"),
        (torch.zeros(1, 3), torch.zeros(1, 3).long(), (3,), "inputs are torch.float32"),
        (torch.zeros(1, 3).long(), torch.zeros(1, 3), (3,), "labels torch.float32"),
        (torch.zeros(1, 3, 2).double(), torch.zeros(1, 3).long(), (3,), "torch.float64"),
    ],
)
def test_examples_that_do_not_fit_together(inputs, labels, lengths, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        Examples(inputs, labels, lengths)
