"""The engine conformance kit: the guarantees G1..G13 of `dayzero.engine.protocol`, each as runnable checks.

    @pytest.mark.parametrize("check", SHARED_CHECKS, ids=str)
    async def test_guarantee(check, engine):
        await check.run(Bench(engine=engine, vocabulary=range(100, 1000)))

- A check gets one started engine. Those of `SHARED_CHECKS` leave it idle and usable, in any order, so one
  engine serves them all; those of `ENDING_CHECKS` freeze, kill, drain or stop it and want a fresh one each.
- A check that needs a hook the bench lacks (`freeze`, `kill`) raises ConformanceError: skip it by
  `check.needs`, never by accident.
- What fails raises ConformanceError, an AssertionError whose sentence names the guarantee.
- Every prompt is new to the process, so a check finds a cold cache on a used engine.
- It asks little of a real engine on a CPU: prompts of about 300 tokens (more only where the match unit is
  larger), outputs of 8 to 40. A start with `max_model_tokens` of 2,048 and a cache of at most
  32,768 tokens lets it check the context's end and eviction too; with more it leaves those two parts out.
"""

from dayzero.engine.conformance import cache, health, lifecycle, output, shutdown
from dayzero.engine.conformance.bench import Bench, Outcome
from dayzero.engine.conformance.registry import Check, ConformanceError, registered

_MODULES = (output, lifecycle, cache, health, shutdown)
CHECKS: tuple[Check, ...] = tuple(check for module in _MODULES for check in registered(module.__name__))
SHARED_CHECKS = tuple(check for check in CHECKS if not check.ends_engine)
ENDING_CHECKS = tuple(check for check in CHECKS if check.ends_engine)

__all__ = [
    "CHECKS",
    "ENDING_CHECKS",
    "SHARED_CHECKS",
    "Bench",
    "Check",
    "ConformanceError",
    "Outcome",
]
