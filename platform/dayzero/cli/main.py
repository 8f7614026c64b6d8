"""`dayzero`: the commands and their exit codes.

- 0: done, or ready. 1: it failed, is not ready, or could not print; the message says what to do. 2: the command line is
  not understood. 3: nothing runs. 130: interrupted.
- What a command needs is imported when it runs, so that `--help` and `status` answer at once.
- Standard output holds the answer, standard error what went wrong; with `--json`, progress goes there too.
"""

import sys
from collections.abc import Sequence
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
_Vocabulary = Annotated[
    Path | None,
    Parameter(
        help="Kimi K3's tiktoken.model [default: DAYZERO_K3_VOCABULARY, else the one in the weights' folder, else a small "
        "one of the same form, whose ids are not Kimi K3's]"
    ),
]
_OwnVocabulary = Annotated[
    Path | None,
    Parameter(
        help="Kimi K3's tiktoken.model [default: DAYZERO_K3_VOCABULARY, else a small one of the same form, whose ids are not "
        "Kimi K3's]"
    ),
]
_Model = Annotated[str, Parameter(help="kimi-k3 or smollm2-135m-instruct; nothing has to run for it")]
_Regions = Annotated[
    list[str] | None, Parameter(name="--region", negative="", help="NAME[,NAME…] only; may be repeated")
]


@app.command
def up(
    fleet: _Fleet = None,
    *,
    engine: Annotated[
        Literal["vllm", "sim"] | None,
        Parameter(
            help="of every pool: real, or simulated without torch and vllm [default: as FLEET says]; a model without weights "
            "stays simulated"
        ),
    ] = None,
    port: Annotated[
        int | None,
        Parameter(
            help="the first region's API port, instead of the fleet file's; the others get those after it"
        ),
    ] = None,
    vocabulary: _Vocabulary = None,
    regions: _Regions = None,
    json: Annotated[
        bool, Parameter(negative="", help="print the result as JSON, progress on standard error")
    ] = False,
) -> int:
    """Start the regions of FLEET on this machine, and wait until they are ready.

    A region that runs already is left alone, with the engine, port and vocabulary it was given; with others, or
    another fleet, script or content of one of these files, it is started anew. Without `--region`, a region that runs
    and that FLEET does not have is ended.
    """
    from dayzero.cli.up import start  # noqa: PLC0415 see the module's docstring

    with as_json(json):
        return start(fleet, engine=engine, port=port, vocabulary=vocabulary, regions=regions, as_json=json)


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
    vocabulary: _Vocabulary = None,
) -> int:
    """Run a gateway alone, before the regions of FLEET; Ctrl-C lets running answers finish and ends it."""
    from dayzero.cli.gateway import run  # noqa: PLC0415

    return run(fleet, host=host, port=port, name=name, vocabulary=vocabulary)


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


@app.command
def prompt(
    file: Annotated[
        str, Parameter(allow_leading_hyphen=True, help="a request body as JSON; `-` reads standard input")
    ],
    /,
    *,
    dialect: Annotated[
        Literal["chat"], Parameter(help="the body's endpoint: `chat` is /v1/chat/completions")
    ] = "chat",
    model: _Model = "kimi-k3",
    vocabulary: _OwnVocabulary = None,
    json: Annotated[
        bool,
        Parameter(
            negative="", help="print {prompt_token_ids, n, text, segments, vocabulary}, as docs/cli.md says"
        ),
    ] = False,
) -> int:
    """Print what the request body in FILE becomes: every token that the model reads, and where it comes from.

    The body goes the way it goes in a gateway, rules and refusals included. Its own `model` is not looked at.
    Exit code 0: printed, 1: a gateway would refuse it, or it cannot be read.
    """
    from dayzero.cli.prompt import show  # noqa: PLC0415

    with as_json(json):
        return show(file, dialect=dialect, model=model, vocabulary=vocabulary, as_json=json)


@app.command
def decode(
    file: Annotated[
        str, Parameter(allow_leading_hyphen=True, help="a JSON list of token ids; `-` reads standard input")
    ],
    /,
    *,
    start: Annotated[
        Literal["think", "response"],
        Parameter(help="the channel that the prompt left open: response where thinking was off"),
    ] = "think",
    split: Annotated[
        int, Parameter(help="ids in a push, as an engine sends them; 0 is all at once; changes nothing")
    ] = 0,
    finish: Annotated[
        Literal["stop", "length"] | None,
        Parameter(help="why the engine ended [default: stop if the last id is the stop id, else length]"),
    ] = None,
    model: _Model = "kimi-k3",
    vocabulary: _OwnVocabulary = None,
    json: Annotated[
        bool,
        Parameter(
            negative="", help="print {reasoning_content, content, tool_calls, finish_reason, degraded}"
        ),
    ] = False,
) -> int:
    """Print the answer that the token ids in FILE are: reasoning, text, tool calls, and what was mended in it.

    Exit code 0: printed, 1: FILE holds no list of this vocabulary's ids, or cannot be read.
    """
    from dayzero.cli.decode import show  # noqa: PLC0415
    from dayzero.frontend.events import FinishReason  # noqa: PLC0415
    from dayzero.frontend.protocol import Channel  # noqa: PLC0415

    with as_json(json):
        return show(
            file,
            model=model,
            start=Channel(start),
            split=split,
            finish=FinishReason(finish) if finish else None,
            vocabulary=vocabulary,
            as_json=json,
        )


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


def run(words: Sequence[str] | None = None) -> int:
    """`words`: of the command line, without the program; None takes the process's own."""
    try:
        code = app(words, result_action="return_value")
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
