"""What a start tells the person who waits for it. The CLI shows it; tests record it."""

from contextlib import AbstractContextManager
from typing import Protocol


class Step(Protocol):
    def say(self, text: str) -> None:
        """What is going on now, in a few words."""


class Progress(Protocol):
    def step(self, name: str) -> AbstractContextManager[Step]:
        """A step that takes time; its closing line holds its seconds."""

    def note(self, text: str) -> None:
        """A line that stays."""
