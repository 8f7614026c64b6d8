"""pip's settings, as uv needs them: whoever can `pip install` here can install dayzero.

- Reads what pip itself reports (`pip config list`): files, environment and sections are merged by pip.
- A UV_ variable that is already set wins over what pip is configured with.
- Values may hold credentials: they go into the environment of uv and are never printed.
"""

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

_LINE = re.compile(r"^(?P<section>[^.\s=][^.=]*)\.(?P<option>[\w-]+)=(?P<value>.*)$")
# pip's own precedence, weakest first: [global], the command's section, the environment.
_SECTIONS = ("global", "install", ":env:")


@dataclass(frozen=True, slots=True)
class PipSettings:
    """The options that decide where packages come from, by pip's long option name."""

    options: Mapping[str, str]

    @classmethod
    def parse(cls, listing: str) -> "PipSettings":
        """From the output of `pip config list`: lines of `section.option='value'`."""
        by_section: dict[str, dict[str, str]] = {section: {} for section in _SECTIONS}
        for line in listing.splitlines():
            match = _LINE.match(line)
            if match is None or match["section"] not in by_section:
                continue
            try:
                value = ast.literal_eval(match["value"])
            except (ValueError, SyntaxError):
                continue
            by_section[match["section"]][match["option"].lower().replace("_", "-")] = str(value)
        merged: dict[str, str] = {}
        for section in _SECTIONS:
            merged |= by_section[section]
        return cls(merged)

    def words(self, option: str) -> list[str]:
        return self.options.get(option, "").split()

    @property
    def find_links(self) -> list[str]:
        return self.words("find-links")

    def local_folders(self) -> list[Path]:
        """The wheel folders on this machine among `find-links`; pages and remote addresses are left to pip."""
        folders = []
        for place in self.find_links:
            parts = urlsplit(place)
            if parts.scheme in ("", "file"):
                path = Path(unquote(parts.path) if parts.scheme else place).expanduser()
                if path.is_dir():
                    folders.append(path)
        return folders

    def uv_environment(self, present: Mapping[str, str]) -> dict[str, str]:
        """The variables that make uv use what pip uses; those already in `present` are left alone."""
        wanted: dict[str, str] = {}
        if index := self.options.get("index-url"):
            wanted["UV_DEFAULT_INDEX"] = index
        if extra := self.words("extra-index-url"):
            # pip takes a version from any index that has it; the hashes in the locks make that safe.
            wanted["UV_INDEX"] = " ".join(extra)
            wanted["UV_INDEX_STRATEGY"] = "unsafe-best-match"
        if hosts := self.words("trusted-host"):
            wanted["UV_INSECURE_HOST"] = " ".join(hosts)
        if cert := self.options.get("cert"):
            wanted["SSL_CERT_FILE"] = cert
        if client_cert := self.options.get("client-cert"):
            wanted["SSL_CLIENT_CERT"] = client_cert
        if proxy := self.options.get("proxy"):
            wanted["ALL_PROXY"] = proxy
        if timeout := self.options.get("timeout", self.options.get("default-timeout")):
            wanted["UV_HTTP_TIMEOUT"] = str(max(1, round(float(timeout))))
        return {name: value for name, value in wanted.items() if name not in present}

    def uv_arguments(self) -> list[str]:
        """The options that uv takes on its command line: paths may hold blanks and commas there."""
        remote = [place for place in self.find_links if urlsplit(place).scheme not in ("", "file")]
        places = [
            *map(str, self.local_folders()),
            *remote,
        ]  # pip passes over a folder that is not there, uv fails
        arguments = [word for place in places for word in ("--find-links", place)]
        if self.options.get("no-index", "").lower() in {"1", "true", "yes", "on"}:
            arguments.append("--no-index")
        return arguments
