"""Where the regions that were started from one run folder reach one another: a small file, followed while gateways run.

- `up` writes it, whole or not at all, each time that it is called: a region that moved is found by those that run on.
- The fleet file's `internal_url` wins over it; a region that the file does not name is where the fleet file says.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from dayzero.config import Fleet


def write_addresses(path: Path, fleet: Fleet) -> None:
    """`fleet`: as it runs, its ports included."""
    urls = {region.name: region.http.url for region in fleet.infrastructure.regions}
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(json.dumps(urls, indent=1) + "\n")
    draft.replace(path)


def read_addresses(path: Path) -> dict[str, str]:
    """Empty where there is none, or none that can be read."""
    try:
        record = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    if not isinstance(record, dict):
        return {}
    return {name: url for name, url in record.items() if isinstance(url, str) and url.startswith("http")}


@dataclass(slots=True)
class PeerBook:
    """The addresses of a gateway's peers by region, as they are now. `path`: None: as the fleet file says, for good."""

    fleet: Fleet
    home: str
    path: Path | None
    _stamp: tuple[int, int] | None = field(default=None, init=False)
    _written: Mapping[str, str] = field(default_factory=dict, init=False)

    def urls(self) -> dict[str, str]:
        """Every region of the fleet but `home`; of an edge, which is no region: all."""
        written = self._read()
        return {
            region.name: region.http.internal_url or written.get(region.name) or region.http.url
            for region in self.fleet.infrastructure.regions
            if region.name != self.home
        }

    def _read(self) -> Mapping[str, str]:
        """Again only where the file is another one. One that is gone leaves what was known."""
        if self.path is None:
            return {}
        try:
            status = self.path.stat()
        except OSError:
            return self._written
        stamp = (status.st_mtime_ns, status.st_ino)
        if stamp != self._stamp:
            self._stamp, self._written = stamp, read_addresses(self.path)
        return self._written
