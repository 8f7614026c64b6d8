"""Token ids of one answer to events, for a model of which only its template is known.

- Everything is content, tool calls included: how a model writes a call is not in its template.
- With a reasoning format, `<think>` and `</think>` are markers and what lies between is reasoning. Where the
  vocabulary has them as tokens, only the ids count, anywhere in the answer; else their text counts, the opener
  only at the beginning of the answer, the closer only within reasoning.
- A marker ends what came before it: an incomplete code point becomes U+FFFD, a held stop prefix is shown.
- Stop strings apply to content only.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from dayzero.frontend.detokenizer import Detokenizer, TokenTable
from dayzero.frontend.events import Content, Event, Finished, FinishReason, Reasoning
from dayzero.frontend.protocol import Channel, TokenCounts
from dayzero.frontend.stop_strings import StopMatcher, StopStrings

_REPEATED = {channel: f"{channel.value}_marker_repeated" for channel in Channel}
ODDITIES = tuple(_REPEATED.values())
"""Every name that `Finished.degraded` may hold here."""


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """How a model writes its reasoning. The ids are None where the marker is no token of its own."""

    opener: str
    closer: str
    opener_id: int | None = None
    closer_id: int | None = None


class TextDecoder:
    """Implements `dayzero.frontend.protocol.OutputDecoder`. `hidden_ids`: the ids that end the turn."""

    def __init__(
        self,
        table: TokenTable,
        *,
        start: Channel = Channel.RESPONSE,
        stop: Sequence[str] = (),
        hidden_ids: frozenset[int] = frozenset(),
        reasoning: ReasoningFormat | None = None,
    ) -> None:
        self._text = Detokenizer(table)
        self._stop = StopMatcher(StopStrings(stop))
        self._hidden = frozenset(i for i in hidden_ids if table.bytes_of([i]))
        self._channel = start if reasoning is not None else Channel.RESPONSE
        self._marker_ids: dict[int, Channel] = {}
        self._closer: StopMatcher | None = None
        self._opener: _Opener | None = None
        self._format = reasoning
        self._degraded: dict[str, None] = {}
        self._reasoning_ids = self._content_ids = self._control_ids = self._dropped_ids = 0
        if reasoning is None:
            return
        if reasoning.opener_id is not None and reasoning.closer_id is not None:
            self._marker_ids = {reasoning.opener_id: Channel.THINK, reasoning.closer_id: Channel.RESPONSE}
        elif start is Channel.THINK:
            self._closer = StopMatcher(StopStrings([reasoning.closer]))
        else:
            self._opener = _Opener(reasoning.opener)

    @property
    def stopped(self) -> bool:
        return self._stop.matched is not None

    @property
    def tokens(self) -> TokenCounts:
        """A marker that is text is counted with the channel that it ends."""
        return TokenCounts(
            reasoning=self._reasoning_ids,
            content=self._content_ids,
            control=self._control_ids,
            dropped=self._dropped_ids,
        )

    def push(self, ids: Sequence[int]) -> list[Event]:
        if self._stop.matched is not None:
            self._dropped_ids += len(ids)
            return []
        if self._hidden and not self._hidden.isdisjoint(ids):
            shown = [i for i in ids if i not in self._hidden]
            self._control_ids += len(ids) - len(shown)
            ids = shown
        events: list[Event] = []
        if self._marker_ids and not self._marker_ids.keys().isdisjoint(ids):
            ids = self._switch_at_markers(ids, events)
        self._count(len(ids))
        text = self._text.push(ids)
        if text:
            self._show(text, events)
        return events

    def finish(self, reason: FinishReason) -> list[Event]:
        events: list[Event] = []
        if not self.stopped:
            self._end_channel(events)
        if self.stopped:
            reason = FinishReason.STOP
        events.append(Finished(reason, stop=self._stop.matched, degraded=tuple(self._degraded)))
        return events

    def _switch_at_markers(self, ids: Sequence[int], events: list[Event]) -> Sequence[int]:
        """Events up to the last marker; returns the ids after it."""
        done = 0
        for at, token_id in enumerate(ids):
            channel = self._marker_ids.get(token_id)
            if channel is None:
                continue
            self._count(at - done)
            self._control_ids += 1
            self._show(self._text.push(ids[done:at]), events)
            self._end_channel(events)
            if self.stopped:
                self._dropped_ids += len(ids) - at - 1
                return ()
            if channel is self._channel:
                self._degraded[_REPEATED[channel]] = None
            self._channel = channel
            done = at + 1
        return ids[done:]

    def _count(self, ids: int) -> None:
        if self._channel is Channel.THINK:
            self._reasoning_ids += ids
        else:
            self._content_ids += ids

    def _end_channel(self, events: list[Event]) -> None:
        self._show(self._text.finish(), events)
        if self._opener is not None:
            self._emit(self._opener.flush(), events)
            self._opener = None
        if self._closer is not None:
            self._emit(self._closer.flush(), events)
        if self._channel is Channel.RESPONSE:
            _append(events, Content, self._stop.flush())

    def _show(self, text: str, events: list[Event]) -> None:
        """Text of the current channel, which markers in the text itself may end."""
        if not text:
            return
        if self._opener is not None:
            text = self._after_opener(text, self._opener)
        if self._closer is not None:
            closer = self._closer
            before = closer.push(text)
            self._emit(before, events)
            if closer.matched is None:
                return
            self._closer = None
            self._channel = Channel.RESPONSE
            text = closer.rest
        self._emit(text, events)

    def _after_opener(self, text: str, opener: "_Opener") -> str:
        decided = opener.push(text)
        if decided is None:
            return ""
        self._opener = None
        if opener.matched and self._format is not None:
            self._channel = Channel.THINK
            self._closer = StopMatcher(StopStrings([self._format.closer]))
        return decided

    def _emit(self, text: str, events: list[Event]) -> None:
        if self._channel is Channel.THINK:
            _append(events, Reasoning, text)
        else:
            _append(events, Content, self._stop.push(text))


class _Opener:
    """Does an answer begin with the opener, white space before it aside? Undecided text is held."""

    def __init__(self, opener: str) -> None:
        self._opener = opener
        self._held = ""
        self.matched = False

    def push(self, text: str) -> str | None:
        """None while undecided; then the text to go on with: after the opener, or all of it."""
        self._held += text
        begun = self._held.lstrip()
        if begun.startswith(self._opener):
            self.matched = True
            return begun[len(self._opener) :]
        return None if self._opener.startswith(begun) else self.flush()

    def flush(self) -> str:
        held, self._held = self._held, ""
        return held


def _append(events: list[Event], kind: type[Content] | type[Reasoning], text: str) -> None:
    if not text:
        return
    last = events[-1] if events else None
    if isinstance(last, kind):
        events[-1] = kind(last.text + text)
    else:
        events.append(kind(text))
