"""The conformance kit on the simulated engine: attention alone and hybrid, without delay and in scaled time."""

import asyncio
from dataclasses import dataclass

import pytest

from dayzero.config import Frontend
from dayzero.engine.conformance import ENDING_CHECKS, SHARED_CHECKS, Bench
from dayzero.engine.simulated_output import OutputVoice
from dayzero.engine.simulated_profile import SimulatedProfile, load_profile
from dayzero.frontend.kimi_k3.vocabulary_source import SHIPPED
from dayzero.serving.engines.sim import SimulatedEngine
from dayzero.serving.engines.voice import voice_of

VOCABULARY = range(100, 1000)


@dataclass(frozen=True)
class Setting:
    name: str
    profile: str
    time_scale: float = 1.0

    def __str__(self):
        return self.name


SETTINGS = (
    Setting("attention", "instant"),
    Setting("hybrid", "instant-hybrid"),
    Setting("kimi_k3", "kimi-k3-gb300-tp8", time_scale=0.05),
)


@pytest.fixture(params=SETTINGS, ids=str)
async def engine(request):
    setting = request.param
    profile: SimulatedProfile = load_profile(setting.profile)
    voice = OutputVoice.of(range(100, 612), stop_id=7, output_tokens=(5, 60))
    engine = SimulatedEngine(profile, voice, time_scale=setting.time_scale)
    await engine.start()
    yield engine
    await engine.stop()


def bench(engine):
    return Bench(
        engine=engine,
        vocabulary=VOCABULARY,
        freeze=SimulatedEngine.freeze,
        kill=SimulatedEngine.kill,
        leftovers=lambda _: [t.get_name() for t in asyncio.all_tasks() if t.get_name().startswith("sim-")],
        patience_s=30,
    )


@pytest.mark.parametrize("check", [*SHARED_CHECKS, *ENDING_CHECKS], ids=str)
async def test_the_simulated_engine_keeps_its_promise(check, engine):
    await check.run(bench(engine))


async def test_shared_checks_leave_one_engine_usable_for_all(engine):
    for check in SHARED_CHECKS:
        await check.run(bench(engine))


async def test_a_scripted_voice_keeps_the_promises_that_are_about_output():
    voice = voice_of(Frontend(kind="kimi_k3", options={"vocabulary": str(SHIPPED)}), None, None)
    engine = SimulatedEngine(load_profile("instant"), voice)
    await engine.start()
    for check in SHARED_CHECKS:
        await check.run(bench(engine))
    await engine.stop()
