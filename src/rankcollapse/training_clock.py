"""How far a training is: a bar on a terminal, plain lines in a log."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

LINE_EVERY_S = 10.0


# Takes the number of epochs done, and the mean loss and accuracy of the last one.
Tell = Callable[[int, float, float], None]


@contextmanager
def shown(label: str, epochs: int, *, done: int) -> Iterator[Tell]:
    """Show a training on standard error.

    Args:
        label: what is trained.
        epochs: of the whole training.
        done: those done before, by a run that was killed.

    Yields:
        A function to call at the end of each epoch.
    """
    if not sys.stderr.isatty():
        yield _lines(label, epochs, done)
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("epochs, {task.fields[reached]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(label, total=epochs, completed=done, reached="starting")
        yield lambda epochs, loss, accuracy: bar.update(
            task, completed=epochs, reached=_reached(loss, accuracy)
        )


def _lines(label: str, epochs: int, done: int) -> Tell:
    start = told = time.monotonic()

    def tell(now_done: int, loss: float, accuracy: float) -> None:
        nonlocal told
        now = time.monotonic()
        if now - told < LINE_EVERY_S and now_done < epochs:
            return
        told = now
        left = (now - start) / (now_done - done) * (epochs - now_done)
        print(
            f"{label}: epoch {now_done} of {epochs}, {_reached(loss, accuracy)}, "
            f"{left / 60:.1f} min left",
            file=sys.stderr,
            flush=True,
        )

    return tell


def _reached(loss: float, accuracy: float) -> str:
    return f"loss {loss:.4f}, accuracy {accuracy:.3f}"
