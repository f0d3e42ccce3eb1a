"""Operators: functions of one library in the schedule of another, called by name."""

import asyncio
import os
import pathlib
import shutil
import subprocess
import threading

import pytest

import estafette as est
from conftest import run_program


@pytest.fixture
def operators(eng):
    """The registry; what a test has put there is taken out again."""
    before = set(eng.operators)
    yield eng.operators
    for name in set(eng.operators) - before:
        eng.operators.unregister(name)


def values(np, tensor):
    return np.from_dlpack(tensor).tolist()


class TestRegistry:
    def test_an_array_is_not_taken_for_several_results(self, operators, np, eng):
        operators.register("two", lambda x: x * 2, using=np.from_dlpack, inputs=1, outputs=2)
        results = operators["two"](eng.from_dlpack(np.arange(2.0)))
        with pytest.raises(est.OperationError, match="returned ndarray, and outputs=2 was declared"):
            results[0].wait()
        operators.register("pair", lambda x: [x * 2, 0.5], using=np.from_dlpack, inputs=1, outputs=2)
        results = operators["pair"](eng.from_dlpack(np.arange(2.0)))
        assert [values(np, result) for result in results] == [[0.0, 2.0], 0.5]

    def test_several_results_take_the_room_of_one_operation(self, operators, np):
        operators.register("divmod", np.divmod, using=np.from_dlpack, inputs=2, outputs=2)

        async def main():
            async with est.Engine(workers=1, in_flight_limit=2) as eng:
                x = eng.from_dlpack(np.arange(1.0, 4.0))
                quotient, rest = eng.operators["divmod"](x, x)
                await rest
                assert values(np, quotient) == [1.0] * 3

        asyncio.run(main())

    def test_it_is_a_mapping_of_names(self, operators, np):
        def double(x):
            return x * 2

        assert operators.register("double", double, using=np.from_dlpack, inputs=1) is double
        assert "double" in operators and "double" in list(operators) and len(operators) == len(list(operators))
        op = operators["double"]
        assert (op.name, op.kind, op.inputs, op.outputs) == ("double", "allocating", 1, 1)
        assert op.origin.endswith("test_operators.TestRegistry.test_it_is_a_mapping_of_names.<locals>.double")
        assert "double, allocating, 1 inputs, 1 outputs, from " in repr(op)
        operators.unregister("double")
        assert "double" not in operators

    def test_a_decorator_registers_and_leaves_the_function(self, operators, np, eng):
        @operators.register("halve", using=np.from_dlpack)
        def halve(x):
            return x / 2

        assert halve(4) == 2
        assert values(np, operators["halve"](eng.from_dlpack(np.array([4.0])))) == [2.0]

    def test_the_registry_is_one_for_all_engines_and_each_runs_what_it_calls(self, operators, np):
        operators.register("where", lambda: np.array([threading.get_native_id()]))
        with est.Engine(workers=1) as other:
            assert values(np, other.operators["where"]()) == values(np, other.operators["where"]())

    def test_calls_leave_nothing_behind_that_the_exit_looks_at(self, np):
        _, errors = run_program(
            """
            import numpy as np
            import estafette as est

            eng = est.Engine(workers=1)
            eng.operators.register("double", lambda x: x * 2, using=np.from_dlpack, inputs=1)
            x, t = eng.zeros(1, "int8"), eng.zeros(1, "int8")
            lent = np.from_dlpack(t)
            stuck = eng.submit(lambda t: None, writes=[t], name="stuck")
            for _ in range(5):
                eng.operators["double"](x).wait()
            """
        )
        assert "abandoned at exit" in errors and errors.count("`stuck`") == 1 and "more" not in errors, errors

    def test_a_mistaken_name_gets_the_near_ones(self, operators):
        operators.register("softmax", lambda x: x)
        with pytest.raises(est.NoOperatorError, match="there is no operator `sofmax`; near it: `softmax`"):
            operators["sofmax"]
        with pytest.raises(KeyError):
            operators["sofmax"]
        with pytest.raises(est.NoOperatorError):
            operators.unregister("sofmax")

    def test_a_name_is_taken_once(self, operators):
        operators.register("once", lambda x: x)
        with pytest.raises(est.ConflictError, match="operator `once` is registered already, by .*<lambda>; `unregister` takes it out"):
            operators.register("once", lambda x: x)

    def test_what_cannot_be_an_operator_is_refused(self, operators, tmp_path):
        async def asynchronous(x):
            return x

        with pytest.raises(TypeError, match="asynchronous"):
            operators.register("a", asynchronous)
        with pytest.raises(TypeError, match="3 is not callable"):
            operators.register("a", 3)
        with pytest.raises(TypeError, match="not both"):
            operators.register("a", print, destination=True, infer=print)
        with pytest.raises(est.InvalidError, match="no outputs"):
            operators.register("a", print, outputs=0)
        with pytest.raises(est.InvalidError, match="`a` has 65537 outputs, more than 65536"):
            operators.register("a", print, outputs=65537)
        with pytest.raises(est.InvalidError, match=r"nothing\.so: cannot be loaded"):
            operators.load(tmp_path / "nothing.so")


    def test_in_a_forked_child_it_is_a_clear_error(self):
        run_program(
            """
            import os
            import estafette as est

            eng = est.Engine(workers=1)
            eng.operators.register("double", lambda x: x)
            if os.fork() == 0:
                refused = 0
                for use in (lambda: list(eng.operators), lambda: eng.operators["double"], lambda: "double" in eng.operators):
                    try:
                        use()
                    except est.ForkedError:
                        refused += 1
                os._exit(refused)
            assert os.waitstatus_to_exitcode(os.wait()[1]) == 3
            assert list(eng.operators) == ["double"]
            """
        )


class TestCalls:
    def test_a_call_waits_in_the_graph_and_not_on_the_host(self, operators, eng, np, gate):
        operators.register("add", np.add, using=np.from_dlpack, inputs=2)

        def late():
            gate()
            return np.ones(3)

        x = eng.call(late)
        y = operators["add"](x, x)
        z = operators["add"](y, x)
        assert gate.entered.wait(30) and not (x.is_ready() or y.is_defined() or z.is_defined())
        gate.open()
        assert values(np, z) == [3.0] * 3

    def test_a_destination_is_written(self, operators, eng, np):
        def scale(x, out, *, by=1.0):
            np.multiply(x, by, out=out)

        operators.register("scale", scale, using=np.from_dlpack, inputs=1, destination=True)
        x, out = eng.from_dlpack(np.arange(3.0)), eng.zeros(3, "float64")
        assert operators["scale"].kind == "destination"
        assert operators["scale"](x, out=out, by=2.5) is out
        assert values(np, out) == [0.0, 2.5, 5.0]
        # In place, as one asks for it.
        operators["scale"](out, out=[out], by=2)
        assert values(np, out) == [0.0, 5.0, 10.0]
        with pytest.raises(est.InvalidError, match="was given none"):
            operators["scale"](x)

    def test_a_described_result_is_made_by_the_engine(self, operators, eng, np):
        def infer(x, *, times):
            return (times * x.shape[0],), x.dtype

        def repeat(x, out, *, times):
            out[:] = np.tile(x, times)

        operators.register("repeat", repeat, using=np.from_dlpack, inputs=1, infer=infer)
        x = eng.from_dlpack(np.arange(2, dtype="int32"))
        assert operators["repeat"].kind == "inferred"
        made = operators["repeat"](x, times=3)
        assert values(np, made) == [0, 1] * 3 and made.dtype == "int32"
        given = eng.zeros(4, "int32")
        operators["repeat"](x, out=given, times=2)
        assert values(np, given) == [0, 1, 0, 1]
        operators["repeat"](x, out=given, times=3)
        with pytest.raises(est.OperationError, match=r"output 0 of operator `repeat` is int32 \[6\], but was given int32 \[4\]"):
            given.wait()

    def test_several_results_come_each_as_a_promise(self, operators, eng, np):
        operators.register("divmod", lambda a, b: np.divmod(a, b), using=np.from_dlpack, inputs=2, outputs=2)
        a, b = eng.from_dlpack(np.array([7, 9])), eng.from_dlpack(np.array([2, 4]))
        quotient, remainder = operators["divmod"](a, b)
        assert (values(np, quotient), values(np, remainder)) == ([3, 2], [1, 1])

    def test_several_results_may_be_memory_of_an_input_that_is_written_next(self, operators, eng, np, gate):
        def pair(x):
            gate()
            return x, x

        operators.register("pair", pair, outputs=2)
        for _ in range(20):
            x = eng.from_dlpack(np.array([1.0]))
            one, other = operators["pair"](x)
            eng.submit(lambda x: x.fill(2), writes=[x], using=np.from_dlpack)
            assert gate.entered.wait(30)
            gate.open()
            assert (values(np, one), values(np, other)) == ([1.0], [1.0])
            x.wait()

    def test_attributes_are_plain_data(self, operators, eng, np):
        seen = []
        operators.register("see", lambda **attributes: (seen.append(attributes), np.zeros(1))[1])
        sent = {"axis": -1, "keep": True, "eps": 1e-5, "mode": "same", "shape": (2, (3, 4)), "nothing": None}
        operators["see"](**sent).wait()
        assert seen == [sent]
        with pytest.raises(TypeError, match="attribute `bad` is or contains object"):
            operators["see"](bad=object())

    def test_attributes_arrive_as_what_they_are(self, operators, eng, np):
        seen = []
        operators.register("keep", lambda **attributes: (seen.append(attributes), np.zeros(1))[1])
        texts = {"a": "7", "b": "1.5", "c": "true", "d": "null", "e": "[1]", "f": '"quoted"', "g": "NaN", "h": "", "i": "é"}
        numbers = {"large": 10**400, "inf": float("inf"), "zero": -0.0, "list": [1, ["7", None]], "none": ()}
        operators["keep"](**texts, **numbers, nan=float("nan")).wait()
        (arrived,) = seen
        nan = arrived.pop("nan")
        assert nan != nan and str(arrived.pop("zero")) == "-0.0"
        del numbers["zero"]
        assert arrived == texts | numbers | {"list": (1, ("7", None))}
        assert type(arrived["large"]) is int and type(arrived["inf"]) is float
        operators["keep"](axis=np.int64(2), shape=[np.uint8(3), (np.int32(-4),)]).wait()
        assert seen[1] == {"axis": 2, "shape": (3, (-4,))} and type(seen[1]["axis"]) is int

    def test_what_is_no_plain_data_is_refused_by_name(self, operators, eng, np):
        operators.register("refuse", lambda **attributes: np.zeros(1))
        deep, round_trip = [], []
        for _ in range(100_000):
            deep = [deep]
        round_trip.append(round_trip)
        for bad in ({}, {"a": 1}, [{}], b"x", {1}, np.zeros(1), [np.float32(1)], np.bool_(True), 1j):
            with pytest.raises(TypeError, match="attribute `bad` "):
                operators["refuse"](good=1, bad=bad)
        for bad in (deep, (1, [deep]), round_trip, 10**5000, "\ud800", "\0"):
            with pytest.raises(ValueError, match="attribute `bad` |attribute \"bad\" "):
                operators["refuse"](good=1, bad=bad)
        nested = 7
        for _ in range(64):
            nested = (nested,)
        operators["refuse"](good=nested).wait()

    def test_arity_and_operands_are_checked_at_the_call(self, operators, eng, np):
        operators.register("neg", np.negative, using=np.from_dlpack, inputs=1)
        x = eng.zeros(1, "float32")
        with pytest.raises(est.InvalidError, match="takes 1 inputs, not 2"):
            operators["neg"](x, x)
        with pytest.raises(est.InvalidError, match="allocates its results itself"):
            operators["neg"](x, out=x)
        with pytest.raises(TypeError, match=r"expected an estafette\.Tensor, not numpy\.ndarray"):
            operators["neg"](np.zeros(1))

    def test_a_failure_has_the_name_of_the_operator_and_the_exception(self, operators, eng, np):
        def fails(x):
            raise RuntimeError("no ink")

        operators.register("print", fails)
        x = operators["print"](eng.zeros(1, "float32"))
        with pytest.raises(est.OperationError, match="no ink") as caught:
            operators["print"](x).wait()
        assert caught.value.operation == "print" and isinstance(caught.value.__cause__, RuntimeError)

    def test_a_wrong_number_of_results_or_none_is_a_failure(self, operators, eng, np):
        operators.register("two", lambda: (np.zeros(1),) * 3, outputs=2)
        with pytest.raises(est.OperationError, match="operator `two` gave 3 results, not 2"):
            operators["two"]()[1].wait()
        operators.register("none", lambda: None)
        with pytest.raises(est.OperationError, match="NoneType"):
            operators["none"]().wait()

    def test_an_operator_that_was_taken_out_ends_its_calls(self, operators, eng, np, gate):
        def slow(x):
            gate()
            return x + 1

        operators.register("slow", slow, using=np.from_dlpack)
        y = operators["slow"](eng.zeros(1, "float32"))
        assert gate.entered.wait(30)
        operators.unregister("slow")
        gate.open()
        assert values(np, y) == [1.0]


class TestLibraries:
    def test_pytorch_and_jax_functions_are_scheduled_in_one_graph(self, operators, eng, np, torch, jax, jnp, gate):
        operators.register("torch.matmul", torch.matmul, using=torch.from_dlpack, inputs=2)
        operators.register("torch.sort", torch.sort, using=torch.from_dlpack, inputs=1, outputs=2)
        operators.register("jax.sum", jax.jit(jnp.sum, static_argnames="axis"), using=jnp.from_dlpack, inputs=1)
        operators.register("numpy.scale", np.multiply, using=np.from_dlpack, inputs=2)

        def load():
            gate()
            return np.array([[3.0, 1.0], [2.0, 4.0]], "float32")

        call = eng.operators
        x = eng.call(load, name="load")
        square = call["torch.matmul"](x, x)
        total = call["jax.sum"](square, axis=1)
        in_order, positions = call["torch.sort"](total)
        result = call["numpy.scale"](in_order, in_order)
        assert gate.entered.wait(30)
        assert not any(t.is_defined() for t in (square, total, in_order, positions, result))
        gate.open()
        # [[3, 1], [2, 4]] squared is [[11, 7], [14, 18]].
        assert values(np, total) == [18.0, 32.0]
        assert values(np, positions) == [0, 1] and values(np, result) == [324.0, 1024.0]


@pytest.fixture(scope="module")
def arithmetic(tmp_path_factory):
    """A shared library of operators, from `tests/operators/arithmetic.c`."""
    compiler = os.environ.get("CC") or shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    root = pathlib.Path(__file__).parents[3]
    library = tmp_path_factory.mktemp("operators") / "libarithmetic.so"
    command = [compiler, "-std=c11", "-shared", "-fPIC", "-I", root / "bindings/c/include", "-o", library]
    subprocess.run([*command, root / "tests/operators/arithmetic.c"], check=True)
    return library


class TestLibraryInC:
    def test_its_operators_of_three_kinds_run_between_those_of_others(self, operators, eng, np, arithmetic, gate):
        names = operators.load(arithmetic)
        assert names == ["arithmetic.axpy", "arithmetic.outer", "arithmetic.split"]
        assert [operators[name].kind for name in names] == ["destination", "inferred", "allocating"]
        assert operators[names[0]].origin == str(arithmetic)
        operators.register("numpy.flatten", lambda x: x.reshape(-1).copy(), using=np.from_dlpack, inputs=1)

        def load():
            gate()
            return np.array([1, 2, 3], "float32")

        x, y = eng.call(load), eng.from_dlpack(np.array([10, 20, 30], "float32"))
        op = operators["arithmetic.axpy"]
        assert op(x, y, out=y, alpha=2) is y
        products = operators["arithmetic.outer"](x, y)
        low, high = operators["arithmetic.split"](operators["numpy.flatten"](products), at=40.5)
        assert gate.entered.wait(30) and not any(t.is_ready() for t in (y, products, low, high))
        gate.open()
        assert values(np, y) == [12.0, 24.0, 36.0]
        assert values(np, products) == [[12.0, 24.0, 36.0], [24.0, 48.0, 72.0], [36.0, 72.0, 108.0]]
        assert values(np, low) == [12.0, 24.0, 36.0, 24.0, 36.0] and values(np, high) == [48.0, 72.0, 72.0, 108.0]

    def test_what_it_says_of_a_failure_is_the_failure(self, operators, eng, np, arithmetic):
        operators.load(arithmetic)
        x, y = eng.zeros(3, "float32"), eng.zeros(2, "float32")
        operators["arithmetic.axpy"](x, y, out=y)
        with pytest.raises(est.OperationError, match="tensors of one length, not of 3, 2 and 2"):
            y.wait()
        with pytest.raises(est.OperationError, match="axpy takes float32"):
            out = eng.zeros(3, "int32")
            operators["arithmetic.axpy"](x, x, out=out)
            out.wait()

    def test_it_is_loaded_whole_or_not_at_all(self, operators, eng, arithmetic):
        operators.register("arithmetic.split", print)
        with pytest.raises(est.ConflictError, match="`arithmetic.split` is registered already, by builtins.print"):
            operators.load(arithmetic)
        assert "arithmetic.axpy" not in operators
        with pytest.raises(est.InvalidError, match="exports no function `estafette_operators`"):
            operators.load(est._estafette.__file__)
