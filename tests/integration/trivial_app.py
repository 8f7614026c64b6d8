"""A Serve application as small as one can be, deployed the way the product's is: by `deploy(fleet, region, folder)`."""

import os

from fastapi import FastAPI
from fastapi.responses import JSONResponse
from ray import serve

api = FastAPI()


@serve.deployment(name="Gateway", num_replicas=1, ray_actor_options={"num_cpus": 1})
@serve.ingress(api)
class Gateway:
    def __init__(self, region: str) -> None:
        self._region = region

    @api.get("/readyz")
    def readyz(self) -> dict[str, str]:
        return {"region": self._region, "pid": str(os.getpid())}

    @api.get("/internal/v1/status")
    def status(self) -> JSONResponse:
        return JSONResponse({"region": self._region, "ready": True})


def deploy(fleet, region, folder):
    http = fleet.region(region).http
    serve.start(http_options={"host": http.host, "port": http.port})
    serve.run(Gateway.bind(region), name="dayzero", route_prefix="/")


def deploy_broken(fleet, region, folder):
    raise RuntimeError("the application has a fault of its own")


def deploy_broken_in_other(fleet, region, folder):
    if region == "other":
        deploy_broken(fleet, region, folder)
    deploy(fleet, region, folder)
