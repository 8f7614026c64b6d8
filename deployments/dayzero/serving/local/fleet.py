"""A local fleet's life: its regions up and down, in one run folder.

- One command at a time (`lock`).
- `up` is idempotent for each region: what runs as wished is left alone; what does not is ended and started anew.
- Whatever can be checked is checked before anything that runs is ended; what a start needs of Kimi K3, before a word of it.
- Without names, `up` makes true what the fleet file says: a region that it no longer has is ended, and that is said first.
- A start that fails, or is interrupted, leaves no process of any region that it began; ending is never interrupted
  itself.
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from dayzero.config import Fleet
from dayzero.serving.local import keys, kimi_k3, ledger, lock, model_files, preflight, runs, signals
from dayzero.serving.local.deploy import APPLICATION
from dayzero.serving.local.errors import LostKeyError, PreflightError
from dayzero.serving.local.folders import FleetFolder, RegionFolder
from dayzero.serving.local.ledger import ProcessId
from dayzero.serving.local.options import NOTHING_GIVEN, Options, applied, by_region, for_region
from dayzero.serving.local.progress import Progress
from dayzero.serving.local.region import LocalRegion, Starting
from dayzero.serving.local.state import RunState
from dayzero.serving.peer_book import write_addresses


@dataclass(frozen=True, slots=True)
class Started:
    """What `up` found or made of one region."""

    state: RunState
    was_running: bool


@dataclass(frozen=True, slots=True)
class LocalFleet:
    """The regions of a fleet on this machine, in one run folder."""

    folder: FleetFolder
    deploy: str = APPLICATION

    def up(
        self,
        fleet: Fleet,
        *,
        fleet_name: str,
        progress: Progress,
        regions: Sequence[str] | None = None,
        given: Options = NOTHING_GIVEN,
    ) -> list[Started]:
        """Every region of the fleet, or those named; in the file's order.

        `given` changes what it is given for; where nothing is given, a region keeps what it was started with. Raises
        LocalError, FleetError, TenancySetupError or WeightsError. What ran as wished runs on; nothing else is left.
        """
        names = [region.name for region in fleet.infrastructure.regions]
        by_region({}, given, fleet, regions)  # what cannot be is said before there is a folder
        self.folder.make()
        with lock.alone(self.folder.lock):
            states = {
                name: state for name in names if (state := RunState.read(self.folder.region(name).state))
            }
            options = by_region(states, given, fleet, regions)
            fleet = applied(fleet, options, states, regions)
            wished = [
                self._region(name, for_region(fleet, options[name]), fleet_name, options[name])
                for name in names
                if regions is None or name in regions
            ]
            for region in wished:
                if not region.as_wished:
                    self._kimi_k3(region)
            running = {region.name: region.running(progress) for region in wished}
            missing = [region for region in wished if running[region.name] is None]
            others = self._not_of(fleet) if regions is None else []
            self._require_keys({region.name for region in missing})
            if missing:
                missing = [replace(region, vocabulary=self._kimi_k3(region)) for region in missing]
                ending = [region.folder.mark for region in missing] + [region.mark for region in others]
                preflight.check(fleet, [region.name for region in missing], self.folder, ending=ending)
                keys.ensure_keys(self.folder)
            write_addresses(self.folder.peers, fleet)
            if regions is None:
                self._end_others(others, progress)
            for region in missing:
                region.clear_away(progress)
            started = self._start(fleet, missing, progress) if missing else {}
        return [
            Started(state, was_running=True)
            if (state := running[region.name]) is not None
            else Started(started[region.name], was_running=False)
            for region in wished
        ]

    def down(self, regions: Iterable[str] | None = None) -> list[ProcessId]:
        """Ends everything of this run folder, or of the regions named; returns what was ended. Raises LocalError."""
        if not self.folder.path.exists():
            with signals.deferred():
                return ledger.end(*self._marks(regions))
        with lock.alone(self.folder.lock):
            if regions is None:
                return runs.end(self.folder.regions(), self.folder.mark)
            known = [region.name for region in [*self.folder.regions(), *runs.present(self.folder)]]
            unknown = [name for name in regions if name not in known]
            if known and unknown:
                raise PreflightError(
                    f"No region '{unknown[0]}' was ever started here; there are: {', '.join(dict.fromkeys(known))}."
                )
            return runs.end([self.folder.region(name) for name in regions])

    def _marks(self, regions: Iterable[str] | None) -> list[str]:
        return [self.folder.mark] if regions is None else [self.folder.region(name).mark for name in regions]

    def _not_of(self, fleet: Fleet) -> list[RegionFolder]:
        wished = {region.name for region in fleet.infrastructure.regions}
        return [region for region in runs.present(self.folder) if region.name not in wished]

    def _end_others(self, others: Sequence[RegionFolder], progress: Progress) -> None:
        if others:
            names = ", ".join(region.name for region in others)
            what = "which runs: it is ended" if len(others) == 1 else "which run: they are ended"
            progress.note(f"this fleet does not have {names}, {what} (`--region NAME` leaves others alone)")
        ended = runs.end(others, *runs.strays(self.folder))
        if ended:
            whose = ", ".join(region.name for region in others) or "an earlier version"
            progress.note(f"ended {len(ended)} processes of what the fleet does not have: {whose}")

    def _require_keys(self, missing: set[str]) -> None:
        """A region that runs on has its keys in memory: files that are lost come back with a new start only."""
        states = [
            RunState.read(region.state) for region in self.folder.regions() if region.name not in missing
        ]
        lost = keys.missing(self.folder)
        if lost and any(state is not None and state.alive for state in states):
            names = ", ".join(str(path) for path in lost)
            raise LostKeyError(
                f"A region runs, but the key files are incomplete: {names} is missing. `make down && make up` "
                "(dayzero down, dayzero up) starts it with new ones and keeps those that are there."
            )

    def _region(self, name: str, fleet: Fleet, fleet_name: str, options: Options) -> LocalRegion:
        """`fleet`: as this region is to see it."""
        contents = kimi_k3.contents(fleet, name, self.folder.models)
        return LocalRegion(
            fleet, self.folder.region(name), fleet_name, self.deploy, options, contents=contents
        )

    def _kimi_k3(self, region: LocalRegion) -> str | None:
        """The vocabulary, in words. Raises PreflightError where a file is not there, or not what it should be."""
        kimi_k3.check_scripts(region.fleet, region.name, fleet_file=region.fleet_name)
        return kimi_k3.vocabulary(
            region.fleet,
            region.name,
            self.folder.models,
            fleet_file=region.fleet_name,
            given=region.options.vocabulary is not None,
        )

    def _start(self, fleet: Fleet, regions: Sequence[LocalRegion], progress: Progress) -> dict[str, RunState]:
        """One after another until Ray runs, since Ray gives up on a busy machine; then all of them load at once."""
        names = [region.name for region in regions]
        for folder, kind in model_files.needed(fleet, names, self.folder.models).items():
            with progress.step(f"model files ({kind})") as step:
                model_files.ensure(kind, folder, step.say, mark=f"{self.folder.mark}.files")
        starting: list[Starting] = []

        def check() -> None:
            for region in starting:
                region.check()

        try:
            starting.extend(region.begin(progress) for region in regions)
            return {
                region.name: region.finish(begun, progress, check=check)
                for region, begun in zip(regions, starting, strict=True)
            }
        except BaseException:
            with suppress(KeyboardInterrupt):  # one that waited for the end; what came first is what counts
                runs.end([region.folder for region in regions])
                if len(names) > 1:
                    progress.note(f"ended what this start had begun of {' and '.join(names)}")
            raise
