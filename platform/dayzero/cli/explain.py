"""`dayzero explain REQUEST_ID`: why a request went where it went, and whether what was predicted came true.

- Every region is asked: a request that was forwarded left a record where it came in and one where it was answered.
- A region that does not answer, or does not run, is named where it may be the one that knew.
"""

import json
import re
import time
from typing import Any
from urllib.parse import quote

from rich.console import Console
from rich.table import Table

from dayzero.cli.errors import UsageError
from dayzero.cli.layout import counted, say, table
from dayzero.serving.local import keys, runs
from dayzero.serving.local.folders import FleetFolder
from dayzero.serving.local.probe import get
from dayzero.serving.local.state import RunState

FOUND, NOT_FOUND, NOT_RUNNING = 0, 1, 3

_ID = re.compile(
    r"(req_|chatcmpl-)?[0-9a-f]{24}"
)  # as `gateway.middleware` makes them, and as clients see them

_PARTS = {
    "queue_s": "queue",
    "slot_s": "slot",
    "decode_s": "decode",
    "prefill_s": "prefill",
    "fixed_s": "fixed",
}
"""In the order of the columns; parts that are not here follow under their own names."""


def show(request_id: str, *, as_json: bool) -> int:
    """Raises UsageError for what is no id."""
    check(request_id)
    folder = FleetFolder.default()
    asked = regions(folder)
    running = {region for region, _ in asked}
    stopped = [region.name for region in folder.regions() if region.name not in running]
    if not asked:
        record = {"decisions": [], "running": False, "not_running": stopped}
        print(json.dumps(record, indent=2) if as_json else "Nothing runs, so nobody knows.")
        return NOT_RUNNING
    key = keys.operator_key(folder)
    found: list[dict[str, Any]] = []
    unanswered: list[dict[str, str]] = []
    for region, base_url in asked:
        answer = get(f"{base_url}/internal/v1/decisions/{quote(request_id, safe='')}", bearer=key)
        decision = answer.json()
        if answer.ok and isinstance(decision, dict):
            found.append(decision)
        elif answer.status != 404:
            why = answer.text if answer.status == 0 else f"it answers {answer.status}"
            unanswered.append({"region": region, "why": why})
    found.sort(key=lambda record: record.get("at_s", 0))
    if as_json:
        print(json.dumps({"decisions": found, "unanswered": unanswered, "not_running": stopped}, indent=2))
    else:
        _print(request_id, found, unanswered, stopped)
    return FOUND if found else NOT_FOUND


def check(request_id: str) -> None:
    if _ID.fullmatch(request_id):
        return
    head = f"'{_printable(request_id[:64])}' is no request id" if request_id else "explain needs a REQUEST_ID"
    raise UsageError(
        f"{head}. One is `req_` and 24 digits (0-9, a-f), from the answer's x-request-id header, or the same digits "
        "after `chatcmpl-`, from the answer's `id`."
    )


def _printable(word: str) -> str:
    """As it is, but for what is no text (bytes of the command line) or would move the terminal's cursor."""
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in word)


def regions(folder: FleetFolder) -> list[tuple[str, str]]:
    """(region, base URL) of each region that runs from this folder."""
    states = [RunState.read(region.state) for region in runs.present(folder)]
    return [(state.region, state.base_url) for state in states if state is not None and state.alive]


def _print(
    request_id: str,
    found: list[dict[str, Any]],
    unanswered: list[dict[str, str]],
    stopped: list[str],
) -> None:
    console = Console()
    for place, record in enumerate(found):
        if place:
            say(console, "")
        print_decision(console, record)
    for line in _legend(found):
        say(console, line)
    for one in unanswered:
        say(console, f"{one['region']}: no answer ({one['why']}); what it knows is missing here.")
    if not found:
        say(
            console,
            f"No region that answered keeps a decision of {request_id}. Decisions of requests that were placed are "
            "kept for an hour, while their region's store lives: a restart of the region empties it.",
        )
        for name in stopped:
            say(console, f"{name} does not run: what it decided is not here.")


def _legend(found: list[dict[str, Any]]) -> list[str]:
    """What the tables above do not say themselves."""
    attempts = [attempt for record in found for attempt in record["attempts"]]
    choices = [choice for attempt in attempts if (choice := attempt.get("choice"))]
    lines = []
    if any(attempt["candidates"] for attempt in attempts) or any(choice["scores"] for choice in choices):
        lines.append("seconds: predicted to the first token in all; the columns after it are its parts.")
    if any(attempt["candidates"] for attempt in attempts):
        lines.append("reusable tokens: of the prompt, cached there as far as the router knew.  *: took it.")
    if any(len(choice["scores"]) > 1 for choice in choices):
        lines.append("clearly: a peer must be faster than home by both margins of policy.regions.spill.")
    return ["", *lines] if lines else []


def print_decision(console: Console, record: dict[str, Any]) -> None:
    """One region's record, for people."""
    arrived = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record["at_s"]))
    whose = f"{record['model'] or 'no model'} for tenant {record['tenant'] or 'unknown'}"
    say(
        console,
        f"{record['request_id']} in {record['region']}, {arrived}: {whose}, {counted(record['prompt_tokens'], 'prompt token')}.",
    )
    for attempt in record["attempts"]:
        _print_attempt(console, attempt, record["prompt_tokens"])
    ended = [f"Ended: {record['outcome']} ({record['status']})"]
    if record["error"]:
        ended.append(record["error"])
    if record["finish"]:
        ended.append(f"finish {record['finish']}")
    ended += [counted(record["completion_tokens"], "token"), f"{record['total_s']:.3f} s in all"]
    if record["first_token_s"] is not None:
        ended.append(f"first token {record['first_token_s']:.3f} s after arrival")
    say(console, ", ".join(ended) + ".")
    if mended := record.get("degraded"):
        say(console, f"Mended in the answer: {', '.join(mended)} (docs/kimi-k3-output.md).")


def _print_attempt(console: Console, attempt: dict[str, Any], prompt_tokens: int) -> None:
    say(console, f"\nAttempt {attempt['number']}: {attempt['reason']}")
    if choice := attempt.get("choice"):
        say(console, f"region: {choice['target'] or 'none'} ({choice['why']}); {choice['reason']}")
        for rows in filter(None, (choice["scores"], choice["skipped"])):
            console.print(_regions(rows))
    if attempt["candidates"]:
        console.print(_candidates(attempt))
    hidden = attempt["candidates_total"] - len(attempt["candidates"])
    if hidden:
        say(console, f"not in the record: {counted(hidden, 'more candidate')}.")
    for skip in attempt["skipped"]:
        say(console, f"passed over {skip['replica']}: {skip['why']}")
    hidden = attempt["skipped_total"] - len(attempt["skipped"])
    if hidden:
        say(console, f"passed over, and not in the record: {hidden:,} more.")
    listed = any(row["replica"] == attempt.get("replica") for row in attempt["candidates"])
    say(console, f"taken by {attempt.get('replica') or 'nobody'}{' (*)' if listed else ''}")
    say(
        console,
        f"seconds to first token: predicted {_seconds(attempt.get('predicted_s'))}, real "
        f"{_seconds(attempt.get('first_token_s'))}",
    )
    say(
        console,
        f"cached tokens: predicted {_tokens(attempt.get('predicted_cached_tokens'))}, real "
        f"{_tokens(attempt.get('cached_tokens'))} of {prompt_tokens:,}",
    )
    if attempt.get("error"):
        then = "tried again" if attempt.get("retried") else "not tried again"
        why = f" ({attempt['retry_reason']})" if attempt.get("retry_reason") else ""
        say(console, f"failed with {attempt['error']}: {then}{why}")


def _candidates(attempt: dict[str, Any]) -> Table:
    """Best first; seconds, and the parts they are the sum of."""
    rows = attempt["candidates"]
    present = dict.fromkeys(part for row in rows for part in row["parts"])
    shown = [*(part for part in _PARTS if part in present), *(part for part in present if part not in _PARTS)]
    headings = [_PARTS.get(part, part.removesuffix("_s")) for part in shown]
    made = table("replica", "seconds", *headings, "reusable tokens", right=1)
    for row in rows:
        mark = " *" if row["replica"] == attempt.get("replica") else ""
        parts = (f"{row['parts'].get(part, 0):.3f}" for part in shown)
        made.add_row(row["replica"] + mark, f"{row['total_s']:.3f}", *parts, _tokens(row["reusable_tokens"]))
    return made


def _regions(rows: list[dict[str, Any]]) -> Table:
    """A column a field, the total before its parts; all rows have the same."""
    fields = sorted(rows[0], key=lambda name: (name != "region", name != "total_s"))
    figures = any(isinstance(value, float) for value in rows[0].values())
    headings = (
        "seconds" if name == "total_s" else name.removesuffix("_s").replace("_", " ") for name in fields
    )
    made = table(*headings, right=1 if figures else None)
    for row in rows:
        cells = (row[name] for name in fields)
        made.add_row(*(f"{cell:.3f}" if isinstance(cell, float) else str(cell) for cell in cells))
    return made


def _seconds(value: object) -> str:
    return f"{value:.3f}" if isinstance(value, int | float) else "unknown"


def _tokens(value: object) -> str:
    """Absent is not zero."""
    return f"{value:,}" if isinstance(value, int) else "unknown"
