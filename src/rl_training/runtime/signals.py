"""Signals: the first one ends a run where it can be saved, the second one ends it at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_NUMBERS = (signal.SIGINT, signal.SIGTERM)


class Cut(KeyboardInterrupt):
    """A signal ended an evaluation, or other work that can be done again."""


class Signals:
    """Notes SIGINT and SIGTERM for a run. Between two steps it asks whether one was `received`."""

    def __init__(self) -> None:
        self.received = False

    def heed(self) -> None:
        """End long work between two safe points, if a signal was received."""
        if self.received:
            raise Cut

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Note the first signal instead of ending the process; a second one of either kind raises at once."""
        if threading.current_thread() is not threading.main_thread():  # only the main thread can have handlers
            yield
            return
        before = {number: signal.signal(number, self._note) for number in _NUMBERS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            self.received = False

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.received:
            raise KeyboardInterrupt
        self.received = True
