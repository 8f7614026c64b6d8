"""The reference pages of metrics and traces: `python -m dayzero.telemetry.reference metrics > PAGE`."""

import ast
import inspect
import sys
from collections.abc import Iterator
from enum import StrEnum

from dayzero.telemetry import catalogue, names

_METRICS = """\
# Metrics

What a gateway shows at `/metrics`. Every name ends in its unit. There is no label for tenants, requests, keys or
replicas. A metric without data is absent, not zero. A label's value outside its set is `other`, and `none` stands
where there is nothing to name.

This page is made from the catalogue (`python -m dayzero.telemetry.reference metrics`); a test keeps it true.
"""

_TRACES = """\
# Traces

One request is one trace, over the gateway, Ray and the engine. Spans leave as OTLP over HTTP where
`OTEL_EXPORTER_OTLP_ENDPOINT` is set; `OTEL_TRACES_SAMPLER` decides at our edge which traces are kept. A caller's
`traceparent` is continued. Spans hold the attributes below and no others; none of them is content.

This page is made from the names (`python -m dayzero.telemetry.reference traces`); a test keeps it true.
"""


def metrics_page() -> str:
    return "\n".join(_metrics())


def traces_page() -> str:
    lines = [_TRACES]
    for title, kind in (
        ("Spans", names.SpanName),
        ("Attributes", names.Attribute),
        ("Events", names.SpanEvent),
    ):
        lines += [f"## {title}", "", "| name | what |", "|---|---|"]
        lines += [f"| `{name}` | {what} |" for name, what in described(kind)]
        lines.append("")
    return "\n".join(lines)


def described(kind: type[StrEnum]) -> Iterator[tuple[str, str]]:
    """Each member's value and the docstring below it."""
    (definition,) = ast.parse(inspect.getsource(kind)).body
    assert isinstance(definition, ast.ClassDef)
    for member, below in zip(definition.body, definition.body[1:], strict=False):
        match member, below:
            case ast.Assign(targets=[ast.Name(id=name)]), ast.Expr(value=ast.Constant(value=str(what))):
                yield kind[name].value, " ".join(what.split())


def _metrics() -> Iterator[str]:
    yield from (_METRICS, "| metric | kind | labels | what |", "|---|---|---|---|")
    for metric in catalogue.METRICS:
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        yield f"| `{metric.name}` | {metric.kind} | {labels} | {metric.what} |"
    yield from ("", "## Labels", "", "| label | values |", "|---|---|")
    for label, values in catalogue.LABELS.items():
        named = "the names in the fleet file" if label != "oddity" else "the oddities that decoders name"
        text = ", ".join(f"`{value}`" for value in sorted(values)) if values else named
        yield f"| `{label}` | {text} |"
    yield from ("", "## Buckets", "")
    for metric in catalogue.METRICS:
        if metric.buckets:
            bounds = ", ".join(f"{bound:g}" for bound in metric.buckets)
            yield f"- `{metric.name}`: {bounds}. {metric.why_buckets}"
    yield ""


if __name__ == "__main__":
    sys.stdout.write({"metrics": metrics_page, "traces": traces_page}[sys.argv[1]]())
