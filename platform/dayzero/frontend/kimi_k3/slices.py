"""Where a text is cut before BPE, as the reference cuts it (KIMI_K3 section 3).

- Every 400,000 characters; then, within each of those, wherever a run of white space or of other characters passes
  25,000. Both cuts change ids, so exact means exact with them.
- White space is what `str.isspace` says. `str.rstrip` and `str.rsplit` go by the same table; a test looks at every
  code point.
- Linear for every text, and a few microseconds per 25,000 characters for an ordinary one: from the beginning of a
  run, only the run that holds the 25,001st character can be too long or must be looked at next.
"""

SLICE_CHARACTERS = 400_000
RUN_CHARACTERS = 25_000
_NEAR_CHARACTERS = 256


def slices(
    text: str, *, slice_characters: int = SLICE_CHARACTERS, run_characters: int = RUN_CHARACTERS
) -> list[str]:
    """The text in parts that BPE takes one by one; their concatenation is the text. None for an empty text."""
    if len(text) <= min(run_characters, slice_characters):
        return [text] if text else []
    parts: list[str] = []
    for start in range(0, len(text), slice_characters):
        _cut_runs(text[start : start + slice_characters], run_characters, parts)
    return parts


def _cut_runs(text: str, most: int, parts: list[str]) -> None:
    """Two steps pass at least `most` characters, and each looks at one more: hence linear."""
    done = run = 0
    while len(text) - run > most:
        window = text[run : run + most + 1]
        same = _last_run_characters(window)
        if same == len(window):
            run += most
            parts.append(text[done:run])
            done = run
        else:
            run += len(window) - same
    parts.append(text[done:])


def _last_run_characters(window: str) -> int:
    """How many characters at the end are of one kind."""
    if window[-1].isspace():
        return len(window) - len(window.rstrip())
    # Nearly always a word's beginning is near: splitting a window copies it.
    near = window[-_NEAR_CHARACTERS:]
    last = len(near.rsplit(None, 1)[-1])
    return last if last < len(near) else len(window.rsplit(None, 1)[-1])
