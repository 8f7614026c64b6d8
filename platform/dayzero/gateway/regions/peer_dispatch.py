"""One request sent to a peer region, and its deltas on the way back.

- The region must say that it took the request, then send a frame every second, a heartbeat if nothing else: one that
  does not is lost. Liveness is counted in whole frames, not in bytes.
- A region that lives and gives no token is left for another after `first_token_s`; after a token nothing is replayed.
- Closing the iterator closes the stream at once, and the other side aborts the work.
- The last delta is handed on after the stream was read to its end, so that the connection can serve again.
- An answer is complete with its finish. A stream that ends without one is lost, and so is one whose frames are not
  what they say; one that is broken off there, unasked and before a token, is a failure that another may mend.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, aclosing
from typing import TypeVar

import httpx

from dayzero.engine.errors import EngineProtocolError
from dayzero.engine.frames import decode, merge
from dayzero.engine.types import EngineRequest, Finish, TokenDelta
from dayzero.errors import DayzeroError
from dayzero.gateway.errors import RegionFullError, RegionLostError, RegionRefusedError
from dayzero.gateway.regions import packing
from dayzero.gateway.regions.answers import FAILED_CODE
from dayzero.gateway.regions.client import PeerClient
from dayzero.gateway.regions.policy import RegionsPolicy
from dayzero.gateway.regions.wire import Frame, Kind, Parser, replica_name
from dayzero.router.inflight import Reservation
from dayzero.telemetry import ForwardOutcome

_LAST_BYTES_S = 1.0


Result = TypeVar("Result")
Settled = Callable[[ForwardOutcome, DayzeroError | None], None]


class PeerDispatch:
    """One attempt at one region. `settled` is called once, with what became of it."""

    def __init__(
        self,
        client: PeerClient,
        model: str,
        request: EngineRequest,
        held: Reservation,
        *,
        policy: RegionsPolicy,
        predicted_s: float | None,
        round_trip_s: float | None = None,
        avoid: tuple[str, ...] = (),
        on_first_token: Callable[[], None] = lambda: None,
        on_frames: Callable[[], None] = lambda: None,
        settled: Settled = lambda _outcome, _error: None,
    ) -> None:
        self._client = client
        self._model = model
        self._request = request
        self._held = held
        self._policy = policy
        self._first_token_s = policy.first_token_within_s(predicted_s)
        self._round_trip_s = round_trip_s
        self._avoid = avoid
        self._on_first_token = on_first_token
        self._on_frames = on_frames
        self._settled = settled
        self._placed: str | None = None
        self._outcome = ForwardOutcome.UNREACHED
        self._tokens = False
        self._waiting: asyncio.Timeout | None = None
        self._down = False

    @property
    def replica(self) -> str | None:
        """`region/replica`; the region alone until a replica took it, and where the region itself failed."""
        whole = self._outcome in (ForwardOutcome.UNREACHED, ForwardOutcome.LOST, ForwardOutcome.NO_TOKEN)
        return (
            self._client.region if self._placed is None or whole else f"{self._client.region}/{self._placed}"
        )

    async def deltas(self) -> AsyncGenerator[TokenDelta, None]:
        """Raises the engine's errors; RegionLostError, RegionFullError or RegionRefusedError for the region's."""
        failure: DayzeroError | None = None
        ended = False
        try:
            with self._held:
                async with aclosing(self._stream()) as stream:
                    async for delta in stream:
                        if delta.token_ids and not self._tokens:
                            self._tokens = True
                            self._held.first_token()
                            self._on_first_token()
                        ended = ended or delta.finish is not None
                        yield delta
            ended = True
            self._outcome = ForwardOutcome.ANSWERED
        except EngineProtocolError as e:
            self._outcome = ForwardOutcome.LOST
            failure = RegionLostError(
                f"The region {self._client.region} sends what cannot be read: {e.message}."
            )
            raise failure from e
        except DayzeroError as e:
            failure = e
            self._outcome = _outcome(e, self._outcome)
            raise
        finally:
            if failure is None:
                self._outcome = ForwardOutcome.ANSWERED if ended else ForwardOutcome.GIVEN_UP
            self._settled(self._outcome, failure)

    def region_is_down(self) -> None:
        """Probes found it dead: without a token nobody waits for it any longer."""
        waiting = self._waiting
        if waiting is not None and not self._tokens and not waiting.expired():
            self._down = True
            waiting.reschedule(asyncio.get_running_loop().time())

    async def _stream(self) -> AsyncGenerator[TokenDelta, None]:
        body = await _encoded(self._request)
        encoding = packing.ENCODING if packing.worth_it(len(body), self._round_trip_s) else None
        if encoding is not None:
            body = await packing.pack(body)
        loop = asyncio.get_running_loop()
        first_token_at_s = loop.time() + self._first_token_s
        taken_s = self._policy.taken_within_s(len(body))
        opening = self._client.generate(
            self._model, self._request, body=body, encoding=encoding, avoid=self._avoid
        )
        async with AsyncExitStack() as stack:
            pieces = await self._within(
                min(loop.time() + taken_s, first_token_at_s),
                stack.enter_async_context(opening),
                f"took the connection and said nothing for {taken_s:.1f} s",
            )
            parser = Parser()
            self._outcome = ForwardOutcome.LOST  # what it is if nothing more comes
            while not parser.ended:
                deltas = [
                    decode(frame.payload) for frame in await self._next(pieces, parser, first_token_at_s)
                ]
                if not deltas:
                    continue
                if any(delta.finish is not None for delta in deltas[:-1]):
                    raise EngineProtocolError("a delta after the last one")
                merged = merge(deltas)
                if merged.finish is not None:
                    await self._rest(pieces, parser)
                    self._check_finish(merged)
                    yield merged
                    return
                yield merged
            raise EngineProtocolError("an end without a finish")

    def _check_finish(self, last: TokenDelta) -> None:
        """Raises RegionLostError where the work was broken off there, and nobody has seen a token of it."""
        if last.finish not in (Finish.ABORT, Finish.ERROR) or last.token_ids or self._tokens:
            return
        deadline_s = self._request.deadline_s
        if last.finish is Finish.ABORT and deadline_s is not None and time.time() >= deadline_s:
            return  # asked for: its time was over
        self._outcome = ForwardOutcome.FAILED
        raise RegionLostError(
            f"The region {self._client.region} ended the request before a token (finish {last.finish})."
        )

    async def _next(
        self, pieces: AsyncIterator[bytes], parser: Parser, first_token_at_s: float
    ) -> list[Frame]:
        """The delta frames that come next, none or more; at least one frame of any kind. Raises what a frame carries."""
        lost_at_s = asyncio.get_running_loop().time() + self._policy.lost_after_s
        if self._tokens or lost_at_s < first_token_at_s:
            why = f"went silent for {self._policy.lost_after_s:g} s"
            return await self._within(lost_at_s, self._frames(pieces, parser), why)
        why = f"took the request and gave no token in {self._first_token_s:.1f} s"
        return await self._within(
            first_token_at_s, self._frames(pieces, parser), why, ForwardOutcome.NO_TOKEN
        )

    async def _within(
        self, until_s: float, work: Awaitable[Result], why: str, outcome: ForwardOutcome | None = None
    ) -> Result:
        """Raises RegionLostError with the reason, and notes the outcome, once the event loop's time is past `until_s`."""
        try:
            async with asyncio.timeout_at(until_s) as self._waiting:
                return await work
        except TimeoutError:
            if self._down:
                why = "is down"
            elif outcome is not None:
                self._outcome = outcome
            raise RegionLostError(f"The region {self._client.region} {why}.") from None
        except httpx.HTTPError as e:
            raise RegionLostError(
                f"The region {self._client.region} cut the stream ({type(e).__name__})."
            ) from e
        finally:
            self._waiting = None

    async def _frames(self, pieces: AsyncIterator[bytes], parser: Parser) -> list[Frame]:
        while True:
            piece = await anext(pieces, None)
            if piece is None:
                parser.end()
            frames = list(parser.feed(piece or b""))
            for frame in frames:
                if frame.kind is Kind.PLACED:
                    self._placed = replica_name(frame.payload)
                elif frame.kind is Kind.ERROR:
                    self._outcome = ForwardOutcome.FAILED
                    decode(frame.payload)  # raises it
                    raise EngineProtocolError("an error frame that holds a delta")
            if frames:
                self._on_frames()
                return [frame for frame in frames if frame.kind is Kind.DELTA]

    async def _rest(self, pieces: AsyncIterator[bytes], parser: Parser) -> None:
        """To the end of the stream; the answer is complete, so nothing that goes wrong here matters to it."""
        try:
            async with asyncio.timeout(_LAST_BYTES_S):
                async for piece in pieces:
                    for _ in parser.feed(piece):
                        pass
        except (TimeoutError, httpx.HTTPError, EngineProtocolError):
            return


async def _encoded(request: EngineRequest) -> bytes:
    if len(request.prompt_ids) + sum(len(media.content) for media in request.media) < 1024 * 1024:
        return request.encode()
    return await asyncio.to_thread(request.encode)


def _outcome(error: DayzeroError, so_far: ForwardOutcome) -> ForwardOutcome:
    match error:
        case RegionFullError():
            return ForwardOutcome.FULL
        case RegionRefusedError():
            return ForwardOutcome.REFUSED
        case RegionLostError():
            return ForwardOutcome.LOST if error.code == FAILED_CODE else so_far
        case _:
            return ForwardOutcome.INVALID if error.status < 500 else ForwardOutcome.FAILED
