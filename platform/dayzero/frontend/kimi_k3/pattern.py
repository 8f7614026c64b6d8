r"""Kimi K3's pre-tokenizer: what BPE may never merge across (KIMI_K3 section 3).

- The alternatives in their order; letters, then `&&[^\p{Han}]`, leave Han to the first one.
- fastokens knows this pattern by its exact spelling and scans it by hand; any other goes through a backtracking
  engine that is slower and gives up on long runs. A test holds it to what the fast one can do.
"""

_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_BEFORE = r"[^\r\n\p{L}\p{N}]?"
_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"

PATTERN = "|".join(
    [
        r"[\p{Han}]+",
        f"{_BEFORE}{_UPPER}*{_LOWER}+{_CONTRACTION}",
        f"{_BEFORE}{_UPPER}+{_LOWER}*{_CONTRACTION}",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    ]
)
