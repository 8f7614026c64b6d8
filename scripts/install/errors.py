"""InstallError, and what the output of a failed pip or uv means for the person who reads it."""


class InstallError(Exception):
    """An install cannot go on; the message says what to do about it."""


# What to look for in a tool's output (lower case) → what it means and what to do. The first match wins.
_MEANINGS: tuple[tuple[tuple[str, ...], str], ...] = (
    (
        ("no space left on device", "os error 28", "errno 28", "disk quota exceeded", "os error 122"),
        (
            "The disk filled up midway. Free some space (the sizes are in docs/install.md; `df -h .` shows what is left) "
            "and run the same command again: it starts over from uv's cache."
        ),
    ),
    (
        ("hash mismatch", "do not match the hashes"),
        (
            "The package registry served a file that is not the one the lock names. Nothing of it was installed. Try again; "
            "if it stays, the registry or a proxy before it alters files."
        ),
    ),
    (
        ("invalid peer certificate", "certificate verify failed", "unknownissuer", "self-signed certificate"),
        (
            "The registry's certificate is not trusted here. Behind a company proxy, name its certificate bundle: "
            "`pip config set global.cert FILE` or PIP_CERT=FILE; the installer passes it on to uv."
        ),
    ),
    (
        (
            "dns error",
            "name resolution",
            "failed to lookup address",
            "name or service not known",
            "error sending request",
            "failed to fetch",
            "connection refused",
            "connection reset",
            "connection error",
            "newconnectionerror",
            "network is unreachable",
            "timed out",
            "max retries exceeded",
            "(from versions: none)",  # pip with retries off says no more than this
        ),
        (
            "The package registry cannot be reached. Check the network, and that pip works here: `python3.11 -m pip config "
            "list` shows the index and proxy it uses, and the installer uses the same. Then run the same command again."
        ),
    ),
    (
        ("401 unauthorized", "403 forbidden", "407 proxy"),
        "The package registry refused access. Check the index address and credentials in pip's settings.",
    ),
    (
        (
            "no matching distribution",
            "no solution found",
            "was not found in the package registry",
            "no wheels with a matching",
        ),
        (
            "The registry that pip is configured with lacks a package the locks name, or has none for this platform "
            "(the engine needs Linux on x86-64, glibc 2.28 or newer). `make up ENGINE=sim` needs neither torch nor vllm."
        ),
    ),
    (
        ("permission denied", "read-only file system"),
        (
            "A file could not be written. The installer writes to .venv, .run and uv's cache (UV_CACHE_DIR); all three "
            "must be yours. An earlier run as root leaves files that are not: `sudo chown -R $USER .venv .run`."
        ),
    ),
)


def explain(output: str) -> str | None:
    """What a failed tool's output means, in a sentence that says what to do; None when nothing known is in it."""
    lowered = output.lower()
    for needles, meaning in _MEANINGS:
        if any(needle in lowered for needle in needles):
            return meaning
    return None
