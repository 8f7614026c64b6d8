"""Keys: the names of everything that a region keeps in its store.

- Each carries the schema's version and the region: regions and versions that share a store share nothing in it.
- The region is in braces, so that a sharded store keeps what one pipeline touches together.
"""

from dataclasses import dataclass

SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Keys:
    region: str

    @property
    def feed(self) -> str:
        """A stream: every replica's messages."""
        return self._of("feed")

    @property
    def wanted(self) -> str:
        """A set: replicas whose snapshot a gateway waits for. Whoever finds itself there takes itself out."""
        return self._of("wanted")

    @property
    def roll_call(self) -> str:
        """A random word. Who sees another word than before says hello and puts a snapshot.

        A gateway asks all by writing a new one; a store that lost everything lost the word too.
        """
        return self._of("roll-call")

    def snapshot(self, replica: str) -> str:
        return self._of(f"snapshot:{replica}")

    def decision(self, request_id: str) -> str:
        return self._of(f"decision:{request_id}")

    def _of(self, what: str) -> str:
        return f"dayzero:{SCHEMA}:{{{self.region}}}:{what}"
