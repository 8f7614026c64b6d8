"""The `infrastructure` section: what there is to run on."""

from typing import Annotated, Literal

from pydantic import Field

from dayzero.config.record import ByteCount, Count, Host, Name, Port, Record, Section, Words


class Http(Record):
    """Where a region's gateway listens."""

    host: Host = "127.0.0.1"
    """The address it binds; 127.0.0.1 keeps it on this machine."""
    port: Port = 8000
    """The port of the public API."""


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


class Region(Record):
    """One region is one Ray cluster."""

    name: Name
    """What pools call it."""
    cloud: Literal["local"] = "local"
    """Where it runs: `local` is this machine."""
    http: Http = Http()
    ray: RayCluster = RayCluster()


Regions = Annotated[tuple[Region, ...], Field(min_length=1), Words("a list of one region or more")]


class Infrastructure(Section):
    """What there is to run on: regions, and later their racks. Terraform will read it too."""

    regions: Regions
    """Every region of the fleet."""
