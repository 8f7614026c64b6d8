"""What Ray Serve says of its application, read from the dashboard's REST answer. Pure.

It is there before the gateway answers, so a start can show what each replica does from its first second.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

FAILED = frozenset({"DEPLOY_FAILED", "UNHEALTHY"})


@dataclass(frozen=True, slots=True)
class ReplicaView:
    deployment: str
    replica: str
    state: str  # Serve's word in lower case: starting, running, stopping, ...
    pid: int | None


@dataclass(frozen=True, slots=True)
class ServeView:
    """The applications of one cluster, folded into one."""

    status: str | None  # None: no application yet
    message: str
    replicas: tuple[ReplicaView, ...]

    @classmethod
    def parse(cls, answer: Any) -> "ServeView":
        """From `GET /api/serve/applications/`; anything unknown counts as nothing there yet."""
        applications = answer.get("applications") if isinstance(answer, Mapping) else None
        if not isinstance(applications, Mapping) or not applications:
            return cls(None, "", ())
        status, messages, replicas = None, [], []
        for application in applications.values():
            if status not in FAILED:
                status = str(application.get("status", "")) or status
            messages.append(str(application.get("message") or ""))
            for name, deployment in (application.get("deployments") or {}).items():
                if deployment.get("status") in FAILED:
                    messages.append(str(deployment.get("message") or ""))
                replicas += [_replica(str(name), row) for row in deployment.get("replicas") or ()]
        return cls(status, "\n".join(dict.fromkeys(m for m in messages if m)), tuple(replicas))

    @property
    def failed(self) -> bool:
        """Serve gave up on a deployment; UNHEALTHY alone may still mend."""
        return self.status == "DEPLOY_FAILED"

    def summary(self) -> str:
        """`Gateway 1 running · Replica 2 starting`."""
        counts: dict[tuple[str, str], int] = {}
        for replica in self.replicas:
            key = (replica.deployment, replica.state)
            counts[key] = counts.get(key, 0) + 1
        return " · ".join(f"{name} {count} {state}" for (name, state), count in counts.items())


def _replica(deployment: str, row: Mapping[str, Any]) -> ReplicaView:
    pid = row.get("pid")
    return ReplicaView(
        deployment,
        str(row.get("replica_id", "?")),
        str(row.get("state", "?")).lower(),
        pid if isinstance(pid, int) else None,
    )
