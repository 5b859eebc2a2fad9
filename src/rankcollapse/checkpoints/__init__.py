"""Checkpoints: fetch, verify, load.

Names are imported when they are asked for: torch and transformers take seconds.
"""

from importlib import import_module
from typing import Any

_HOMES = {
    "CheckpointError": "manifest",
    "Manifest": "manifest",
    "read_manifest": "manifest",
    "verify": "manifest",
    "fetch_hub": "hub",
    "fetch_hub_files": "hub",
    "fetch_text": "text",
    "fetch_wheel": "wheel",
    "copy_local": "local",
    "make_random": "random",
    "load_model": "load",
    "load_tokenizer": "tokenizer",
}
__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:  # noqa: ANN401
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
