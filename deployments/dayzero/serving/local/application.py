"""What `up` deploys: the fleet's region, with the run folder's keys and model files."""

from dayzero.config import Fleet
from dayzero.serving import app
from dayzero.serving.local.folders import RunFolder
from dayzero.serving.local.model_files import folders


def deploy(fleet: Fleet, region: str, run: RunFolder) -> None:
    """On the cluster that ray is connected to; returns while replicas are still loading."""
    application = app.build(
        fleet,
        region,
        folders=folders(fleet, region, run.models),
        run_dir=run.short().engines,
        keys_file=run.key_digests,
        secret_file=run.secret,
    )
    app.deploy(application, fleet, region)
