"""One chat request of a million tokens through a real gateway, and whether its event loop ever stood still.

    python benchmarks/long_request.py [--tokens N] [--vocabulary PATH] [--rounds N] [--kind document|talk]

Three processes beside this one: a gateway over HTTP (an edge: it reads, parses, renders, chains, places and sends on), a
region with a simulated Kimi K3, whose time runs 200 times faster than the hardware's, and a client that asks `/livez`
over and over. It prints the time of each stage for a cold request, the same again and the next turn; and how long the
gateway's event loop was held at the worst: how late a probe in it woke, less what its thread waited for a core while
other programs had them all. Beside it, what the other client saw. Everything that it starts is ended, by id.
"""

import argparse
import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

sys.path.insert(0, str(Path(__file__).parent))

from long_request.bodies import Chat, characters_per_token

from dayzero.tenancy import new_key

MAX_MODEL_TOKENS = 1_048_576
TIME_SCALE = 200.0
LIMIT_MS = 50.0
STAGES = ("read body", "parse", "render", "chain", "place", "encode for the region")
_START_S = 60.0


@dataclass(frozen=True, slots=True)
class Running:
    """The gateway's address and a client's key."""

    url: str
    key: str

    def measured(self) -> dict[str, Any]:
        return httpx.get(f"{self.url}/measured", timeout=10).json()  # type: ignore[no-any-return]


def main() -> None:
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("--tokens", type=int, default=1_000_000, help="about so many")
    arguments.add_argument("--vocabulary", default=os.environ.get("DAYZERO_K3_VOCABULARY", ""))
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--kind", choices=("document", "talk"), action="append")
    options = arguments.parse_args()
    options.vocabulary = options.vocabulary and str(Path(options.vocabulary).absolute())
    load = os.getloadavg()[0]
    worst_ms = 0.0
    characters = int(options.tokens * characters_per_token(options.vocabulary))
    with running(options.vocabulary) as gateway:
        print(
            f"{os.cpu_count()} cores, load average {load:.1f}; vocabulary {options.vocabulary or 'shipped'}"
        )
        idle(gateway)
        for kind in options.kind or ("document", "talk"):
            for number in range(options.rounds):
                worst_ms = max(worst_ms, talk(gateway, kind, characters, number))
    met = "met" if worst_ms < LIMIT_MS else "missed"
    print(f"\nGoal, the event loop never held for {LIMIT_MS:.0f} ms: at the worst {worst_ms:.1f} ms, {met}.")


def idle(gateway: Running) -> None:
    gateway.measured()
    with probing(gateway) as seen:
        time.sleep(2.0)
    told = gateway.measured()
    print(
        f"nothing runs, 2 s: loop held for {_held_ms(told):.1f} ms, /livez in {max(seen) * 1e3:.1f} ms at the worst"
    )


def talk(gateway: Running, kind: str, characters: int, number: int) -> float:
    """Three requests; the worst lateness of the loop, in ms."""
    chat = Chat(kind, characters, seed=time.time_ns() % 10**9 + number)
    worst_ms = 0.0
    print(f"\n{kind}, round {number + 1}")
    for turn in ("cold", "the same again", "the next turn"):
        body = chat.body()
        gateway.measured()
        with probing(gateway) as seen:
            answer = ask(gateway, body)
        told = gateway.measured()
        worst_ms = max(worst_ms, _held_ms(told))
        _print(turn, len(body), answer, told, seen)
        if turn != "cold":
            chat.answered(
                {"role": "assistant", "content": answer["content"], "reasoning_content": answer["reasoning"]}
            )
    return worst_ms


def ask(gateway: Running, body: bytes) -> dict[str, Any]:
    """One streamed request over a plain connection."""
    headers = {"authorization": f"Bearer {gateway.key}", "content-type": "application/json"}
    began_s = time.monotonic()
    first_s = None
    told: dict[str, Any] = {"content": "", "reasoning": "", "began_s": began_s}
    with (
        httpx.Client(timeout=300) as http,
        http.stream("POST", f"{gateway.url}/v1/chat/completions", headers=headers, content=body) as response,
    ):
        if response.status_code != 200:
            raise RuntimeError(f"answered {response.status_code}: {response.read()[:500]!r}")
        for line in response.iter_lines():
            if not line.startswith("data: {"):
                continue
            frame = json.loads(line[len("data: ") :])
            for choice in frame["choices"]:
                said = choice["delta"].get("content") or "", choice["delta"].get("reasoning_content") or ""
                if any(said) and first_s is None:
                    first_s = time.monotonic() - began_s
                told["content"] += said[0]
                told["reasoning"] += said[1]
            told["usage"] = frame.get("usage") or told.get("usage")
    return told | {"first_s": first_s, "total_s": time.monotonic() - began_s}


def _print(
    turn: str, body_bytes: int, answer: dict[str, Any], told: dict[str, Any], seen: list[float]
) -> None:
    usage = answer["usage"]
    parts = [
        f"{name} {(told['stages'][name][1] - told['stages'][name][0]) * 1e3:.1f}"
        for name in STAGES
        if name in told["stages"]
    ]
    print(
        f"  {turn}: {body_bytes / 1e6:.2f} MB, {usage['prompt_tokens']:,} tokens, {usage['cached_tokens']:,} cached"
    )
    print(
        f"    ms: {' · '.join(parts)} · first token {answer['first_s'] * 1e3:.0f} · total {answer['total_s'] * 1e3:.0f}"
    )
    held_s, late_s, at_s = told["late"][0]
    stage = next(
        (name for name, (begin, end) in told["stages"].items() if begin - 0.005 <= at_s <= end), "after"
    )
    print(
        f"    loop held for {held_s * 1e3:.1f} ms at the worst (in: {stage}; late by {late_s * 1e3:.1f} ms with what it waited "
        f"for a core); /livez in {max(seen) * 1e3:.1f} ms, of {len(seen)}"
    )


def _held_ms(told: dict[str, Any]) -> float:
    return float(told["late"][0][0] * 1e3)


@contextlib.contextmanager
def probing(gateway: Running) -> Iterator[list[float]]:
    """The seconds that `/livez` took, for a client of its own process, filled at the end."""
    seen: list[float] = []
    host, port = gateway.url.removeprefix("http://").split(":")
    with subprocess.Popen(
        [sys.executable, str(Path(__file__).parent / "long_request" / "prober.py"), host, port],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()  # it has begun
        try:
            yield seen
        finally:
            out, _ = process.communicate("\n")
            seen += json.loads(out)


@contextlib.contextmanager
def running(vocabulary: str) -> Iterator[Running]:
    key, peer_key, port, region_port = new_key(), new_key(), *_free_ports()
    common = {"vocabulary": vocabulary, "max_model_tokens": MAX_MODEL_TOKENS, "peer_key": peer_key}
    with contextlib.ExitStack() as stack:
        _start(stack, "region", {**common, "port": region_port, "time_scale": TIME_SCALE})
        url = f"http://127.0.0.1:{port}"
        _start(
            stack,
            "edge",
            {**common, "port": port, "key": key, "region_url": f"http://127.0.0.1:{region_port}"},
        )
        for ready in (f"http://127.0.0.1:{region_port}/livez", f"{url}/livez"):
            _wait(ready)
        time.sleep(1.5)  # the edge asks the region how it is
        yield Running(url, key)


def _start(stack: contextlib.ExitStack, module: str, settings: dict[str, Any]) -> None:
    paths = [str(Path(__file__).parent), *(path for path in sys.path if path)]
    process = subprocess.Popen(
        [sys.executable, "-m", f"long_request.{module}"],
        stdin=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
    )
    stack.callback(process.wait)
    stack.callback(process.terminate)
    assert process.stdin is not None
    process.stdin.write(json.dumps(settings) + "\n")
    process.stdin.flush()


def _wait(url: str) -> None:
    until_s = time.monotonic() + _START_S
    while time.monotonic() < until_s:
        with contextlib.suppress(httpx.HTTPError):
            if httpx.get(url, timeout=2).status_code == 200:
                return
        time.sleep(0.1)
    raise RuntimeError(f"nothing answers at {url}")


def _free_ports() -> tuple[int, int]:
    with socket.socket() as one, socket.socket() as two:
        one.bind(("127.0.0.1", 0))
        two.bind(("127.0.0.1", 0))
        return one.getsockname()[1], two.getsockname()[1]


if __name__ == "__main__":
    main()
