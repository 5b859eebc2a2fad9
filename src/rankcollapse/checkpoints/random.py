"""Checkpoints at initialisation: an architecture and a seed, a few kilobytes."""

import shutil
from pathlib import Path

from rankcollapse.checkpoints.manifest import (
    CONFIG,
    Manifest,
    RandomSource,
    checkpoint_folder,
    read_config,
)

MOST_SEEDS = 2**63


def make_random(config_file: Path, seed: int, output: Path, *, name: str) -> Manifest:
    """Make the checkpoint of a model as it is before training.

    The folder holds config.json and the manifest. The weights are made when it is loaded, and
    must then have the hash that they have now.

    Args:
        config_file: an architecture, as the config.json of a model.
        seed: an int from 0.
        output: the checkpoint's folder.
        name: the checkpoint's name in tables.

    Raises:
        CheckpointError: the architecture is missing or unknown, or the disk is full.
        ValueError: the seed is not an int from 0.
    """
    if not 0 <= seed < MOST_SEEDS:
        raise ValueError(f"seed is {seed}, but seeds are whole numbers from 0 to 2**63 - 1")
    source = RandomSource(seed=seed)
    read_config(config_file)
    with checkpoint_folder(output) as folder:
        shutil.copyfile(config_file, folder / CONFIG)
        from rankcollapse.checkpoints.load import seal

        return seal(folder, name=name, weights="init", source=source)
