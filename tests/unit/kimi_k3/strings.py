"""Strings that tokenizers get wrong: seeded random ones, and 24 that grow without bound."""

import random
from base64 import b64encode
from collections.abc import Iterator

FRAGMENTS = [
    *(" ", "  ", "\t", "\n", "\r\n", "\n\n ", " \n\t\n", "\v", "\f", "\x1c", "\x1f", "\x85", "\xa0", "\u2028", "\u3000"),
    *("'s", "'S", "'\u017f", "'t", "'RE", "'ve", "'m", "'Ll", "'d", "'", "\u2019s", " I'", " I'\u017f", "I'm", "can't"),
    *("a", "A", "aB", "Ab", "ABc", "the", " the", " The", "\u017f", "\u212a", "é", "e\u0301", "\u0301", "ǅ", "ʰ", "ª"),
    *("1", "12", "1234", "Ⅷ", "½", "٣", "1.5", "1,000", "中", "中文", "漢字かな", "カ", "ー", "々", "\u3007", "한국", "ไทย", "नी"),
    *(".", "...", " .", "!?", "/", "//", " /", ".\n", "/\n", "_", "a_b", "a.b", "$", "€", "→", "∑", " ∑'", "\u2212"),
    *("😀", "👩\u200d👩\u200d👧", "🏳\ufe0f\u200d🌈", "\u200b", "\ufeff", "\ufffd", "\x00", "\U0010ffff", "\ue000", "\U000e0041"),
    *("<|open|>", "<|sep|>", "[BOS]", "<|end_of_msg|>", "<|im_end|>", "&quot;", '="', "\\n", "{}", '{"a":1}'),
]  # fmt: skip


def adversarial(count: int, seed: int) -> list[str]:
    """Half of them of fragments, a quarter of any characters, a quarter of few characters often repeated."""
    return list(_adversarial(random.Random(seed), count))


def _adversarial(seeded: random.Random, count: int) -> Iterator[str]:
    for number in range(count):
        match number % 4:
            case 0 | 1:
                yield "".join(seeded.choices(FRAGMENTS, k=seeded.randrange(24)))
            case 2:
                planes = seeded.choices((0x80, 0x800, 0xD800, 0x110000), k=seeded.randrange(30))
                values = [seeded.randrange(plane) for plane in planes]
                yield "".join(chr(value) for value in values if not 0xD800 <= value < 0xE000)
            case _:
                yield "".join(
                    fragment * seeded.randrange(1, 20) for fragment in seeded.choices(FRAGMENTS, k=6)
                )


def pathological(characters: int) -> dict[str, str]:
    """24 texts of so many characters."""
    seeded = random.Random(24)

    def repeated(unit: str) -> str:
        return (unit * (characters // len(unit) + 1))[:characters]

    def drawn(alphabet: str) -> str:
        return "".join(seeded.choices(alphabet, k=characters))

    return {
        "one letter": repeated("a"),
        "one capital": repeated("A"),
        "spaces": repeated(" "),
        "newlines": repeated("\n"),
        "carriage returns and newlines": repeated("\r\n"),
        "tabs": repeated("\t"),
        "ideographic spaces": repeated("\u3000"),
        "no-break spaces": repeated("\xa0"),
        "separators that only Python takes for white space": repeated("\x1c\x1f"),
        "spaces before a newline, again and again": repeated(" " * 999 + "\n"),
        "long spaces between letters": repeated(" " * 24_999 + "x"),
        "digits": repeated("7"),
        "punctuation": repeated("!"),
        "brackets": drawn("()[]{}<>"),
        "apostrophes": repeated("'"),
        "contractions": repeated("I'll've's"),
        "one Han character": repeated("中"),
        "mixed scripts": drawn("aZé中かカ한яԱअไ1 .\n"),
        "combining marks": repeated("e" + "\u0301" * 300),
        "only combining marks": repeated("\u0301"),
        "emoji joined": repeated("👩\u200d👩\u200d👧\u200d👦"),
        "base64": b64encode(seeded.randbytes(characters)).decode()[:characters],
        "hexadecimal": seeded.randbytes(characters // 2 + 1).hex()[:characters],
        "letters in both cases": drawn("abcXYZ"),
    }
