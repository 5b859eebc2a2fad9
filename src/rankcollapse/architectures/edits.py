"""Small changes of a model's modules, counted, and taken back exactly."""

from collections.abc import Callable
from contextlib import ExitStack
from functools import wraps
from typing import Any

from torch import Tensor, nn


class Edits:
    """Changes that last until `undo`, each with the number of times that it took effect."""

    def __init__(self) -> None:
        self.fired: list[int] = []
        self._undo = ExitStack()

    def replace(self, module: nn.Module, method: str, function: Callable[..., Any]) -> None:
        """Let `function` answer calls of this one module's `method`.

        Raises:
            ValueError: the module has no such method, or it is replaced already.
        """
        if not hasattr(type(module), method) or method in vars(module):
            raise ValueError(f"cannot replace {method} of {type(module).__name__}")
        count = self._counter()

        @wraps(function)  # transformers reads the signature of a block's methods
        def replacement(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 (any method)
            count()
            return function(*args, **kwargs)

        setattr(module, method, replacement)
        self._undo.callback(delattr, module, method)

    def feed_norm_from(self, branch: nn.Module, norm: nn.Module) -> None:
        """Give `norm` the last output of `branch` instead of its own input.

        This is how a skip is removed where the module adds it itself, norm(branch + skip): the
        sum is still formed but used by nothing. Subtracting the skip from the sum would leave
        round-off of the size of the residual that is to be measured.
        """
        count = self._counter()
        last: list[Tensor] = []

        def keep(_module: nn.Module, _args: Any, output: Tensor) -> None:  # noqa: ANN401
            last[:] = [output]

        def feed(_module: nn.Module, _args: Any) -> tuple[Tensor]:  # noqa: ANN401
            count()
            return (last.pop(),)

        self._undo.callback(branch.register_forward_hook(keep).remove)
        self._undo.callback(norm.register_forward_pre_hook(feed).remove)

    def count_calls(self, module: nn.Module) -> Callable[[], int]:
        """Return what tells how many forward passes of `module` have come to their end."""
        passes: list[None] = []
        hook = module.register_forward_hook(lambda *_: passes.append(None))
        self._undo.callback(hook.remove)
        return lambda: len(passes)

    def undo(self) -> None:
        """Take every change back."""
        self._undo.close()

    def _counter(self) -> Callable[[], None]:
        index = len(self.fired)
        self.fired.append(0)

        def count() -> None:
            self.fired[index] += 1

        return count


def identity(states: Tensor) -> Tensor:
    """Return the states as they are."""
    return states
