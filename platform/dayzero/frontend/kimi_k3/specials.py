"""The 256 special ids behind the ranks of a Kimi K3 vocabulary (KIMI_K3 section 3).

- A vocabulary of R ranks has ids 0 to R-1 for text and R to R+255 for specials; K3's own has R = 163,584.
- A special's name says its place, so a small vocabulary of the same form has the same specials at other ids.
"""

from dataclasses import dataclass

SPECIALS = 256

_PLACES = {
    "[BOS]": 0,
    "[EOS]": 1,
    "<|end_of_msg|>": 2,
    "<|open|>": 3,
    "<|close|>": 4,
    "<|sep|>": 5,
    "[start_header_id]": 6,
    "[end_header_id]": 7,
    "[EOT]": 9,
    "<|media_begin|>": 18,
    "<|media_content|>": 19,
    "<|media_end|>": 20,
    "<|media_pad|>": 21,
    "<osagent_mode>": 65,
    "[UNK]": 254,
    "[PAD]": 255,
}
_NAMES = {place: name for name, place in _PLACES.items()}


@dataclass(frozen=True, slots=True)
class Specials:
    """Special ids of a vocabulary with `ranks` text ids."""

    ranks: int

    @property
    def size(self) -> int:
        """Ids of the whole vocabulary."""
        return self.ranks + SPECIALS

    @property
    def end_of_msg(self) -> int:
        """The stop id."""
        return self.id_of("<|end_of_msg|>")

    @property
    def open(self) -> int:
        return self.id_of("<|open|>")

    @property
    def close(self) -> int:
        return self.id_of("<|close|>")

    @property
    def sep(self) -> int:
        return self.id_of("<|sep|>")

    @property
    def media_begin(self) -> int:
        return self.id_of("<|media_begin|>")

    @property
    def media_content(self) -> int:
        return self.id_of("<|media_content|>")

    @property
    def media_end(self) -> int:
        return self.id_of("<|media_end|>")

    @property
    def media_pad(self) -> int:
        return self.id_of("<|media_pad|>")

    def id_of(self, name: str) -> int:
        """Of a special that has a use of its own. Raises KeyError."""
        return self.ranks + _PLACES[name]

    def names(self) -> dict[int, str]:
        """Every special id and how it is spelled; those without a use of their own are `<|reserved_token_ID|>`."""
        return {
            self.ranks + place: _NAMES.get(place, f"<|reserved_token_{self.ranks + place}|>")
            for place in range(SPECIALS)
        }
