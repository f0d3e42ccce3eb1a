"""Spans around the functions of operations, kept by the SDK's own exporter."""

import asyncio
import gc

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode, get_current_span

import estafette as est
from conftest import run_program


@pytest.fixture
def exporter():
    return InMemorySpanExporter()


@pytest.fixture
def tracer(exporter):
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    yield provider.get_tracer("test")
    est.export_spans(False)
    provider.shutdown()


def named(exporter, name):
    (span,) = [span for span in exporter.get_finished_spans() if span.name == name]
    return span


def links(span):
    return [link.context.span_id for link in span.links]


def test_the_span_of_a_function_links_to_the_one_that_submitted_it(eng, exporter, tracer, gate):
    est.export_spans(tracer=tracer)
    x = eng.zeros(4, "int8")
    eng.submit(lambda x: gate(), writes=[x], name="before")
    with tracer.start_as_current_span("request"):
        op = eng.submit(lambda x: tracer.start_span("inner").end(), writes=[x], name="write")
    gate.open()
    op.wait()
    request, write, inner, before = (named(exporter, name) for name in ("request", "write", "inner", "before"))
    assert request.end_time <= write.start_time, "it had ended by then"
    assert links(write) == [request.context.span_id]
    assert write.parent.span_id == request.context.span_id and inner.parent.span_id == write.context.span_id
    assert {span.context.trace_id for span in (write, inner)} == {request.context.trace_id}
    assert write.attributes == {"estafette.operation": op.id}
    assert (links(before), before.parent) == ([], None)


def test_calls_wrapped_functions_and_failures_have_spans(eng, exporter, tracer):
    est.export_spans(tracer=tracer)

    def fails():
        raise ValueError("no such luck")

    with tracer.start_as_current_span("request") as request:
        eng.call(bytearray, 3, name="bytearray").wait()
        with pytest.raises(est.OperationError):
            eng.submit(fails, name="fails").wait()
    for name, status in (("bytearray", StatusCode.UNSET), ("fails", StatusCode.ERROR)):
        span = named(exporter, name)
        assert links(span) == [request.get_span_context().span_id] and span.status.status_code == status
    (event,) = named(exporter, "fails").events
    assert event.attributes["exception.message"] == "no such luck"


def test_coroutines_are_within_their_spans(eng, exporter, tracer):
    est.export_spans(tracer=tracer)

    async def turns(name):
        for _ in range(3):
            await asyncio.sleep(0)
            assert get_current_span().name == name

    async def main():
        with tracer.start_as_current_span("request"):
            ops = [eng.submit(lambda name=name: turns(name), name=name) for name in ("returned a", "returned b")]

            async def declared():
                await turns("declared")

            ops.append(eng.submit(declared, name="declared"))
        for op in ops:
            await op

    asyncio.run(main())
    request = named(exporter, "request")
    for name in ("returned a", "returned b", "declared"):
        spans = [span for span in exporter.get_finished_spans() if span.name == name]
        assert len(spans) == (1 if name == "declared" else 2)
        assert all(links(span) == [request.context.span_id] for span in spans)


@pytest.mark.filterwarnings("error")
def test_a_coroutine_that_is_cancelled_before_it_begins_is_closed(eng, exporter, tracer, monkeypatch):
    est.export_spans(tracer=tracer)
    unraisable = []
    monkeypatch.setattr("sys.unraisablehook", unraisable.append)

    async def turns():
        await asyncio.sleep(30)

    async def main():
        op = eng.submit(lambda: turns(), name="returned")
        while len(asyncio.all_tasks()) == 1:
            await asyncio.sleep(0)
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        with pytest.raises(est.CancelledError):
            await op

    asyncio.run(main())
    gc.collect()
    assert not unraisable


def test_without_being_asked_for_there_is_the_context_and_no_span(eng, exporter, tracer):
    def write(x):
        tracer.start_span("inner").end()

    with tracer.start_as_current_span("request"):
        eng.submit(write, writes=[eng.zeros(4, "int8")]).wait()
        est.export_spans(tracer=tracer)
        est.export_spans(False)
        eng.submit(lambda: None).wait()
    assert [span.name for span in exporter.get_finished_spans()] == ["inner", "request"]
    assert named(exporter, "inner").parent.span_id == named(exporter, "request").context.span_id


def test_without_the_package_the_error_says_what_to_install():
    program = """
    import sys
    import estafette as est

    sys.modules["opentelemetry"] = sys.modules["opentelemetry.trace"] = None
    try:
        est.export_spans()
    except ImportError as error:
        assert "pip install opentelemetry-sdk" in str(error)
    else:
        raise AssertionError("there is no such package")
    """
    run_program(program)
