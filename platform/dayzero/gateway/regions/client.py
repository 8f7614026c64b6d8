"""HTTP to one peer region: its load, its digests, and work in tokens.

- HTTP/1.1 with connections kept open (HTTP/2's first window would hold a long prompt back for seconds), one pool for
  each peer, so that a peer that hangs holds up nobody else.
- httpx's transport without its client: cookies, redirects and merged addresses are a fifth of what an edge spends on a
  short request.
- Every wait has an end. Whatever goes wrong on the way is RegionLostError; no answer is trusted for its size.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import httpx
import msgspec

from dayzero.engine.types import UNREADABLE, EngineRequest
from dayzero.gateway.errors import RegionLostError
from dayzero.gateway.regions.answers import as_error
from dayzero.gateway.regions.info import VERSION, PeerInfo

MODEL_HEADER = "dayzero-model"
AVOID_HEADER = "dayzero-avoid"
STREAM_TYPE = "application/vnd.dayzero.frames"
REQUEST_TYPE = "application/msgpack"
IDLE_S = 4.0
"""Less than the 5 s after which uvicorn closes an idle connection: nobody sends into a closing one."""
MAX_INFO_BYTES = 1024 * 1024
MAX_DIGEST_BYTES = 32 * 1024 * 1024
MAX_ERROR_BYTES = 64 * 1024
_ERROR_S = 1.0
_read_info = msgspec.json.Decoder(PeerInfo).decode


class PeerClient:
    """`url`: the scheme, host and port of the peer's gateway. `key`: the peer key; it is in no message."""

    def __init__(self, region: str, url: str, key: str, *, connect_s: float) -> None:
        self.region = region
        self._key = {"authorization": f"Bearer {key}"}
        self._base = httpx.URL(url)
        self._generate = self._base.join("/internal/v1/generate")
        timeout = httpx.Timeout(None, connect=connect_s)  # the rest is timed by whoever waits
        self._timed = {"timeout": timeout.as_dict()}
        self._http = httpx.AsyncHTTPTransport(
            http2=False,
            trust_env=False,  # no proxy of the environment between our regions
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=256, keepalive_expiry=IDLE_S),
        )

    async def info(self) -> PeerInfo:
        """Raises RegionLostError or RegionRefusedError."""
        body = await self._get("/internal/v1/peer", {}, MAX_INFO_BYTES)
        try:
            told = _read_info(body)
        except UNREADABLE as e:
            raise RegionLostError(
                f"The region {self.region} tells its load in a way that cannot be read: {e}"
            ) from e
        if told.version != VERSION:
            raise RegionLostError(
                f"The region {self.region} speaks version {told.version}, this side {VERSION}."
            )
        if told.region != self.region:
            raise RegionLostError(f"At the address of {self.region} there is {told.region}.")
        return told

    async def digest(self, model: str) -> bytes:
        """Raises RegionLostError or RegionRefusedError."""
        return await self._get("/internal/v1/peer/digest", {"model": model}, MAX_DIGEST_BYTES)

    async def warm(self, connections: int) -> None:
        """Uses so many connections at once, opening what is missing; says nothing of the peer's health."""
        await asyncio.gather(*(self._touch() for _ in range(connections)), return_exceptions=True)

    @asynccontextmanager
    async def generate(
        self,
        model: str,
        request: EngineRequest,
        *,
        body: bytes,
        encoding: str | None = None,
        avoid: tuple[str, ...] = (),
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """The bytes of the stream that answers; leaving closes it. The caller times it.

        `body`: the request, in this content-encoding.

        Raises what `as_error` gives, or RegionLostError.
        """
        headers = {"content-type": REQUEST_TYPE, MODEL_HEADER: model, **_trace(request.trace)}
        if encoding is not None:
            headers["content-encoding"] = encoding
        if avoid:
            headers[AVOID_HEADER] = ",".join(avoid)
        response = await self._open("POST", self._generate, headers, body)
        try:
            if response.status_code != 200:
                raise await self._failure(response)
            yield response.aiter_raw()
        finally:
            await response.aclose()

    async def aclose(self) -> None:
        await self._http.aclose()

    async def _open(
        self, method: str, url: httpx.URL, headers: dict[str, str], body: bytes | None = None
    ) -> httpx.Response:
        request = httpx.Request(
            method, url, headers=self._key | headers, content=body, extensions=self._timed
        )
        try:
            return await self._http.handle_async_request(request)
        except httpx.HTTPError as e:
            raise RegionLostError(f"The region {self.region} cannot be reached ({type(e).__name__}).") from e

    async def _get(self, path: str, params: Mapping[str, str], limit_bytes: int) -> bytes:
        """The caller times it."""
        url = self._base.join(path)
        response = await self._open("GET", url.copy_merge_params(params) if params else url, {})
        try:
            if response.status_code != 200:
                raise await self._failure(response)
            return await self._bounded(response, limit_bytes)
        except httpx.HTTPError as e:
            raise RegionLostError(f"The region {self.region} cannot be reached ({type(e).__name__}).") from e
        finally:
            await response.aclose()

    async def _failure(self, response: httpx.Response) -> Exception:
        body = b""
        try:
            async with asyncio.timeout(_ERROR_S):
                body = await self._bounded(response, MAX_ERROR_BYTES)
        except (TimeoutError, httpx.HTTPError, RegionLostError):
            pass  # the status alone says enough
        return as_error(self.region, response.status_code, body, response.headers.get("retry-after"))

    async def _bounded(self, response: httpx.Response, limit_bytes: int) -> bytes:
        pieces = bytearray()
        async for piece in response.aiter_raw():
            pieces += piece
            if len(pieces) > limit_bytes:
                raise RegionLostError(f"The region {self.region} sent more than {limit_bytes} bytes.")
        return bytes(pieces)

    async def _touch(self) -> None:
        async with asyncio.timeout(IDLE_S):
            response = await self._open("GET", self._base.join("/livez"), {})
            try:
                await self._bounded(response, MAX_INFO_BYTES)
            finally:
                await response.aclose()


def _trace(carrier: Mapping[str, str]) -> dict[str, str]:
    return {name: carrier[name] for name in ("traceparent", "tracestate") if name in carrier}
