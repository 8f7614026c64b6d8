"""`dayzero`: the commands and their exit codes.

- 0: done, or ready. 1: it failed, is not ready, or could not print; the message says what to do. 2: the command line is
  not understood. 3: nothing runs. 130: interrupted.
- What a command needs is imported when it runs, so that `--help` and `status` answer at once.
- Standard output holds the answer, standard error what went wrong; with `--json`, progress goes there too.
"""

import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter

from dayzero.cli import failure
from dayzero.cli.errors import UsageError
from dayzero.cli.failure import as_json, words
from dayzero.cli.output import guard
from dayzero.errors import DayzeroError


def product_version() -> str:
    try:
        return version("dayzero")
    except PackageNotFoundError:  # run from a checkout without an install
        return "0 (not installed)"


app = App(
    name="dayzero",
    help="A model API (built for Kimi K3), on Ray Serve.",
    version=product_version,
    suppress_keyboard_interrupt=False,  # `run` says what it means
)


_Fleet = Annotated[
    Path | None, Parameter(help="a fleet file [default: the checkout's deployments/local.yaml]")
]
_Regions = Annotated[
    list[str] | None, Parameter(name="--region", negative="", help="NAME[,NAME…] only; may be repeated")
]


@app.command
def up(
    fleet: _Fleet = None,
    *,
    engine: Annotated[
        Literal["vllm", "sim"] | None,
        Parameter(help="of every pool: real, or simulated without torch and vllm [default: as FLEET says]"),
    ] = None,
    port: Annotated[
        int | None,
        Parameter(
            help="the first region's API port, instead of the fleet file's; the others get those after it"
        ),
    ] = None,
    regions: _Regions = None,
    json: Annotated[
        bool, Parameter(negative="", help="print the result as JSON, progress on standard error")
    ] = False,
) -> int:
    """Start the regions of FLEET on this machine, and wait until they are ready.

    A region that runs already is left alone, with the engine and port it was given; with others, or another fleet,
    it is started anew.
    """
    from dayzero.cli.up import start  # noqa: PLC0415 see the module's docstring

    with as_json(json):
        return start(fleet, engine=engine, port=port, regions=regions, as_json=json)


@app.command
def down(
    *,
    regions: _Regions = None,
    json: Annotated[bool, Parameter(negative="", help="print what was ended as JSON")] = False,
) -> int:
    """Stop the regions and every process that they started. Streams that run are cut; nothing drains."""
    from dayzero.cli.down import stop  # noqa: PLC0415

    with as_json(json):
        return stop(regions=regions, as_json=json)


@app.command
def status(
    *names: Annotated[str, Parameter(name="REGION", help="these only; with commas, or one after another")],
    regions: _Regions = None,
    json: Annotated[
        bool, Parameter(negative="", help="print an object by region, with the gateways' own words, as JSON")
    ] = False,
) -> int:
    """Show every region that was started here, or each REGION: replicas, load, health and what each is doing.

    Exit code 0: ready, 1: not ready, 2: no such region, 3: not running; the worst region's counts, of those shown.
    """
    from dayzero.cli.status import show  # noqa: PLC0415

    with as_json(json):
        return show(regions=[*names, *(regions or ())], as_json=json)


@app.command
def gateway(
    fleet: _Fleet = None,
    *,
    host: Annotated[str, Parameter(help="the address it binds")] = "127.0.0.1",
    port: Annotated[int, Parameter(help="the API's port")] = 9000,
    name: Annotated[str, Parameter(help="what status pages and metrics call it")] = "edge",
) -> int:
    """Run a gateway alone, before the regions of FLEET; Ctrl-C lets running answers finish and ends it."""
    from dayzero.cli.gateway import run  # noqa: PLC0415

    return run(fleet, host=host, port=port, name=name)


@app.command
def explain(
    request_id: Annotated[
        str,
        Parameter(show_default=False, help="from the answer: its x-request-id, or its `id` (`chatcmpl-…`)"),
    ] = "",
    /,
    *,
    json: Annotated[bool, Parameter(negative="", help="print the records as JSON")] = False,
) -> int:
    """Show why REQUEST_ID went where it went: candidates, predicted and real seconds and cached tokens.

    A decision is kept for an hour, while its region's store lives.
    Exit code 0: found, 1: no region knows it, 2: it is no request id, 3: not running.
    """
    from dayzero.cli.explain import show  # noqa: PLC0415

    with as_json(json):
        return show(request_id, as_json=json)


@app.command(name="version")
def show_version() -> int:
    """Print the version."""
    print(product_version())
    return 0


def main() -> None:
    sys.stdout, output = guard(sys.stdout)
    sys.stderr, _ = guard(sys.stderr)
    try:
        code = run()
    finally:  # also where the command line was not understood
        for stream in filter(None, (sys.stdout, sys.stderr)):
            stream.flush()
    if output is not None and output.failure is not None:
        failure.explain(
            DayzeroError(
                f"The command ran, but its output is lost: {words(output.failure)} (exit code {code})."
            )
        )
        code = 1
    sys.exit(code)


def run() -> int:
    try:
        code = app(result_action="return_value")
    except (DayzeroError, OSError) as error:
        failure.explain(error)
        return 2 if isinstance(error, UsageError) else 1
    except KeyboardInterrupt as error:
        print(file=sys.stderr)  # below the ^C
        failure.explain(error)
        return 130
    return code if isinstance(code, int) else 0


if __name__ == "__main__":
    main()
