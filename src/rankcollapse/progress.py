"""Progress on stderr: a bar on a terminal, plain lines in a log."""

import sys
from collections.abc import Iterator, Sequence


def steps(items: Sequence[tuple[str, ...]], label: str) -> Iterator[tuple[str, ...]]:
    """Yield the items, saying which one is under way.

    Args:
        items: what is worked through; the words of an item name it.
        label: what is done, as "evaluating bert-base-cased".
    """
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import track

        yield from track(items, description=label, console=Console(stderr=True), transient=True)
        return
    for number, item in enumerate(items, start=1):
        print(f"{label}: {number} of {len(items)}, {' '.join(item)}", file=sys.stderr, flush=True)
        yield item
