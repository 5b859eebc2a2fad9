"""Checkpoints that a user has in a folder."""

import shutil
from pathlib import Path

from rankcollapse.checkpoints.manifest import (
    CONFIG,
    PICKLE,
    TOKENIZER_FILES,
    WEIGHTS,
    CheckpointError,
    LocalSource,
    Manifest,
    WeightsKind,
    checkpoint_folder,
    read_config,
    reason,
)


def copy_local(
    directory: Path, output: Path, *, name: str, weights: WeightsKind = "pretrained"
) -> Manifest:
    """Copy a model from a folder, as `save_pretrained` leaves it.

    A copy, not a link: a later change of the user's file in place must not change the checkpoint.

    Args:
        directory: has config.json, model.safetensors (or pytorch_model.bin), and a tokenizer.
        output: the checkpoint's folder.
        name: the checkpoint's name in tables.
        weights: whether these are trained weights.

    Raises:
        CheckpointError: a file is missing, the model cannot be loaded, or the disk is full.
    """
    read_config(directory / CONFIG)
    chosen = WEIGHTS if (directory / WEIGHTS).exists() else PICKLE
    if not (directory / chosen).exists():
        raise CheckpointError(f"{directory}: has no {WEIGHTS}; save the model as safetensors")
    with checkpoint_folder(output) as folder:
        for file in (CONFIG, chosen, *TOKENIZER_FILES):
            if (directory / file).exists():
                _copy(directory / file, folder / file)
        from rankcollapse.checkpoints.load import convert_pickle, seal

        if chosen == PICKLE:
            convert_pickle(folder / PICKLE)
        source = LocalSource(directory=directory.resolve().name)
        return seal(folder, name=name, weights=weights, source=source)


def _copy(source: Path, target: Path) -> None:
    try:
        stream = source.open("rb")
    except OSError as error:
        raise CheckpointError(f"{source}: cannot be read ({reason(error)})") from None
    with stream, target.open("wb") as copy:
        shutil.copyfileobj(stream, copy, 1 << 20)
