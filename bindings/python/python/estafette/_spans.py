"""The functions of operations as spans of OpenTelemetry."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import _body
from ._estafette import _run_in_spans

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from opentelemetry.trace import Tracer


def export_spans(on: bool = True, /, *, tracer: Tracer | None = None) -> None:
    """Has the functions of operations, in all engines of the process, run in spans of OpenTelemetry from now on, or ends that.

    A span is called as its operation. It is a child of the span in which the operation was submitted, and has a link to that one,
    which may have ended. What the function itself traces is a child of the function's span. A function that returns a coroutine has a span
    for its call and one for the coroutine. Functions of a program belong to the span in which the program was recorded.

    Without this, what a function traces is a child of the span in which its operation was submitted.

    tracer: default ``opentelemetry.trace.get_tracer("estafette")``. The package ``opentelemetry-api`` must be installed.
    """
    if not on:
        _run_in_spans(False)
        _body.span = None
        return
    try:
        from opentelemetry.trace import Link, get_current_span, get_tracer
    except ImportError as error:
        raise ImportError("export_spans needs OpenTelemetry: `pip install opentelemetry-sdk`") from error
    if tracer is None:
        from . import __version__

        tracer = get_tracer("estafette", __version__)
    start = tracer.start_as_current_span

    def span(scope: Any) -> AbstractContextManager[object]:
        submitter = get_current_span().get_span_context()
        links = [Link(submitter)] if submitter.is_valid else []
        return start(scope.name, links=links, attributes={"estafette.operation": scope.id})

    _body.span = span  # type: ignore[assignment]
    _run_in_spans(True)
