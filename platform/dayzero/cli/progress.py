"""Progress for a person: a spinner with seconds on a terminal, plain lines elsewhere."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from rich.console import Console

_PLAIN_BEAT_S = 10.0
_LIVE_BEAT_S = 0.5


class ShownStep:
    """The step that runs now."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.text = ""
        self.started_s = time.monotonic()

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self.started_s

    def say(self, text: str) -> None:
        self.text = text


class ConsoleProgress:
    """Implements `dayzero.serving.local.progress.Progress`."""

    def __init__(self, out: TextIO) -> None:
        self._console = Console(file=out, highlight=False, soft_wrap=True)
        self._live = self._console.is_terminal

    def note(self, text: str) -> None:
        self._console.print(f"  {text}", markup=False)

    @contextmanager
    def step(self, name: str) -> Iterator[ShownStep]:
        step = ShownStep(name)
        outcome = "failed after"
        try:
            with self._sign_of_life(step):
                yield step
            outcome = ""
        finally:
            self._console.print(
                f"  {name:<28} {outcome} {step.elapsed_s:6.1f} s  {step.text}".rstrip(), markup=False
            )

    @contextmanager
    def _sign_of_life(self, step: ShownStep) -> Iterator[None]:
        done = threading.Event()
        if self._live:
            with self._console.status(step.name) as spinner:

                def beat() -> None:
                    while not done.wait(_LIVE_BEAT_S):
                        spinner.update(f"{step.name}  {step.elapsed_s:.0f} s  [dim]{step.text[:90]}[/dim]")

                with _thread(beat, done):
                    yield
            return

        def line() -> None:
            while not done.wait(_PLAIN_BEAT_S):
                self._console.print(
                    f"  {step.name} ... {step.elapsed_s:.0f} s  {step.text}".rstrip(), markup=False
                )

        with _thread(line, done):
            yield


@contextmanager
def _thread(beat: Callable[[], None], done: threading.Event) -> Iterator[None]:
    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
