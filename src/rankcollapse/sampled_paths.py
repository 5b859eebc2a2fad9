"""Single paths through a trained network, and sets of them.

A path takes one head in each block or passes the block by; its length is the number of blocks
that it does not pass by. Attention is computed anew from what the path itself carries.

Shapes: S seeds, N tokens of all examples, D features, A heads, d = D / A, L blocks.

Source: Dong et al. 2021, section 4 and figure 4.
"""

from collections.abc import Iterator, Sequence
from itertools import combinations, groupby, product
from math import comb, sqrt

import numpy as np
import torch
from torch import Tensor

from rankcollapse.block import Group, groups_of, join_heads, softmax, split_heads
from rankcollapse.products import linear
from rankcollapse.san import Network, Parameters, affine_norm, mlp, normalise

PASSED = -1  # a block that a path passes by

Path = tuple[int, ...]  # of each block the head, or PASSED


def count_paths(network: Network, length: int) -> int:
    """Return how many paths have a length: C(L, k) A^k."""
    count: int = comb(network.depth, length) * network.heads**length
    return count


def all_paths(network: Network, length: int) -> list[Path]:
    """Return every path of one length, in order."""
    _require_length(network, length)
    paths = []
    for taken in combinations(range(network.depth), length):
        for heads in product(range(network.heads), repeat=length):
            path = [PASSED] * network.depth
            for block, head in zip(taken, heads, strict=True):
                path[block] = head
            paths.append(tuple(path))
    return sorted(paths)


def draw_paths(
    network: Network, length: int, count: int, random: np.random.Generator
) -> list[Path]:
    """Draw paths of one length, with replacement: `length` blocks, and a head in each.

    Raises:
        ValueError: the length is negative or above the depth.
    """
    _require_length(network, length)
    paths = []
    for _ in range(count):
        path = random.integers(network.heads, size=network.depth)
        path[random.permutation(network.depth)[length:]] = PASSED
        paths.append(tuple(path.tolist()))
    return paths


def _require_length(network: Network, length: int) -> None:
    if not 0 <= length <= network.depth:
        raise ValueError(
            f"path length {length} is not there: the network has {network.depth} blocks, "
            f"so lengths are 0 to {network.depth}"
        )


def walk(
    network: Network,
    parameters: Parameters,
    embedded: Tensor,
    lengths: Sequence[int],
    paths: Sequence[Path],
    *,
    residual: bool,
) -> Iterator[tuple[Path, Tensor]]:
    """Yield each path once, with the state at its end; what paths share is computed once.

    Args:
        network: the shape.
        parameters: those of S seeds.
        embedded: what enters the first block, [S, N, D].
        lengths: tokens of each example.
        paths: in any order; duplicates are yielded once.
        residual: keep each taken block's skip and trained normalisation; otherwise both are cut,
            and the block ends with a normalisation without gain and bias, as published.

    Yields:
        A path, and its state [S, N, D].
    """
    groups = groups_of(lengths)

    def descend(block: int, x: Tensor, below: list[Path]) -> Iterator[tuple[Path, Tensor]]:
        if block == network.depth:
            yield below[0], x
            return
        for choice, some in groupby(below, key=lambda path: path[block]):
            if choice == PASSED:
                yield from descend(block + 1, x, list(some))
            else:
                y = step(network, parameters, block, choice, x, groups, residual=residual)
                yield from descend(block + 1, y, list(some))

    yield from descend(0, embedded, sorted(set(paths)))


def step(
    network: Network,
    parameters: Parameters,
    block: int,
    head: int,
    x: Tensor,
    groups: Sequence[Group],
    *,
    residual: bool,
) -> Tensor:
    """Return what one head of one block makes of x, [S, N, D]; the whole output bias is added."""
    name, d = f"layer{block}", network.head_width
    part = slice(head * d, (head + 1) * d)
    columns = [
        slice(network.width * i + part.start, network.width * i + part.stop) for i in (0, 1, 2)
    ]
    weight = torch.cat([parameters[f"{name}.qkv.weight"][..., c] for c in columns], dim=-1)
    bias = torch.cat([parameters[f"{name}.qkv.bias"][..., c] for c in columns], dim=-1)
    qkv = linear(x, weight, bias)
    context = torch.empty_like(qkv[..., :d])
    for group in groups:
        query, key, value = split_heads(qkv[:, group.part], group, 1, parts=3)
        weights = softmax(torch.bmm(query, key.mT).mul_(1 / sqrt(d)))
        context[:, group.part] = join_heads(torch.bmm(weights, value)[None], group, 1)
    out = parameters[f"{name}.out.weight"][:, part]
    y = linear(context, out, parameters[f"{name}.out.bias"])
    y = affine_norm(parameters, f"{name}.norm", y + x) if residual else normalise(y)
    return mlp(network, parameters, block, y)
