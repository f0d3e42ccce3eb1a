"""What people write by mistake: each is refused where it is written, with the argument's name and what would do."""

import concurrent.futures

import pytest

import estafette as est
from conftest import peer, until


def nothing(*_):
    pass


class TestNumbers:
    @pytest.mark.parametrize("argument", ["workers", "in_flight_limit"])
    @pytest.mark.parametrize("value", [0, -1, 10**30])
    def test_a_count_out_of_range_is_named(self, argument, value):
        with pytest.raises(est.InvalidError, match=rf"^{argument} must be at least 1, and below 2\*\*64, not {value}$"):
            est.Engine(**{argument: value})

    @pytest.mark.parametrize("value", ["2", 1.5])
    def test_a_count_that_is_no_number_is_named(self, value):
        with pytest.raises(TypeError, match=rf"^workers must be a whole number, not {type(value).__name__}$"):
            est.Engine(workers=value)

    def test_more_workers_than_a_machine_can_have_are_refused_and_not_tried(self):
        for workers in (1025, 3000, 10**9):
            with pytest.raises(est.InvalidError, match=f"{workers} workers: an engine has at most 1024"):
                est.Engine(workers=workers)

    @pytest.mark.parametrize("argument", ["lease_timeout", "watchdog"])
    @pytest.mark.parametrize("value", [-1, float("nan")])
    def test_a_time_that_is_none_is_named(self, argument, value):
        with pytest.raises(ValueError, match=rf"^{argument} must be a number of seconds"):
            est.Engine(1, **{argument: value})

    def test_times_that_no_clock_reaches_are_no_limit(self, eng, np):
        t = eng.zeros(1, "int8")
        for endless in (float("inf"), 1e300):
            t.wait(endless)
            eng.wait_all(endless)
        with pytest.raises(ValueError, match="timeout"):
            t.wait(-1e300)

    def test_an_infinite_lease_timeout_is_none_and_not_the_default(self, np):
        with est.Engine(workers=1, lease_timeout=float("inf")) as engine:
            t = engine.zeros(1, "int8")
            taken = concurrent.futures.ThreadPoolExecutor(1).submit(np.from_dlpack, t)
            array = taken.result()
            op = engine.submit(lambda x: x.fill(1), writes=[t], using=np.from_dlpack)
            with pytest.raises(TimeoutError):
                op.wait(0.05)
            del array, taken
            op.wait()


class TestTypesAndShapes:
    @pytest.mark.parametrize(("given", "is_"), [(int, "int64"), (float, "float64"), (complex, "complex128"), (bool, "bool")])
    def test_the_types_of_python_are_what_numpy_takes_them_for(self, eng, np, given, is_):
        assert eng.zeros(2, given).dtype == is_ == np.zeros(2, given).dtype.name

    def test_the_other_byte_order_is_refused_and_not_taken_for_ours(self, eng, np):
        other = np.dtype("float32").newbyteorder()
        with pytest.raises(ValueError, match="byte order"):
            eng.empty(2, other)

    @pytest.mark.parametrize("name", ["f4", "object", "", None, 3])
    def test_another_name_is_refused_with_some_that_are_not(self, eng, name):
        with pytest.raises(ValueError, match=r'`.*` is not an element type.*"float32"'):
            eng.empty(2, name)

    def test_a_shape_that_nothing_can_have_is_refused_at_submission(self, eng, np):
        for shape in ((-2,), (2, -1), (2**62, 4)):
            with pytest.raises(est.InvalidTensorError, match="shape"):
                eng.call(lambda: np.ones(2), like=(shape, "float32"))

    @pytest.mark.parametrize("like", [3, (2,), ((2,), "float32", 1)])
    def test_what_a_result_cannot_be_like_is_refused(self, eng, np, like):
        with pytest.raises(TypeError, match=r"\(shape, dtype\)"):
            eng.call(lambda: np.ones(2), like=like)


class TestRoom:
    def test_no_room_is_a_memory_error_too(self, eng):
        with pytest.raises(MemoryError, match="out of host memory for 1152921504606846976 bytes") as caught:
            eng.empty(2**60, "uint8")
        assert isinstance(caught.value, est.OutOfMemoryError) and isinstance(caught.value, est.DeviceError)
        assert eng.zeros(4, "uint8").is_ready()


class TestOperands:
    @pytest.mark.parametrize("argument", ["reads", "writes"])
    def test_an_operand_without_a_list_is_told_how(self, eng, argument):
        t = eng.zeros(1, "int8")
        for single in (t, 5, eng.var()):
            with pytest.raises(TypeError, match=rf"`{argument}` is a list, not .*: write `{argument}=\[x\]`"):
                eng.submit(nothing, **{argument: single})
        with pytest.raises(TypeError, match=rf"`{argument}=\[x\]`"):
            eng.access(**{argument: t})

    def test_alias_of_too(self, eng, np):
        t = eng.zeros(1, "int8")
        with pytest.raises(TypeError, match=r"`alias_of=\[x\]`"):
            eng.call(nothing, t, alias_of=t)

    def test_a_using_that_cannot_be_called_is_refused_at_submission(self, eng):
        t = eng.zeros(1, "int8")
        for submit in (lambda: eng.submit(nothing, reads=[t], using=3), lambda: eng.call(nothing, t, using="np.asarray")):
            with pytest.raises(TypeError, match="`using`"):
                submit()

    def test_a_generator_of_operands_keeps_its_own_error(self, eng):
        def operands():
            yield eng.zeros(1, "int8")
            raise LookupError("no more")

        with pytest.raises(LookupError, match="no more"):
            eng.submit(nothing, reads=operands())


class TestValues:
    def test_a_promise_is_no_number(self, eng, np):
        # Python would read its bytes as digits.
        t = eng.from_dlpack(np.frombuffer(bytearray(b"42"), "uint8"))
        for kind in (int, float):
            with pytest.raises(TypeError, match="a promise and no number"):
                kind(t)

    def test_a_scalar_of_numpy_is_a_result(self, eng, np):
        x = eng.from_dlpack(np.arange(5.0))
        total = eng.call(np.sum, x, using=np.from_dlpack)
        highest = eng.call(np.dot, x, x, using=np.from_dlpack, like=((), "float64"))
        assert (np.from_dlpack(total), total.shape, total.dtype) == (10, (), "float64")
        assert np.from_dlpack(highest) == 30
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            later = eng.from_future(pool.submit(np.float32, 2.5))
            assert np.from_dlpack(later) == 2.5

    def test_but_a_number_of_python_has_no_type(self, eng):
        with pytest.raises(est.OperationError, match="float has no `__dlpack__`"):
            eng.call(lambda: 3.5).wait()

    def test_everything_says_what_it_is(self, eng, np):
        t = eng.zeros((2, 3), "float32")
        v = eng.var()
        assert repr(v) == f"<estafette.Variable {v.id}>"
        assert repr(t.for_write()) == "<estafette.Exporter for write of <estafette.Tensor float32[2, 3], cpu:0, ready>>"
        with t.read() as view:
            assert repr(view) == "<estafette.View for read of float32[2, 3]>"
        assert repr(view) == "<estafette.View whose block has ended>"
        assert repr(eng.operators).startswith("<estafette.Operators: ")


class TestProducers:
    def test_a_type_error_about_the_data_is_not_taken_for_an_unknown_argument(self, eng):
        class Refuses:
            asked = 0

            def __dlpack_device__(self):
                return 1, 0

            def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
                self.asked += 1
                raise TypeError("no strings attached")

        for copy in (None, True):
            refuses = Refuses()
            with pytest.raises(TypeError, match="no strings attached"):
                eng.from_dlpack(refuses, copy=copy)
            assert refuses.asked == 1

    def test_a_wrapper_that_passes_anything_on_is_asked_with_less(self, eng, np):
        class Old:
            def __dlpack__(self, stream=None):
                return np.arange(3.0).__dlpack__()

        class Wrapper:
            def __dlpack_device__(self):
                return 1, 0

            def __dlpack__(self, **arguments):
                return Old().__dlpack__(**arguments)

        assert eng.from_dlpack(Wrapper()).shape == (3,)


def test_a_library_of_a_subinterpreter_is_refused():
    """A second interpreter's end would be taken for that of the process."""
    from conftest import run_program

    out, err = run_program(
        """
        import estafette
        try:
            import _interpreters as interpreters
        except ImportError:
            import _xxsubinterpreters as interpreters
        import warnings
        inside = interpreters.create()
        program = '''
        try:
            import estafette
        except ImportError as error:
            print(error, flush=True)
        '''
        import textwrap
        interpreters.run_string(inside, textwrap.dedent(program))
        interpreters.destroy(inside)
        with estafette.Engine(workers=1) as eng:
            eng.submit(print, name="still works").wait()
        print("end")
        """
    )
    assert "main interpreter only" in out and out.strip().endswith("end"), (out, err)


def test_a_full_window_on_an_event_loop_says_what_to_write(np):
    import asyncio

    async def main():
        with est.Engine(workers=1, in_flight_limit=1) as eng:
            gate = concurrent.futures.Future()
            t = eng.from_future(gate)
            with pytest.raises(est.InFlightLimitError, match=r"await eng\.submit_async"):
                eng.submit(nothing, reads=[t])
            gate.set_result(np.ones(1))
            await t

    asyncio.run(main())


def test_leaving_an_engine_on_an_event_loop_says_what_to_write(np):
    import asyncio

    gate = concurrent.futures.Future()

    async def main():
        eng = est.Engine(workers=1)
        late = eng.from_future(gate)
        for wait in (eng.wait_all, eng.shutdown, lambda: eng.__exit__(None, None, None)):
            with pytest.raises(est.WouldBlockError, match="async with"):
                wait()
        gate.set_result(np.ones(1))
        await late
        eng.shutdown()

    asyncio.run(main())


def test_an_asynchronous_body_whose_loop_is_gone_fails_and_says_so(eng, np):
    import asyncio
    import gc

    async def forever(_):
        await asyncio.sleep(1000)

    async def begin():
        op = eng.submit(forever, writes=[t], using=np.from_dlpack)
        await asyncio.sleep(0)
        return op

    t = eng.zeros(1, "int8")
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *_: None)
    op = loop.run_until_complete(begin())
    loop.run_until_complete(asyncio.sleep(0.05))
    loop.close()
    del loop
    until(lambda: gc.collect() is not None and op.is_done())
    with pytest.raises(est.OperationError, match="event loop"):
        op.wait()


def test_other_event_loops_are_told_what_to_do():
    peer("numpy")
    with est.Engine(workers=1) as eng:
        t = eng.zeros(1, "int8")
        gate = concurrent.futures.Future()
        late = eng.from_future(gate)

        async def main():
            await late

        with pytest.raises(RuntimeError, match="asyncio.*t.wait"):
            main().send(None)
        gate.set_exception(ValueError("never"))
        with pytest.raises(est.OperationError, match="never"):
            late.wait()
        t.wait()
