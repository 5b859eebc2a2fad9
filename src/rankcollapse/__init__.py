"""Measure and explain rank collapse in transformers."""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rankcollapse.ablation import ablate
    from rankcollapse.decomposition import decompose
    from rankcollapse.measures import composite_norm, residual_ratio
    from rankcollapse.states import hidden_states

__all__ = ["ablate", "composite_norm", "decompose", "hidden_states", "residual_ratio"]

_HOMES = {
    "ablate": "ablation",
    "composite_norm": "measures",
    "decompose": "decomposition",
    "hidden_states": "states",
    "residual_ratio": "measures",
}


def __getattr__(name: str) -> object:
    """Import a public name when it is first asked for, so that `--help` need not wait for torch."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
