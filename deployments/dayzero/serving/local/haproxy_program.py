"""What runs in HAProxy's place: it mends the configuration that Ray Serve wrote, then becomes HAProxy.

- A program of its own, run by its path: it imports nothing but the standard library.
- It becomes HAProxy by exec, and mends the file where it lies: Ray knows its HAProxy by its pid and by the path of that
  file in its command line, for reloads and for signals.
- A configuration that it does not know how to mend stops it: Ray then reports why, and nothing listens unguarded.
- To mend a mended file changes nothing.
"""

import json
import os
import re
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

LOOPBACK = "127.0.0.1"
HEADERS_TIMEOUT_S = 10
"""For a request's headers to arrive whole. A body's time is not in it."""
KEEP_ALIVE_S = 30
"""For a connection without a request, after its first."""

_MARK = "# Mended by dayzero."
_STARTING = (503, "service_starting", "The API is starting. Try again in a second.")
_ERRORS = (
    (400, "bad_request", "This is not a valid HTTP request."),
    (408, "request_timeout", "The request did not arrive in time."),
    (500, "proxy_error", "The proxy in front of the API failed."),
    (502, "bad_gateway", "The connection to the API broke before it answered. Try again."),
    (503, "service_unavailable", "The API cannot be reached now. Try again in a second."),
    (504, "gateway_timeout", "The API did not answer in time. Try again."),
)
"""What HAProxy says itself; Ray has it say 500 in plain text for the last three. To what cannot be parsed, and to headers
that come too slowly, it still says 400 and 408 in HTML: HAProxy 2.8 has those words built in."""

_LEFT_OUT = re.compile(r"\s*(errorfile|timeout http-request|timeout http-keep-alive|option splice-\w+)\b")
"""With splice(), HAProxy 2.8 does not see a client leave whose request came in two packets, headers and body, until it
next writes to it: the work behind an answer that is not streamed went on to its end."""
_EVERY_ADDRESS = re.compile(r"(\s*bind )(?:\*|0\.0\.0\.0|)(:\d+\s*)")
_NO_ROUTE = re.compile(r"\s*http-request return status 404 ")


class UnknownConfigurationError(Exception):
    """Ray's configuration is not as this program knows it."""


def mend(config: str, headers_timeout_s: float = HEADERS_TIMEOUT_S) -> str:
    """The configuration with bounded times, without splice(), inner listeners on loopback, errors in OpenAI's shape.

    Raises UnknownConfigurationError.
    """
    if config.startswith(_MARK):
        return config
    mended: set[str] = set()
    lines = [_MARK]
    section = ""
    for line in config.splitlines():
        if line and not line[0].isspace() and not line.startswith("#"):
            section = line.strip()
        instead = _instead_of(line, section, headers_timeout_s)
        if instead is not None:
            mended.add(section)
        lines.extend([line] if instead is None else instead)
    missing = {"defaults", "frontend prometheus", "listen stats", "backend default_backend"} - mended
    if missing:
        raise UnknownConfigurationError(
            f"Ray's HAProxy configuration is not as expected in: {', '.join(sorted(missing))}. "
            "haproxy_program.py has to be fitted to this version of Ray."
        )
    return "\n".join(lines) + "\n"


def _instead_of(line: str, section: str, headers_timeout_s: float) -> list[str] | None:
    """The lines to have in place of one of Ray's; None where it stays."""
    match section:
        case "defaults" if line == "defaults":
            return [line, *_defaults(headers_timeout_s)]
        case "defaults" if _LEFT_OUT.match(line):
            return []
        case "frontend prometheus" | "listen stats" if bind := _EVERY_ADDRESS.fullmatch(line):
            return [f"{bind[1]}{LOOPBACK}{bind[2]}"]
        case "backend default_backend" if _NO_ROUTE.match(line):
            # Our application takes every path, so requests come here only while it is not known.
            return [f"    http-request return {_answer(*_STARTING)}"]
    return None


def _defaults(headers_timeout_s: float) -> Iterator[str]:
    yield f"    timeout http-request {round(headers_timeout_s * 1000)}ms"
    yield f"    timeout http-keep-alive {KEEP_ALIVE_S}s"
    for error in _ERRORS:
        yield f"    http-error {_answer(*error)}"


def _answer(status: int, code: str, message: str) -> str:
    kind = "server_error" if status >= 500 else "invalid_request_error"
    body = json.dumps({"error": {"message": message, "type": kind, "param": None, "code": code}})
    again = " hdr Retry-After 1" if status > 500 else ""
    return f"status {status} content-type application/json string '{body}'{again}"


def main(binary: str, arguments: list[str]) -> None:
    for option, value in pairwise(arguments):
        if option == "-f":
            path = Path(value)
            new = path.with_name(path.name + ".new")
            new.write_text(mend(path.read_text()))
            new.replace(path)
    os.execv(binary, [binary, *arguments])  # noqa: S606 no shell is wanted


if __name__ == "__main__":
    try:
        main(sys.argv[1], sys.argv[2:])
    except (OSError, UnknownConfigurationError) as error:
        sys.exit(str(error))
