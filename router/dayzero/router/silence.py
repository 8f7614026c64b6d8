"""Which replicas have gone silent: pure.

A frozen process answers nobody, its own guard included; what shows it is that its reports stop while others' go on.
When all of them stop, the carrier of reports is at fault, and nobody is silent.
"""

from collections.abc import Mapping

from dayzero.router.load import ReplicaId

FRESH_S = 1.5
"""A report younger than this proves that reports are carried; they come every 0.3 s and are 0.1 s old then."""
SUSPECT_AFTER_S = 3.0
"""Then nothing more is placed there: ten reports are missing."""
LOST_AFTER_S = 10.0
"""Then what waits there is given up and may be tried elsewhere. A process as slow as this serves nobody."""


def silent(
    ages_s: Mapping[ReplicaId, float], after_s: float, fresh_s: float = FRESH_S
) -> frozenset[ReplicaId]:
    """Replicas whose last report is older than `after_s` seconds while another's is younger than `fresh_s`."""
    if not any(age_s < fresh_s for age_s in ages_s.values()):
        return frozenset()
    return frozenset(replica for replica, age_s in ages_s.items() if age_s > after_s)
