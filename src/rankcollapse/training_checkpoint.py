"""Where a long training goes on from when it was killed: a folder, whole or not there."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from rankcollapse.errors import RankCollapseError
from rankcollapse.files import atomic_directory

DAMAGES = (ValueError, LookupError, TypeError)


class TrainingError(RankCollapseError):
    """A training diverged, or cannot go on from what is on the disk."""


@dataclass(frozen=True)
class Checkpoint:
    """Where a training leaves its state, and what that state depends on.

    Attributes:
        folder: the checkpoint's.
        settings: a checkpoint of others is refused.
    """

    folder: Path
    settings: dict[str, Any]

    def write(self, tensors: dict[str, Tensor], progress: dict[str, Any]) -> None:
        """Replace what is there.

        Args:
            tensors: parameters and state of the optimiser.
            progress: the rest of the state, for JSON.
        """
        text = json.dumps({"settings": self.settings, **progress})
        with atomic_directory(self.folder) as temporary:
            save_file(tensors, temporary / "state.safetensors")
            (temporary / "progress.json").write_text(text, encoding="utf-8")

    def read(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """Return what `write` was given, or None if nothing is there.

        Raises:
            TrainingError: it is damaged, or of other settings.
        """
        if not self.folder.exists():
            return None
        try:
            progress = json.loads((self.folder / "progress.json").read_text(encoding="utf-8"))
            tensors = load_file(self.folder / "state.safetensors")
            settings = dict(progress["settings"])
        except (*DAMAGES, OSError, SafetensorError) as error:
            raise self.damaged(error) from None
        self._require_same(settings)
        return tensors, progress

    def _require_same(self, settings: dict[str, Any]) -> None:
        wanted = json.loads(json.dumps(self.settings))
        keys = sorted(settings.keys() | wanted.keys())
        if other := [key for key in keys if settings.get(key) != wanted.get(key)]:
            shown = ", ".join(f"{key} {settings.get(key)}, now {wanted.get(key)}" for key in other)
            raise TrainingError(
                f"{self.folder}: is the checkpoint of a training with other settings ({shown}); "
                "delete it to start again"
            )

    def damaged(self, error: Exception) -> TrainingError:
        """Return the error of a checkpoint that is not what `write` left."""
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        return TrainingError(
            f"{self.folder}: no checkpoint to go on from ({reason}); delete it to start again"
        )
