"""The public contract: what the names do when nothing goes wrong."""

import contextlib
import functools
import threading
import time

import pytest

import estafette as est
from conftest import run_program, until


def test_every_public_name_has_a_docstring():
    for name in est.__all__:
        if name != "__version__":
            assert getattr(est, name).__doc__, name
    for owner in (est.Engine, est.Tensor, est.Operation, est.Variable, est.View, est.Exporter):
        for name, member in vars(owner).items():
            if not name.startswith("_"):
                assert member.__doc__, f"{owner.__name__}.{name}"


def test_an_engine_refuses_numbers_that_make_no_sense():
    with pytest.raises(ValueError, match="workers must be at least 0"):
        est.Engine(workers=-1)
    with pytest.raises(ValueError, match="in_flight_limit"):
        est.Engine(workers=1, in_flight_limit=0)
    with pytest.raises(ValueError, match="seconds"):
        est.Engine(workers=1, lease_timeout=-1)
    assert est.Engine(workers=3).workers == 3


def test_the_default_engine_is_one_for_the_process(np):
    assert est.default_engine() is est.default_engine()
    x = np.arange(4.0)
    t = est.from_dlpack(x)
    assert t.data_ptr == x.ctypes.data
    assert est.default_engine().call(lambda x: x + 1, t, using=np.from_dlpack).wait() is None


def test_a_default_engine_that_was_shut_down_is_followed_by_another():
    run_program(
        """
        import multiprocessing
        import numpy as np
        import estafette as est

        with est.default_engine() as first:
            x = first.zeros(3, "int64", shared=True)
            inside = []
            first.submit(lambda: inside.append(est.default_engine() is first)).wait()
            assert inside == [True]
        assert est.default_engine() is not first
        assert est.default_engine() is est.default_engine()
        assert np.from_dlpack(est.from_dlpack(np.arange(3))).tolist() == [0, 1, 2]
        receiving, sending = multiprocessing.Pipe()
        with est.Engine(workers=1) as eng:
            sending.send(eng.zeros(3, "int64", shared=True))
            assert np.from_dlpack(receiving.recv()).tolist() == [0, 0, 0]
        """
    )


def test_a_tensor_tells_what_it_is(eng, np):
    t = eng.from_dlpack(np.zeros((2, 3), "int16"))
    assert (t.shape, t.ndim, t.dtype) == ((2, 3), 2, "int16")
    assert t.device == (1, 0) and str(t.device) == "cpu:0"
    assert t.__dlpack_device__() == (1, 0)
    assert t.is_ready() and t.is_defined() and not t.read_only
    assert repr(t) == "<estafette.Tensor int16[2, 3], cpu:0, ready>"


@pytest.mark.parametrize(
    "shape, expected", [(5, (5,)), ((2, 3), (2, 3)), ([4], (4,)), ((), ()), (0, (0,))], ids=str
)
def test_empty_and_zeros_take_shapes_as_people_write_them(eng, np, shape, expected):
    assert eng.empty(shape, "float32").shape == expected
    zeros = eng.zeros(shape, "int64")
    assert zeros.shape == expected and not np.from_dlpack(zeros).any()


def test_dtypes_are_taken_as_people_write_them(eng, np):
    for dtype in ("float32", np.float32, np.dtype("float32"), np.zeros(1, "float32").dtype):
        assert eng.empty(1, dtype).dtype == "float32"
    for name in ("bool", "uint8", "int64", "float16", "bfloat16", "float64", "complex64", "complex128"):
        assert eng.empty(1, name).dtype == name
    numpys = ("f2", "f4", "f8", "<f8", "half", "single", "double", "i1", "short", "intc", "i8", "u2", "ubyte", "b1", "?", "c8", "cdouble")
    for name in numpys:
        assert eng.empty(1, name).dtype == np.dtype(name).name
    for name in ("f3", "S3", "O", "M8[s]", "f4,f4"):
        with pytest.raises(ValueError, match="is not an element type"):
            eng.empty(1, name)
    with pytest.raises(ValueError, match="byte order"):
        eng.empty(1, ">f4")
    with pytest.raises(ValueError, match="no-such"):
        eng.empty(1, "no-such")
    with pytest.raises(TypeError, match="shape"):
        eng.empty("three", "float32")
    with pytest.raises(ValueError, match=r"shape\[0\] is -1"):
        eng.empty(-1, "float32")


def test_operations_run_in_the_order_of_their_data(eng, np):
    x = eng.zeros(1, "int64")

    def affine(factor, term, x):
        x *= factor
        x += term

    expected = 0
    for i in range(200):
        eng.submit(lambda a, b, i=i: affine(i % 3, i, b), reads=[x], writes=[x], using=np.from_dlpack)
        expected = expected * (i % 3) + i
    x.wait()
    assert np.from_dlpack(x)[0] == expected


def test_arguments_are_reads_then_writes_through_using(eng, np):
    a, b, out = eng.zeros(1, "int8"), eng.zeros(2, "int8"), eng.zeros(3, "int8")
    seen = []
    op = eng.submit(
        lambda *arrays: seen.extend((x.shape, x.flags.writeable) for x in arrays),
        reads=[a, b],
        writes=[out],
        using=np.from_dlpack,
    )
    op.wait()
    assert seen == [((1,), False), ((2,), False), ((3,), True)]


def test_without_using_the_function_gets_the_tensors(eng):
    a, out = eng.zeros(1, "int8"), eng.zeros(1, "int8")
    seen = []
    eng.submit(lambda *tensors: seen.extend(tensors), reads=[a], writes=[out]).wait()
    assert seen[0] is a and seen[1] is out


def test_many_readers_run_at_once(eng):
    x = eng.zeros(1, "int8")
    together = threading.Barrier(2, timeout=20)
    first = eng.submit(lambda _: together.wait(), reads=[x])
    second = eng.submit(lambda _: together.wait(), reads=[x])
    first.wait()
    second.wait()


def test_variables_order_without_memory(eng):
    printer = eng.var()
    log = []
    for i in range(50):
        eng.submit(lambda i=i: log.append(i), writes=[printer])
    last = eng.submit(lambda: log.append("end"), reads=[printer])
    last.wait()
    assert log == [*range(50), "end"]
    assert printer.version == 50


def test_an_operation_has_a_name_an_identity_and_an_end(eng, gate):
    def scale():
        pass

    v = eng.var()
    held = eng.submit(gate, writes=[v], name="held")
    op = eng.submit(scale, writes=[v])
    assert held.name == "held" and op.name.endswith("scale") and op.id > held.id
    assert not op.is_done() and "in flight" in repr(op)
    gate.open()
    assert op.wait() is None and op.is_done()


@pytest.mark.parametrize(
    "function, name",
    [(len, "len"), (functools.partial(sorted, [1]), "sorted"), (type("Callable", (), {"__call__": lambda self: 0})(), "Callable")],
    ids=["builtin", "partial", "object"],
)
def test_anything_callable_has_a_name(eng, function, name):
    op = eng.submit(function)
    assert op.name == name
    with contextlib.suppress(est.OperationError):
        op.wait()  # `len` wants an argument


def test_call_promises_the_result(eng, np, gate):
    x = eng.from_dlpack(np.arange(4.0))

    def after_gate(x):
        gate()
        return x + 1

    y = eng.call(after_gate, x, using=np.from_dlpack)
    assert not y.is_ready() and not y.is_defined()
    assert repr(y) == "<estafette.Tensor no shape yet, pending>"
    z = eng.call(np.negative, y, using=np.from_dlpack)
    gate.open()
    z.wait()
    assert np.from_dlpack(z).tolist() == [-1, -2, -3, -4]


def test_call_takes_the_memory_of_the_result_without_a_copy(eng, np):
    made = []

    def make():
        made.append(np.arange(3.0))
        return made[0]

    z = eng.call(make)
    z.wait()
    assert z.data_ptr == made[0].ctypes.data


def test_a_shape_may_be_declared_before_it_is_known(eng, np, gate):
    def make():
        gate()
        return np.zeros((2, 3), "float32")

    for like in (((2, 3), "float32"), np.empty((2, 3), "float32"), eng.empty((2, 3), "float32")):
        z = eng.call(make, like=like)
        assert (z.shape, z.dtype, z.is_defined()) == ((2, 3), "float32", False)
    gate.open()
    eng.wait_all()
    wrong = eng.call(make, like=((4,), "float32"))
    with pytest.raises(est.OperationError, match=r"declared"):
        wrong.wait()


def test_priorities_and_places_are_accepted(eng, gate):
    order = []
    blockers = [eng.submit(gate) for _ in range(2)]
    until(gate.entered.is_set)
    until(lambda: all(op.status == "running" for op in eng.diagnose().operations))
    eng.submit(lambda: order.append("low"), priority=-1, on="cpu")
    eng.submit(lambda: order.append("high"), priority=5, on=(1, 0))
    gate.open()
    eng.wait_all()
    assert all(op.is_done() for op in blockers)
    assert sorted(order) == ["high", "low"]
    with pytest.raises(BufferError, match="cuda:7"):
        eng.submit(lambda: None, on="cuda:7")


@pytest.mark.parametrize("name", ["cuda1", "cudax", "cuda_host:0", "cuda:", "cuda:x", "cuda:-1", "cuda:+1", "cuda:0 "])
def test_what_only_begins_as_the_name_of_a_device_is_refused(eng, name):
    with pytest.raises(ValueError, match=f"device {name}: .* names of devices".replace("+", r"\+")):
        eng.submit(lambda: None, on=name)
    with pytest.raises(ValueError, match="names of devices"):
        eng.empty(1, "int8", device=name)


@pytest.mark.parametrize("shape", [2**63, [2**63], (1, -(2**70))])
def test_a_dimension_that_no_memory_has_is_named(eng, shape):
    with pytest.raises(est.InvalidError, match=r"a shape has dimensions of 64 bits, not .*\d{19}"):
        eng.zeros(shape, "int8")


def test_wait_all_waits_for_everything(eng):
    done = []
    for i in range(20):
        eng.submit(lambda i=i: (time.sleep(0.001), done.append(i)))
    eng.wait_all()
    assert sorted(done) == list(range(20))
    assert eng.stats().in_flight == 0


def test_diagnose_names_the_operations_in_the_way(eng, gate):
    v = eng.var()
    eng.submit(gate, writes=[v], name="slow")
    until(gate.entered.is_set)
    waiting = eng.submit(lambda: None, reads=[v], name="reader")
    diagnosis = eng.diagnose()
    assert not diagnosis.is_idle
    slow, reader = diagnosis.operations
    assert (slow.name, slow.status) == ("slow", "running")
    assert (reader.name, reader.status, reader.id) == ("reader", "waiting", waiting.id)
    assert [(b.id, b.hazard) for b in reader.blocked_by] == [(slow.id, "read after write")]
    assert "`slow`" in str(diagnosis) and "waits for" in str(diagnosis)
    gate.open()
    eng.wait_all()
    assert eng.diagnose().is_idle and str(eng.diagnose()) == "nothing in flight"


def test_stats_count(eng, np):
    before = eng.stats()
    t = eng.from_dlpack(np.zeros(3))
    np.from_dlpack(t)
    after = eng.stats()
    assert (after.imported - before.imported, after.exported - before.exported) == (1, 1)
    assert after.in_flight_limit == 4_096
    del t
    until(lambda: eng.stats().deleters > before.deleters)


def test_a_block_drains_its_engine():
    done = []
    with est.Engine(workers=2) as eng:
        for i in range(10):
            eng.submit(lambda i=i: (time.sleep(0.005), done.append(i)))
    assert sorted(done) == list(range(10))
    with pytest.raises(est.ShutdownError):
        eng.submit(lambda: None)


@pytest.mark.parametrize("end", [lambda eng: eng.shutdown(), lambda eng: eng.__exit__(None, None, None)])
def test_an_end_refuses_what_other_threads_submit_while_it_waits(gate, end):
    eng = est.Engine(workers=1)
    follows = []
    eng.submit(lambda: (gate(), follows.append(eng.call(int))))
    ends = threading.Thread(target=end, args=[eng])
    ends.start()
    until(lambda: not eng._is_usable())
    with pytest.raises(est.ShutdownError):
        eng.submit(int)
    gate.open()
    ends.join(30)
    # What a function submits is a part of what is waited for.
    assert not ends.is_alive() and follows[0].done()


def test_shutdown_reports(np):
    eng = est.Engine(workers=1)
    assert eng.shutdown().drained
    assert eng.shutdown(0).drained


def test_wrong_arguments_are_type_errors(eng, np):
    x = eng.zeros(1, "int8")
    with pytest.raises(TypeError, match="not callable"):
        eng.submit(3)
    with pytest.raises(TypeError, match=r"numpy\.ndarray.*from_dlpack"):
        eng.submit(lambda x: None, reads=[np.zeros(1)])
    with pytest.raises(TypeError, match=r"reads=\[x\]"):
        eng.submit(lambda x: None, reads=3)
    with pytest.raises(TypeError, match="Variable has no data"):
        eng.call(lambda x: None, eng.var())
    with pytest.raises(ValueError, match="timeout"):
        x.wait(timeout=-1)
    with pytest.raises(TypeError):
        est.Tensor()


def test_tensors_can_be_hashed_compared_and_weakly_referenced(eng):
    import weakref

    a, b = eng.zeros(1, "int8"), eng.zeros(1, "int8")
    assert a == a and a != b and len({a, b}) == 2
    reference = weakref.ref(a)
    del a
    assert reference() is None


def test_the_context_of_the_submitter_is_the_context_of_the_body(eng):
    import contextvars

    tag = contextvars.ContextVar("tag", default="none")
    seen = []
    tag.set("submitter")
    op = eng.submit(lambda: (seen.append(tag.get()), tag.set("body")))
    op.wait()
    assert seen == ["submitter"] and tag.get() == "submitter"


def test_a_copy_is_an_operation_and_another_memory(eng, np, gate):
    x = eng.zeros(4, "float32")

    def fill(x):
        gate()
        x[:] = 7

    eng.submit(fill, writes=[x], using=np.from_dlpack)
    copied = eng.from_dlpack(x, copy=True)
    assert not copied.is_ready()
    gate.open()
    copied.wait()
    assert copied.data_ptr != x.data_ptr
    assert np.from_dlpack(copied).tolist() == [7, 7, 7, 7]
    assert eng.from_dlpack(x) is x
    assert eng.from_dlpack(x, device="cpu", copy=False) is x
