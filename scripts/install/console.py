"""What the installer prints: one line a step with its seconds and megabytes, and a sign of life while one runs."""

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TextIO


@dataclass(slots=True)
class Step:
    """A running step: `now` is what its tool last said, `note` and `megabytes` go into the closing line."""

    name: str
    now: str = ""
    note: str = ""
    megabytes: float | None = None
    started_s: float = field(default_factory=time.monotonic)

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self.started_s


class Console:
    """Lines for a person: rewritten in place on a terminal, appended elsewhere (every `beat_s`, or when news come)."""

    def __init__(self, out: TextIO | None = None, beat_s: float = 15.0) -> None:
        self._out = out if out is not None else sys.stdout
        self._live = self._out.isatty()
        self._beat_s = 1.0 if self._live else beat_s

    def line(self, text: str) -> None:
        self._out.write(text + "\n")
        self._out.flush()

    @contextmanager
    def step(self, name: str) -> Iterator[Step]:
        step = Step(name)
        done = threading.Event()
        beat = threading.Thread(target=self._show_life, args=(step, done), daemon=True)
        if self._live:
            self._rewrite(f"  {name} ...")
        beat.start()
        try:
            yield step
        except BaseException:
            done.set()
            beat.join()
            self._close(f"  {name:<46} failed after {step.elapsed_s:.1f} s")
            raise
        done.set()
        beat.join()
        size = "" if step.megabytes is None else f"{step.megabytes:8,.0f} MB"
        self._close(f"  {name:<46} {step.elapsed_s:7.1f} s {size}  {step.note}".rstrip())

    def _show_life(self, step: Step, done: threading.Event) -> None:
        while not done.wait(self._beat_s):
            text = f"  {step.name} ... {step.elapsed_s:.0f} s  {step.now}".rstrip()
            if self._live:
                self._rewrite(text)
            else:
                self.line(text)

    def _rewrite(self, text: str) -> None:
        self._out.write(f"\r\x1b[2K{text[:110]}")
        self._out.flush()

    def _close(self, text: str) -> None:
        if self._live:
            self._out.write("\r\x1b[2K")
        self.line(text)
