"""Which regions run in a run folder, and how they are ended.

- The processes are the truth; a state file says what they should be.
- Ending is never interrupted itself, and leaves nothing but logs, keys and model files.
"""

from collections.abc import Iterable
from pathlib import Path

from dayzero.serving.local import ledger, signals
from dayzero.serving.local.errors import PreflightError
from dayzero.serving.local.folders import FleetFolder, RegionFolder
from dayzero.serving.local.ledger import ProcessId
from dayzero.serving.local.short_folder import ShortFolder
from dayzero.serving.local.state import RunState


def present(folder: FleetFolder) -> list[RegionFolder]:
    """The regions that run here, should run here, or have left something."""
    names = {region.name for region in folder.regions() if region.state.exists()}
    names |= {name for run_id in ledger.marks(folder.mark) if (name := folder.region_of(run_id))}
    return [folder.region(name) for name in sorted(names)]


def strays(folder: FleetFolder) -> set[str]:
    """The marks of this folder's processes that are no region's: an interrupted maker of model files, an old version's."""
    return {run_id for run_id in ledger.marks(folder.mark) if folder.region_of(run_id) is None}


def end(regions: Iterable[RegionFolder], *marks: str) -> list[ProcessId]:
    """Ends every process of these regions, and those with `marks`; then removes what only running processes need."""
    with signals.deferred():
        folders = list(regions)
        states = {region.name: RunState.read(region.state) for region in folders}
        heads = [state.head for state in states.values() if state is not None and state.head is not None]
        every = (*(region.mark for region in folders), *marks)
        ended = ledger.end(*every, first=heads)
        left = ledger.find(*every)
        if left:
            names = ", ".join(f"{process.pid} ({process.name})" for process in left)
            raise PreflightError(
                f"These processes of an earlier run cannot be ended: {names}. End them by id."
            )
        for region in folders:
            state = states[region.name]
            short = ShortFolder(Path(state.short_folder)) if state is not None else region.short()
            short.keep_logs_only()
            region.state.unlink(missing_ok=True)
    return ended
