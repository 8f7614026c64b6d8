"""What `up` deploys: the fleet's region, with the run folder's keys and model files."""

from dayzero.config import Fleet
from dayzero.serving import app
from dayzero.serving.local import store
from dayzero.serving.local.folders import RegionFolder
from dayzero.serving.local.model_files import folders


def deploy(fleet: Fleet, region: str, folder: RegionFolder) -> None:
    """On the cluster that ray is connected to; returns while replicas are still loading."""
    shared = folder.fleet
    application = app.build(
        fleet,
        region,
        folders=folders(fleet, region, shared.models),
        run_dir=folder.short().engines,
        keys_file=shared.key_digests,
        secret_file=shared.secret,
        peer_key_file=shared.peer_key,
        store_url=store.url(fleet, folder),
        peers_file=shared.peers,
    )
    app.deploy(application, fleet, region)
