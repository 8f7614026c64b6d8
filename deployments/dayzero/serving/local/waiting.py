"""Waiting until a region is ready: the gateway's word counts, Serve's shows the way there.

- Ready is the gateway's `/readyz` and nothing else; replicas that still load when it is are waited for, but a region
  that serves is never called failed.
- A driver that failed, a head that ended or a deployment that Serve gave up on ends the wait at once.
"""

import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dayzero.serving.local.errors import StartError
from dayzero.serving.local.logs import tail
from dayzero.serving.local.probe import get
from dayzero.serving.local.serve_view import ServeView
from dayzero.serving.local.state import RunState

HEAD_LOG, DRIVER_LOG = "ray-head.log", "deploy.log"
_POLL_S = 0.5


def require_head(state: RunState, logs: Path) -> None:
    """Raises StartError when the region's Ray has ended."""
    if not state.alive:
        raise StartError("Ray ended while the region started.", log=tail(logs / HEAD_LOG))


def require_driver(driver: subprocess.Popen[bytes], logs: Path) -> None:
    """Raises StartError when the deploy step has failed."""
    code = driver.poll()
    if code not in (None, 0):
        raise StartError(f"The application could not be deployed (exit {code}).", log=tail(logs / DRIVER_LOG))


@dataclass(frozen=True, slots=True)
class Waiting:
    """Where to look, and for how long."""

    region: str
    base_url: str
    dashboard_url: str
    ray_token: str | None
    timeout_s: float
    logs: Path

    def until_ready(
        self,
        say: Callable[[str], None],
        *,
        check: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        """Returns when the gateway is ready. Raises StartError, and what `check` raises, which is asked at every look."""
        deadline_s = clock() + self.timeout_s
        reason, serves = "the gateway did not answer", False
        while clock() < deadline_s:
            check()
            ready = get(f"{self.base_url}/readyz")
            view = self.serve_view()
            serves = ready.ok
            if serves and view.status in {None, "RUNNING"}:
                say(view.summary())
                return
            if view.failed and not serves:
                raise StartError(
                    f"{self.region}: Ray Serve gave up on the application.", log=_last_lines(view.message)
                )
            if ready.status and not serves:
                reason = _reason(ready.json()) or f"the gateway answers {ready.status}"
            say(view.summary() or "the application is being deployed")
            wait(_POLL_S)
        if serves:
            return
        raise StartError(
            f"{self.region} was not ready within {self.timeout_s:.0f} s: {reason}.",
            log=tail(self.logs / DRIVER_LOG),
        )

    def serve_view(self) -> ServeView:
        return ServeView.parse(
            get(f"{self.dashboard_url}/api/serve/applications/", bearer=self.ray_token).json()
        )


def _reason(body: Any) -> str:
    return str(body.get("reason", "")) if isinstance(body, dict) else ""


def _last_lines(text: str, lines: int = 20) -> str:
    return "\n".join([line for line in text.splitlines() if line.strip()][-lines:])
