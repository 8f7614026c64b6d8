"""`dayzero`: the commands and their exit codes.

- 0: done, or ready. 1: it failed, is not ready, or could not print; the message says what to do. 3: nothing runs.
  130: interrupted.
- What a command needs is imported when it runs, so that `--help` and `status` answer at once.
- Standard output holds the answer, standard error what went wrong; with `--json`, progress goes there too.
"""

import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter

from dayzero.cli.failure import as_json, explain, words
from dayzero.cli.output import guard
from dayzero.errors import DayzeroError


def product_version() -> str:
    try:
        return version("dayzero")
    except PackageNotFoundError:  # run from a checkout without an install
        return "0 (not installed)"


app = App(
    name="dayzero",
    help="Kimi K3 as a public model API, on Ray Serve.",
    version=product_version,
    suppress_keyboard_interrupt=False,  # `run` says what it means
)


@app.command
def up(
    fleet: Path | None = None,
    *,
    engine: Literal["vllm", "sim"] | None = None,
    port: Annotated[int | None, Parameter(help="the API's port, instead of the fleet file's")] = None,
    region: Annotated[str | None, Parameter(help="which region of the fleet; its first without")] = None,
    json: Annotated[
        bool, Parameter(negative="", help="print the result as JSON, progress on standard error")
    ] = False,
) -> int:
    """Start one region of FLEET on this machine (deployments/local.yaml without), and wait until it is ready.

    What runs already is left alone; with another engine, fleet or port it is started anew.
    """
    from dayzero.cli.up import start  # noqa: PLC0415 see the module's docstring

    with as_json(json):
        return start(fleet, engine=engine, port=port, region=region, as_json=json)


@app.command
def down(
    *, json: Annotated[bool, Parameter(negative="", help="print what was ended as JSON")] = False
) -> int:
    """Stop the region and every process that it started."""
    from dayzero.cli.down import stop  # noqa: PLC0415

    with as_json(json):
        return stop(as_json=json)


@app.command
def status(
    *, json: Annotated[bool, Parameter(negative="", help="print the gateway's own words as JSON")] = False
) -> int:
    """Show replicas, load, health and what each is doing. Exit code 0: ready, 1: not ready, 3: not running."""
    from dayzero.cli.status import show  # noqa: PLC0415

    with as_json(json):
        return show(as_json=json)


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
        explain(
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
        explain(error)
        return 1
    except KeyboardInterrupt as error:
        print(file=sys.stderr)  # below the ^C
        explain(error)
        return 130
    return code if isinstance(code, int) else 0


if __name__ == "__main__":
    main()
