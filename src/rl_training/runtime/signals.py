"""Signals: the first one ends a run where it can be saved, the second one ends it at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_NUMBERS = (signal.SIGINT, signal.SIGTERM)


# In a process that another one leads, this is set when the other says that it is time to end.
_told: threading.Event | None = None


def be_led() -> threading.Event:
    """From now on the runs of this process have no signals of their own: they end when the returned event is set."""
    global _told
    _told = threading.Event()
    return _told


class Cut(KeyboardInterrupt):
    """A signal ended an evaluation, or other work that can be done again."""


class Signals:
    """Notes SIGINT and SIGTERM for a run. Between two steps it asks whether one was `received`."""

    def __init__(self) -> None:
        self._noted = False

    @property
    def received(self) -> bool:
        return self._noted or (_told is not None and _told.is_set())

    @received.setter
    def received(self, value: bool) -> None:
        self._noted = value

    def heed(self) -> None:
        """End long work between two safe points, if a signal was received."""
        if self.received:
            raise Cut

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Note the first signal instead of ending the process; a second one of either kind raises at once."""
        # Only the main thread can have handlers.
        if _told is not None or threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self._note) for number in _NUMBERS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            self._noted = False

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self._noted:
            raise KeyboardInterrupt
        self._noted = True
