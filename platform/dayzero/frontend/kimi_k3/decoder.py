"""Token ids of one answer of Kimi K3 to events: one state machine, for streamed and buffered answers alike.

- Only special ids are markers; text that spells one is text. Marker text is never shown.
- Every oddity is mended by the rule that stands in `oddities`, and named in `Finished.degraded`.
- Linear in the ids; what is held back is bounded (a tag, part of a code point, part of a stop string), the values of
  arguments that are no strings aside.
- An incomplete code point becomes U+FFFD where the model itself ended it, and nothing where the answer was cut off.
"""

from collections.abc import Sequence

from dayzero.frontend.conversation import ToolChoiceMode
from dayzero.frontend.events import Event, Finished, FinishReason
from dayzero.frontend.kimi_k3.markers import TagReader
from dayzero.frontend.kimi_k3.oddities import Oddities, Oddity
from dayzero.frontend.kimi_k3.turn import Place, Turn
from dayzero.frontend.kimi_k3.validation import is_json
from dayzero.frontend.kimi_k3.vocabulary import Vocabulary
from dayzero.frontend.protocol import Channel, Expected, TokenCounts

_ENDS = (FinishReason.STOP, FinishReason.TOOL_CALLS)


class KimiK3Decoder:
    """Implements `dayzero.frontend.protocol.OutputDecoder`."""

    __slots__ = ("_content", "_expected", "_oddities", "_ranks", "_specials", "_table", "_tag", "_turn")

    def __init__(
        self,
        vocabulary: Vocabulary,
        *,
        start: Channel,
        expected: Expected | None = None,
        stop: Sequence[str] = (),
    ) -> None:
        """`start`: the channel that the prompt left open."""
        self._table = vocabulary.table
        self._specials = vocabulary.specials
        self._ranks = vocabulary.specials.ranks
        self._expected = expected or Expected()
        self._oddities = Oddities()
        self._turn = Turn(vocabulary, start, self._expected, stop, self._oddities)
        self._content = self._turn.content
        self._tag: TagReader | None = None

    @property
    def stopped(self) -> bool:
        return self._content.stop is not None

    @property
    def tokens(self) -> TokenCounts:
        """A tag that is still open counts as control."""
        turn = self._turn
        return turn.tally.counts(
            calls=turn.calls.held_tokens,
            control=0 if self._tag is None else 1 + len(self._tag.ids),
            dropped=turn.blank_ids,
        )

    def push(self, ids: Sequence[int]) -> list[Event]:
        events: list[Event] = []
        if self._content.stop is not None:
            self._turn.tally.dropped += len(ids)
        elif len(ids) and max(ids) < self._ranks and min(ids) >= 0:  # nearly always
            self._push_text(ids, events)
        else:
            self._push_mixed(ids, events)
        return events

    def finish(self, reason: FinishReason) -> list[Event]:
        events: list[Event] = []
        if self.stopped:
            reason = FinishReason.STOP
        else:
            self._end(reason, events)
        if not self.stopped:
            reason = self._reason(reason)
        self._check_answer(reason)
        events.append(Finished(reason, self._content.stop, self._oddities.names()))
        return events

    def _push_mixed(self, ids: Sequence[int], events: list[Event]) -> None:
        done = 0
        for at, token in enumerate(ids):
            if 0 <= token < self._ranks:
                continue
            self._push_part(ids[done:at], events)
            if self.stopped:
                self._turn.tally.dropped += 1
            else:
                self._push_special(token, events)
            done = at + 1
        self._push_part(ids[done:], events)

    def _push_part(self, ids: Sequence[int], events: list[Event]) -> None:
        """Text ids within a delta, in which a stop string may have been met before."""
        if self.stopped:
            self._turn.tally.dropped += len(ids)
        elif len(ids):
            self._push_text(ids, events)

    def _push_text(self, ids: Sequence[int], events: list[Event]) -> None:
        if self._tag is not None:
            rest = self._tag.push(ids)
            if rest is None:
                return
            ids = [*self._tag.ids, *rest]
            self._tag = None
            self._turn.drop(1, Oddity.TAG_TOO_LONG)
        self._turn.push(ids, events)

    def _push_special(self, token: int, events: list[Event]) -> None:
        specials, turn = self._specials, self._turn
        ends = token == specials.end_of_msg
        if turn.place is Place.ENDED or (turn.place is Place.CLOSED and not ends):
            turn.drop(1, Oddity.TEXT_AFTER_END)
        elif token == specials.sep:
            self._push_sep(events)
        elif ends or token in (specials.open, specials.close):
            self._end_tag_or_text(events)
            if self.stopped:
                turn.tally.dropped += 1
            elif ends:
                turn.tally.control += 1
                turn.end(events)
            else:
                self._tag = TagReader(self._table, closes=token == specials.close)
        else:
            turn.drop(1, Oddity.SPECIAL_ID)

    def _push_sep(self, events: list[Event]) -> None:
        tag, self._tag = self._tag, None
        if tag is None:
            self._turn.drop(1, Oddity.SEP_BARE)
        else:
            self._turn.take(tag.marker(), 2 + len(tag.ids), events)

    def _end_tag_or_text(self, events: list[Event]) -> None:
        """Before another marker."""
        tag, self._tag = self._tag, None
        if tag is None:
            self._turn.end_text(events)
            return
        marker = tag.marker()
        self._oddities.note(Oddity.TAG_NOT_ENDED)
        if marker.known:
            self._turn.take(marker, 1 + len(tag.ids), events)
        else:
            self._turn.tally.dropped += 1 + len(tag.ids)

    def _end(self, reason: FinishReason, events: list[Event]) -> None:
        turn = self._turn
        if self._tag is not None:
            turn.drop(1 + len(self._tag.ids), Oddity.TAG_CUT)
            self._tag = None
        if reason not in _ENDS:
            turn.cut(events)
            return
        turn.end_text(events)
        if self.stopped:
            return
        turn.end(events)

    def _reason(self, given: FinishReason) -> FinishReason:
        """Calls that were sent, the last one complete, are what the answer ended with, wherever it was cut off."""
        calls = self._turn.calls
        if calls.sent and calls.complete and given in (*_ENDS, FinishReason.LENGTH):
            return FinishReason.TOOL_CALLS
        return FinishReason.STOP if given is FinishReason.TOOL_CALLS else given

    def _check_answer(self, reason: FinishReason) -> None:
        """What was asked for and can be told only of a whole answer."""
        if reason is not FinishReason.STOP or self._turn.calls.sent:
            return
        expected, content = self._expected, self._content.kept
        required = expected.choice.mode in (ToolChoiceMode.REQUIRED, ToolChoiceMode.NAMED)
        if required and not self.stopped:
            self._oddities.note(Oddity.CALL_MISSING)
        if content is not None and not is_json(content, expected.response_format.kind):
            self._oddities.note(Oddity.CONTENT_NOT_JSON)
