"""The `infrastructure` section: what there is to run on."""

from typing import Annotated, Literal

from pydantic import Field

from dayzero.config.record import (
    BaseUrl,
    ByteCount,
    Count,
    Host,
    Name,
    Port,
    Record,
    RedisUrl,
    Section,
    Words,
)


class Http(Record):
    """Where a region's gateway listens."""

    host: Host = "127.0.0.1"
    """The address it binds; 127.0.0.1 keeps it on this machine."""
    port: Port = 8000
    """The port of the public API."""
    internal_url: BaseUrl | None = None
    """Where other regions' gateways reach it; absent: `http://host:port`."""

    @property
    def url(self) -> str:
        """From this machine."""
        host = "127.0.0.1" if self.host in {"0.0.0.0", "::"} else self.host  # noqa: S104 compared, not bound
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"


class RayCluster(Record):
    """The Ray cluster of a region. Ray's own ports stay on the loopback address."""

    logical_cpus: Count = 4
    """CPUs that Ray may give away. On one machine they are book-keeping, not cores: more than the cores is fine."""
    gcs_port: Port = 6379
    """The port of Ray's control store."""
    dashboard_port: Port = 8265
    """The port of Ray's dashboard, on the loopback address."""
    object_store_bytes: ByteCount = 128 * 1024 * 1024
    """Shared memory for objects. Requests travel as arguments, so a small one is enough."""


class Redis(Record):
    """The region's own Valkey or Redis: what caches hold, and decisions of the last hour. Never a request's way."""

    url: RedisUrl | None = Field(default=None, repr=False)
    """A Valkey or Redis of yours; each region has its own. Absent: an embedded Valkey, started with the region."""
    memory_bytes: ByteCount = Field(default=256 * 1024 * 1024, ge=8 * 1024 * 1024)
    """How much the embedded Valkey may hold, 8 MiB or more; a store of yours has its own limit."""


class Region(Record):
    """One region is one Ray cluster."""

    name: Name
    """What pools call it."""
    cloud: Literal["local"] = "local"
    """Where it runs: `local` is this machine."""
    http: Http = Http()
    ray: RayCluster = RayCluster()
    redis: Redis = Redis()


Regions = Annotated[tuple[Region, ...], Field(min_length=1), Words("a list of one region or more")]


class Infrastructure(Section):
    """What there is to run on: regions, and later their racks. Terraform will read it too."""

    regions: Regions
    """Every region of the fleet."""
