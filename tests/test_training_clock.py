import io
import sys
import time

import pytest

from rankcollapse.training_clock import shown


@pytest.fixture
def clock(monkeypatch):
    """Return a list whose only number is the time in seconds."""
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def test_a_log_gets_a_line_every_ten_seconds_with_the_time_left(clock, capsys):
    with shown("training x", 8, done=2) as tell:
        for epoch in range(3, 9):
            clock[0] += 6
            tell(epoch, 1 / epoch, 0.5)
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(",")[0] for line in lines] == [
        f"training x: epoch {epoch} of 8" for epoch in (4, 6, 8)
    ]
    assert lines[0].endswith("loss 0.2500, accuracy 0.500, 0.4 min left")
    assert lines[-1].endswith("0.0 min left")


def test_a_terminal_gets_a_bar(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    with shown("training x", 4, done=1) as tell:
        tell(2, 0.25, 0.75)
    assert "2/4" in stream.getvalue()
    assert "loss 0.2500, accuracy 0.750" in stream.getvalue()
