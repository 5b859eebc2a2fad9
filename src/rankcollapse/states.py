"""The states of a model: run it and keep one after every block; read stored ones.

Shapes: L applications of a block, B sequences, T tokens, D features.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from rankcollapse.architectures import architecture_of, model_type_of
from rankcollapse.errors import RankCollapseError

if TYPE_CHECKING:
    from transformers import PreTrainedModel


# What a table of measures needs of an index.
INDEX_KEYS = {
    "checkpoint",
    "weights",
    "seed",
    "text",
    "precision",
    "repeated_share",
    "states",
}


class StatesError(RankCollapseError):
    """Stored states are missing or damaged."""


def hidden_states(
    model: "PreTrainedModel",
    **inputs: Any,  # noqa: ANN401 (whatever the model takes)
) -> Float[Tensor, "state batch token feature"]:
    """Return what enters the first block and what leaves each block of one forward pass.

    The states are those that the blocks hand on, whether the model is ablated or not: state 0 is
    the embedding, state L the last block's output. ALBERT has one state for each application of
    its shared blocks.

    Args:
        model: a model of a known architecture, with or without a head.
        inputs: what the model takes, as `input_ids=` and `attention_mask=`.

    Returns:
        The states, [L + 1, B, T, D], in the model's dtype.

    Raises:
        ValueError: the architecture is not known, or the forward pass did not call the blocks
            one after the other, each as often as it should.
    """
    architecture = architecture_of(model_type_of(model))
    blocks = architecture.blocks(model.base_model)
    states: list[Tensor] = []
    called: list[nn.Module] = []
    handles = [block.register_forward_hook(_record(states, called)) for block in {*blocks}]
    try:
        model(**inputs)
    finally:
        for handle in handles:
            handle.remove()
    if called != blocks:
        raise ValueError(
            f"{type(model).__name__} called {len(called)} blocks where {len(blocks)} in order "
            "were expected: its hidden states cannot be told apart"
        )
    return torch.stack([architecture.batch_first(state) for state in states])  # [L + 1, B, T, D]


def _record(states: list[Tensor], called: list[nn.Module]) -> Callable[..., None]:
    def hook(block: nn.Module, args: tuple[Any, ...], output: Any) -> None:  # noqa: ANN401
        if not called:
            states.append(args[0])
        called.append(block)
        states.append(output[0] if isinstance(output, tuple) else output)

    return hook


def read_states(folder: Path) -> Iterator[tuple[dict[str, Any], Tensor]]:
    """Yield the description of each stored ablation, and its states [L + 1, B, T, D].

    Raises:
        StatesError: the folder is missing or damaged.
    """
    index = read_index(folder)
    for entry in index["states"]:
        path = folder / entry["file"]
        try:
            yield entry, load_file(path)["states"]
        except (OSError, SafetensorError, KeyError) as error:
            raise StatesError(f"{path}: cannot be read ({error}); evaluate again") from None


def read_index(folder: Path) -> dict[str, Any]:
    """Return the index of a folder that `evaluate` made.

    Raises:
        StatesError: the folder is missing or damaged.
    """
    try:
        index: dict[str, Any] = json.loads((folder / "index.json").read_text(encoding="utf-8"))
        missing = INDEX_KEYS - index.keys()
    except (OSError, ValueError, AttributeError) as error:
        raise StatesError(f"{folder}: no hidden states ({error}); evaluate first") from None
    if missing:
        raise StatesError(
            f"{folder}/index.json: has no {', '.join(sorted(missing))}; evaluate again"
        )
    return index
