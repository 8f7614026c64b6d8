"""GET from this machine's own servers: the gateway and Ray's dashboard.

- The standard library only, so that `dayzero status` answers at once; never through a proxy.
- No answer is a value: what is asked may not be up yet.
"""

import http.client
import json
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any

_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
_MOST_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back; `status` 0: nothing did, and `text` says why."""

    status: int
    text: str

    @property
    def ok(self) -> bool:
        return self.status == 200

    def json(self) -> Any:
        """The body as JSON; None when it is not."""
        try:
            return json.loads(self.text)
        except ValueError:
            return None


def get(url: str, *, bearer: str | None = None, timeout_s: float = 3.0) -> Answer:
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {bearer}"} if bearer else {})  # noqa: S310 http, ours
    try:
        with _DIRECT.open(request, timeout=timeout_s) as response:
            return Answer(response.status, response.read(_MOST_BYTES).decode(errors="replace"))
    except urllib.error.HTTPError as error:
        with error:
            return Answer(error.code, error.read(_MOST_BYTES).decode(errors="replace"))
    except (OSError, http.client.HTTPException) as error:
        return Answer(0, str(getattr(error, "reason", error)))
