"""The parts of the conformance kit that a scripted engine keeps, and the kit's own teeth: engines that lie."""

import msgspec
import pytest

from dayzero.engine.conformance import CHECKS, SHARED_CHECKS, Bench, ConformanceError
from dayzero.engine.errors import EngineDeadError
from dayzero.engine.types import Finish, TokenDelta, Usage
from dayzero.testing.scripted_engine import HANG, ScriptedEngine, repeat

NOT_KEPT = {
    "G1-logprobs_stand_beside_their_ids",
    "G4-min_tokens_holds_the_stop_back",
    "G8-a_repeated_prompt_hits",
    "G8-a_longer_turn_hits_the_shorter",
    "G9-salts_never_share",
    "G10-events_folded_are_what_is_resident",
}
KEPT = [check for check in CHECKS if str(check) not in NOT_KEPT and check.guarantee != "G11"]


@pytest.mark.parametrize("check", KEPT, ids=str)
async def test_a_scripted_engine_keeps_what_it_says_it_keeps(check):
    engine = ScriptedEngine(repeat((21, 22, 23, 24, 25), every_s=0.001))
    await check.run(Bench(engine=engine, vocabulary=range(10, 500), patience_s=20))


def test_what_it_does_not_keep_are_checks_that_exist():
    assert {str(check) for check in CHECKS} >= NOT_KEPT


class Liar(ScriptedEngine):
    """Breaks one promise: `twist` changes each delta of an otherwise good engine."""

    def __init__(self, twist):
        super().__init__(repeat((21, 22, 23, 24, 25), every_s=0.001))
        self._twist = twist

    async def generate(self, request):
        inner = super().generate(request)
        try:
            async for delta in inner:
                for told in self._twist(delta, request):
                    yield told
        finally:
            await inner.aclose()


def drops_an_id(delta, request):
    yield msgspec.structs.replace(delta, token_ids=delta.token_ids[1:]) if delta.finish else delta


def finishes_twice(delta, request):
    yield delta
    if delta.finish:
        yield TokenDelta(finish=delta.finish, usage=delta.usage, times=delta.times)


def says_nothing_last(delta, request):
    yield msgspec.structs.replace(delta, usage=None) if delta.finish else delta


def miscounts_the_prompt(delta, request):
    usage = delta.usage and Usage(request.prompt_tokens - 1, delta.usage.completion_tokens)
    yield msgspec.structs.replace(delta, usage=usage)


def calls_the_limit_a_stop(delta, request):
    yield msgspec.structs.replace(delta, finish=Finish.STOP) if delta.finish is Finish.LENGTH else delta


def hides_aborts(delta, request):
    yield msgspec.structs.replace(delta, finish=Finish.STOP) if delta.finish is Finish.ABORT else delta


def claims_a_cold_hit(delta, request):
    usage = delta.usage and msgspec.structs.replace(delta.usage, cached_tokens=16)
    yield msgspec.structs.replace(delta, usage=usage)


@pytest.mark.parametrize(
    ("twist", "guarantee"),
    [
        (drops_an_id, "G1"),
        (finishes_twice, "G2"),
        (says_nothing_last, "G2"),
        (miscounts_the_prompt, "G3"),
        (calls_the_limit_a_stop, "G4"),
        (hides_aborts, "G6"),
        (claims_a_cold_hit, "G8"),
    ],
)
async def test_the_kit_finds_the_lie(twist, guarantee):
    found = []
    for check in SHARED_CHECKS:
        if check.guarantee == guarantee:
            try:
                await check.run(Bench(engine=Liar(twist), vocabulary=range(10, 500), patience_s=20))
            except ConformanceError as e:
                found.append(str(e))
    assert found
    assert all(sentence.startswith(guarantee) for sentence in found)


async def test_it_records_who_left_early_and_who_was_aborted():
    engine = ScriptedEngine(repeat((21, 22), every_s=0.001))
    bench = Bench(engine=engine, vocabulary=range(10, 500))
    requests = [bench.request(bench.short_prompt(), max_tokens=limit) for limit in (1, 500, 500)]
    streams = [engine.generate(request) for request in requests]
    for stream in streams:
        await anext(stream)
    await streams[0].aclose()  # after its end: nobody left
    await streams[1].aclose()
    await engine.abort(requests[2].request_id)
    last = [delta async for delta in streams[2]][-1]
    assert last.finish is Finish.ABORT
    assert engine.closed == [requests[1].request_id]
    assert engine.aborts == [requests[2].request_id]
    assert engine.stats().running == 0


async def test_a_script_may_hang_fail_and_say_what_it_likes():
    engine = ScriptedEngine(lambda _: (0.01, TokenDelta(token_ids=(1, 2)), HANG))
    bench = Bench(engine=engine, vocabulary=range(10, 500))
    stream = engine.generate(bench.request(bench.short_prompt()))
    assert (await anext(stream)).token_ids == (1, 2)
    engine.fail("unplugged")
    with pytest.raises(EngineDeadError, match="unplugged"):
        await anext(stream)
    assert not (await engine.health()).ok
    assert engine.closed == []


async def test_a_check_without_its_hook_says_which_is_missing():
    check = next(check for check in CHECKS if check.needs == {"freeze"})
    with pytest.raises(ConformanceError, match="no hook freeze"):
        await check.run(Bench(engine=ScriptedEngine(), vocabulary=range(10, 500)))


def test_every_guarantee_has_a_check():
    assert {check.guarantee for check in CHECKS} == {f"G{n}" for n in range(1, 14)}
