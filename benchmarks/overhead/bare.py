"""The bare Serve application: the plain app as an ingress, and the same with a hop through a handle.

`/local` streams from the ingress itself; `/handle` sends the body to a second deployment and streams what comes back.
It is deployed the way the product is, on a cluster with the same flags; the product's HTTP middleware is taken out.
"""

from collections.abc import AsyncIterator

from ray import serve
from ray.serve.handle import DeploymentHandle
from starlette.applications import Starlette
from starlette.routing import Mount, Route

from dayzero.config import Fleet
from dayzero.serving.local.folders import RegionFolder
from overhead import plain

_BARE = {"num_cpus": 1, "runtime_env": {"env_vars": {"RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH": ""}}}


class Source:
    """The deployment behind the handle: one item a token."""

    async def generate(self, body: bytes, tokens: int, pace_s: float) -> AsyncIterator[bytes]:
        async for item in plain.in_process(body, tokens, pace_s):
            yield item


class Ingress:
    def __init__(self, handle: DeploymentHandle) -> None:
        self._handle = handle.options(stream=True)

    def __serve_build_asgi_app__(self) -> Starlette:
        local = plain.app()

        async def through_handle(body: bytes, tokens: int, pace_s: float) -> AsyncIterator[bytes]:
            async for item in self._handle.generate.remote(body, tokens, pace_s):
                yield item

        ready = next(route for route in local.routes if isinstance(route, Route) and route.path == "/readyz")
        return Starlette(routes=[ready, Mount("/local", local), Mount("/handle", plain.app(through_handle))])


def deploy(fleet: Fleet, region: str, folder: RegionFolder) -> None:  # noqa: ARG001 the signature of a deploy step
    http = fleet.region(region).http
    serve.start(http_options={"host": http.host, "port": http.port})
    source = serve.deployment(Source).options(
        name="source", max_ongoing_requests=256, ray_actor_options=_BARE
    )
    ingress = serve.deployment(serve.ingress()(Ingress)).options(
        name="ingress", max_ongoing_requests=1088, ray_actor_options=_BARE
    )
    serve.run(ingress.bind(source.bind()), name="bare", route_prefix="/")
