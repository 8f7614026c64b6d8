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

_POLL_S = 0.5


@dataclass(frozen=True, slots=True)
class Waiting:
    """Where to look, and for how long."""

    base_url: str
    dashboard_url: str
    ray_token: str | None
    timeout_s: float
    driver_log: Path
    head_log: Path

    def until_ready(
        self,
        say: Callable[[str], None],
        *,
        head_alive: Callable[[], bool],
        driver: subprocess.Popen[bytes] | None = None,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        """Returns when the gateway is ready. Raises StartError."""
        deadline_s = clock() + self.timeout_s
        reason, serves = "the gateway did not answer", False
        while clock() < deadline_s:
            if not head_alive():
                raise StartError("Ray ended while the region started.", log=tail(self.head_log))
            code = None if driver is None else driver.poll()
            if code not in (None, 0):
                raise StartError(
                    f"The application could not be deployed (exit {code}).", log=tail(self.driver_log)
                )
            ready = get(f"{self.base_url}/readyz")
            view = self.serve_view()
            serves = ready.ok
            if serves and view.status in {None, "RUNNING"}:
                say(view.summary())
                return
            if view.failed and not serves:
                raise StartError("Ray Serve gave up on the application.", log=_last_lines(view.message))
            if ready.status and not serves:
                reason = _reason(ready.json()) or f"the gateway answers {ready.status}"
            say(view.summary() or "the application is being deployed")
            wait(_POLL_S)
        if serves:
            return
        raise StartError(
            f"The region was not ready within {self.timeout_s:.0f} s: {reason}.", log=tail(self.driver_log)
        )

    def serve_view(self) -> ServeView:
        return ServeView.parse(
            get(f"{self.dashboard_url}/api/serve/applications/", bearer=self.ray_token).json()
        )


def _reason(body: Any) -> str:
    return str(body.get("reason", "")) if isinstance(body, dict) else ""


def _last_lines(text: str, lines: int = 20) -> str:
    return "\n".join([line for line in text.splitlines() if line.strip()][-lines:])
