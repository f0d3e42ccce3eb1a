"""Tensors anywhere among the arguments of a call, and what makes arrays of them."""

import asyncio
import collections
import dataclasses
import functools
import inspect
import sys
import threading
import time
import weakref

import pytest

import estafette as est
from conftest import peer


@dataclasses.dataclass(frozen=True)
class Layer:
    weight: object
    scale: int = 2


@dataclasses.dataclass
class Slots:
    __slots__ = ("weight",)
    weight: object


@dataclasses.dataclass
class Step:
    weight: object
    step: int


Pair = collections.namedtuple("Pair", "left right")


class Fit(tuple):
    """As what functions of `scipy.stats` return."""

    def __new__(cls, x):
        made = tuple.__new__(cls, (x, 3))
        made.tag = "kept"
        return made


class Tagged(list):
    def __init__(self, x):
        super().__init__([x])
        self.tag = "kept"


class Sealed(list):
    """A list that refuses changes."""

    def __init__(self, x):
        super().__init__([x])
        self.tag = "kept"

    def __setitem__(self, place, item):
        raise TypeError("it cannot be changed")

    append = extend = __setitem__


class Mirror(dict):
    """As `transformers.utils.ModelOutput`."""

    def __init__(self, *items):
        self.tag = "kept"
        for key, item in enumerate(items):
            self[key] = item

    def __setitem__(self, key, item):
        super().__setitem__(key, item)
        self.x = item


class Frozen(dict):
    def __init__(self, x):
        super().__init__({0: x})
        self.tag = "kept"

    def __copy__(self):
        return Frozen(self[0])

    def __setitem__(self, key, item):
        raise TypeError("frozen")



@pytest.fixture
def ones(eng, np):
    return eng.from_dlpack(np.ones(3))


def value(np, t):
    return np.from_dlpack(t).tolist()


class TestArguments:
    def test_a_tensor_may_be_anywhere(self, eng, np, ones):
        def add(first, *rest, named, other=0):
            for array in (first, rest[0][0], rest[0][1]["x"], rest[1].left, rest[2].weight, rest[3].weight, *named):
                assert type(array) is np.ndarray
            assert (rest[0][1]["y"], rest[1].right, rest[2].scale, other) == ("y", None, 5, 7)
            assert (type(rest[0]), type(rest[1]), type(rest[2])) == (list, Pair, Layer)
            return first + rest[0][0] + rest[0][1]["x"] + rest[1].left + rest[2].weight + rest[3].weight + named[0]

        shared = [ones, {"x": ones, "y": "y"}]
        layer = Layer(ones, 5)
        t = eng.call(
            add, ones, shared, Pair(ones, None), layer, Slots(ones), named=(ones,), other=7, using=np.from_dlpack
        )
        assert value(np, t) == [7.0] * 3
        # The caller's containers are as they were.
        assert shared[0] is ones and shared[1]["x"] is ones and layer.weight is ones

    def test_containers_keep_their_kind(self, eng, np, ones):
        ordered = collections.OrderedDict(b=ones, a=1)
        missing = collections.defaultdict(int, x=ones)

        def look(ordered, missing):
            assert type(ordered) is collections.OrderedDict and list(ordered) == ["b", "a"]
            assert missing["nothing"] == 0
            return ordered["b"] + missing["x"]

        assert value(np, eng.call(look, ordered, missing, using=np.from_dlpack)) == [2.0] * 3
        assert "nothing" not in missing

    @pytest.mark.parametrize("kind", [Fit, Tagged, Sealed, Mirror, Frozen])
    def test_containers_of_classes_with_ways_of_their_own(self, eng, np, ones, kind):
        def x_of(container):
            assert type(container) is kind and container.tag == "kept"
            assert getattr(container, "x", container[0]) is container[0]
            return container[0]

        t = eng.call(lambda container: kind(x_of(container) + 1), kind(ones), using=np.from_dlpack)
        assert value(np, x_of(t.result())) == [2.0] * 3

    def test_containers_are_passed_as_they_were_at_the_call(self, eng, np, ones, gate):
        eng.submit(gate, writes=[ones])
        fit, tagged, mapping, slots = Fit(ones), Tagged(ones), {"x": ones, "step": 1}, Slots(ones)
        layer = Step(ones, 1)
        nested = {"inside": [ones, 1]}
        seen = []

        def look(fit, tagged, mapping, slots, layer, nested):
            seen.append((fit.tag, tagged.tag, len(tagged), mapping["step"], list(mapping), layer.step, nested["inside"][1]))
            return mapping["x"] + slots.weight

        t = eng.call(look, fit, tagged, mapping, slots, layer, nested, using=np.from_dlpack)
        fit.tag = tagged.tag = "later"
        tagged.append(2)
        mapping.update(x=None, step=2, more=3)
        slots.weight = None
        layer.step = nested["inside"][1] = 2
        gate.open()
        assert value(np, t) == [2.0] * 3
        assert seen == [("kept", "kept", 1, 1, ["x", "step"], 1, 1)]

    def test_a_named_tuple_written_in_c(self, eng, np, ones):
        made = time.struct_time([ones, *range(8)])
        assert value(np, eng.call(lambda made: made.tm_year + made.tm_mon, made, using=np.from_dlpack)) == [1.0] * 3

    def test_what_holds_no_tensor_is_the_very_object(self, eng, np, ones):
        inside = [1, {"a": 2}]
        outside = [inside, ones]
        cyclic = []
        cyclic.append(cyclic)

        def look(x, a, b, c):
            assert a is inside and b[0] is inside and c is cyclic
            return x

        eng.call(look, ones, inside, outside, cyclic, using=np.from_dlpack).wait()

    def test_the_operation_waits_for_a_tensor_in_a_container(self, eng, np):
        late = eng.call(lambda: np.full(2, 4.0))
        assert value(np, eng.call(lambda items: items["x"][0] * 2, {"x": [late]}, using=np.from_dlpack)) == [8.0, 8.0]

    def test_the_failure_of_a_tensor_in_a_container_is_the_failure(self, eng, np):
        def fails():
            raise ValueError("no data")

        broken = eng.call(fails, name="load")
        with pytest.raises(est.OperationError, match="no data"):
            eng.call(lambda items: items[0], [broken], using=np.from_dlpack).wait()

    def test_a_variable_among_arguments_is_refused(self, eng, ones):
        for arguments in ((eng.var(),), ([eng.var()],)):
            with pytest.raises(TypeError, match="a Variable has no data"):
                eng.call(lambda *_: None, ones, *arguments)

    def test_partial_functions_and_names(self, eng, np, ones):
        t = eng.call(functools.partial(np.sum, axis=0), [ones, ones])
        assert value(np, t) == [2.0] * 3
        inner = functools.partial(lambda a, b, c: a + b + c, 1)
        assert value(np, eng.call(inner, ones, c=2, using=np.from_dlpack)) == [4.0] * 3

    def test_an_option_that_is_a_parameter_too_is_refused(self, eng, np, ones):
        class Step:
            def method(self, x, priority=0):
                return x + priority

            def __call__(self, x, *, outputs=1):
                return x + outputs

        def named(x, name, copy=True):
            return x + len(name)

        @functools.wraps(named)
        def passes_on(*args, **kwargs):
            return named(*args, **kwargs)

        for function, option in [
            (named, {"name": "ab"}),
            (named, {"copy": True}),
            (lambda x, *, using: x, {"using": np.from_dlpack}),
            (Step().method, {"priority": 1}),
            (Step(), {"outputs": 2}),
            (passes_on, {"name": "ab"}),
            (np.ones, {"like": np.ones(3)}),
            (lambda x, like=None: x, {"like": ((3,), "float64")}),
            (functools.partial(named, name="ab"), {"copy": True}),
        ]:
            (name,) = option
            for call in (eng.call, eng.call_async):
                with pytest.raises(TypeError, match=rf"`{name}` is an option .*functools\.partial\(fn, {name}=.*eng\.wrap\(fn, {name}="):
                    call(function, ones, **option)

    def test_an_option_that_cannot_be_meant_for_the_function_is_none_of_its_parameters(self, eng, np, ones):
        def named(x, name="a", /, *args, copy=True, **kwargs):
            return x + len(name)

        def plain(x, name):
            return x + len(name)

        partial = functools.partial(plain, name="ab")
        calls = [
            eng.call(named, ones, name="operation", using=np.from_dlpack),
            eng.call(plain, ones, "a", name="operation", using=np.from_dlpack),
            eng.call(partial, ones, name="operation", using=np.from_dlpack),
            eng.call(np.add, ones, 1, name="operation", like=((3,), "float64")),
            eng.wrap(plain, name="operation", using=np.from_dlpack)(ones, "a"),
            eng.wrap(plain, name="operation", using=np.from_dlpack)(ones, name="a"),
            eng.wrap(lambda x, name="a": x + 1, name="operation", using=np.from_dlpack)(ones),
        ]
        assert [value(np, t) for t in calls] == [[2.0] * 3, [2.0] * 3, [3.0] * 3, *[[2.0] * 3] * 4]
        copied = eng.call(functools.partial(np.array, copy=True), ones, dtype="int8")
        copied.wait()
        assert copied.dtype == "int8"
        # NumPy's own `like` is an array of a library.
        assert value(np, eng.call(np.ones, 3, like=((3,), "float64"))) == [1.0] * 3

    def test_a_signature_that_cannot_be_had_leaves_options_to_the_call(self, eng, np, ones):
        class Broken:
            @property
            def __signature__(self):
                raise NameError("an annotation")

            def __call__(self, x):
                return x + 1

        assert value(np, eng.call(Broken(), ones, name="a", using=np.from_dlpack)) == [2.0] * 3
        assert value(np, eng.wrap(Broken(), name="a", using=np.from_dlpack)(ones)) == [2.0] * 3

    def test_a_signature_is_looked_at_once_for_each_function(self, eng, np, ones, monkeypatch):
        looked_at = []
        signature = inspect.signature
        monkeypatch.setattr(inspect, "signature", lambda function: (looked_at.append(function), signature(function))[1])
        function = functools.wraps(np.add)(lambda *args, **kwargs: np.add(*args, **kwargs))
        for called in (np.add, np.sum, function):
            for _ in range(3):
                eng.call(called, ones, *([1] if called is not np.sum else []), name="a", using=np.from_dlpack).wait()
        # Another test may have had NumPy's looked at.
        assert looked_at.count(np.add) <= 1 and looked_at.count(np.sum) <= 1 and looked_at.count(function) == 1
        eng.wrap(np.multiply)
        assert np.multiply not in looked_at
        freed = weakref.ref(function)
        looked_at.clear()
        del function, called
        assert freed() is None

    def test_an_asynchronous_function_gets_arguments_too(self, np):
        async def main():
            async with est.Engine(workers=1) as eng:
                x = eng.from_dlpack(np.ones(2))

                async def add(items, k):
                    await asyncio.sleep(0)
                    return items["x"] + k

                promise = await eng.call_async(add, {"x": x}, k=3, using=np.from_dlpack)
                return value(np, await promise)

        assert asyncio.run(main()) == [4.0, 4.0]

    def test_a_generator_function_is_refused_at_once(self, eng, ones):
        def generate(x, k):
            yield x

        with pytest.raises(TypeError, match="generator"):
            eng.call(generate, ones, 3)

    def test_a_partial_writes_no_tensor(self, eng, np, ones):
        for call in (functools.partial(np.add, out=ones), functools.partial(functools.partial(np.add, 1), out=(ones,))):
            with pytest.raises(TypeError, match="a tensor in `out` would be written to"):
                eng.call(call, 1.0, using=np.from_dlpack)

    def test_a_tensor_in_a_deque(self, eng, np, ones):
        class Window(collections.deque):
            tag = None

        window = Window([ones, 2.0], maxlen=5)
        window.tag = "kept"
        t = eng.call(lambda w: (w[0] + w[1], type(w).__name__, w.tag, w.maxlen), window, using=np.from_dlpack)
        array, *rest = t.result(30)
        assert value(np, array) == [3.0] * 3 and rest == ["Window", "kept", 5]
        assert list(window) == [ones, 2.0]

    def test_a_tensor_in_a_partial_is_ordered(self, eng, np):
        x = eng.zeros(3, "float64")
        release = threading.Event()
        eng.submit(lambda x: (release.wait(60), x.fill(7)), writes=[x], using=np.from_dlpack)
        results = [
            eng.call(functools.partial(np.add, x), 1.0),
            eng.call(functools.partial(lambda a, b: a + b, b=x), 1.0, using=np.from_dlpack),
            eng.wrap(functools.partial(np.add, x))(1.0),
            eng.call(lambda f: f(1.0), functools.partial(functools.partial(np.add), x), using=np.from_dlpack),
        ]
        release.set()
        assert [value(np, t) for t in results] == [[8.0] * 3] * 4

    @pytest.mark.parametrize(
        "held", [lambda t: {t}, lambda t: frozenset([(t,)]), lambda t: {1: t}.values(), lambda t: {t: 1}.keys(), lambda t: [{1: t}.items()]]
    )
    def test_a_tensor_where_no_array_can_stand_is_refused(self, eng, np, ones, held):
        with pytest.raises(TypeError, match=r"in a (set|frozenset|dict_\w+): pass a list"):
            eng.call(len, held(ones), using=np.from_dlpack)
        # Others are passed on.
        other = held(3)
        assert eng.call(lambda it: it is other, other).result(30) is True


class TestUsing:
    def test_a_function_of_an_array_library_gets_its_arrays(self, eng, np, ones):
        seen = []

        def probe(x):
            seen.append(type(x))

        eng.submit(probe, reads=[ones]).wait()
        assert value(np, eng.call(np.add, ones, ones)) == [2.0] * 3
        # A function of no library gets the tensor.
        assert seen == [est.Tensor]

    def test_jax_and_torch(self, eng, np, jnp, torch, ones):
        assert value(np, eng.call(jnp.add, ones, ones)) == [2.0] * 3
        assert value(np, eng.call(torch.add, ones, ones)) == [2.0] * 3
        assert value(np, eng.call(torch.nn.functional.relu, ones)) == [1.0] * 3

    def test_methods_of_the_classes_of_a_library(self, eng, np, torch, ones):
        for method in (np.ndarray.sum, torch.Tensor.sum, torch.Tensor.sum_to_size):
            arguments = (3,) if method is torch.Tensor.sum_to_size else ()
            assert np.sum(np.from_dlpack(eng.call(method, ones, *arguments))) == 3.0, method

    def test_what_a_library_compiles_and_objects_of_its_classes_get_its_arrays(self, eng, np, jax, torch, ones):
        class Net(torch.nn.Module):
            def forward(self, x):
                return torch.relu(x) + 1

        assert value(np, eng.call(jax.jit(lambda x: x + 1), ones)) == [2.0] * 3
        assert value(np, eng.call(Net(), ones)) == [2.0] * 3

    def test_objects_of_other_classes_get_the_tensor(self, eng, ones):
        class Probe:
            def __call__(self, x):
                self.seen = type(x)

        probe = Probe()
        eng.submit(probe, reads=[ones]).wait()
        assert probe.seen is est.Tensor

    def test_an_engine_has_a_default(self, np):
        with est.Engine(workers=1, using=np.from_dlpack) as eng:
            x = eng.from_dlpack(np.ones(2))
            assert value(np, eng.call(lambda x: x + 1, x)) == [2.0, 2.0]
            kinds = []
            eng.submit(lambda x: kinds.append(type(x)), reads=[x]).wait()
            eng.submit(lambda x: kinds.append(type(x)), reads=[x], using=lambda t: t).wait()
            with eng.program("p") as program:
                program.submit(lambda x: kinds.append(type(x)), reads=[x])
            program.replay().wait()
            assert kinds == [np.ndarray, est.Tensor, np.ndarray]

    def test_a_library_gets_its_own_arrays_unless_the_default_is_a_programs(self, np):
        torch = pytest.importorskip("torch")
        x = torch.tensor([-1.0, 2.0])
        module = torch.nn.Identity()
        for default in (np.from_dlpack, torch.from_dlpack):
            with est.Engine(workers=1, using=default) as eng:
                assert value(np, eng.call(torch.relu, eng.from_dlpack(x))) == [0.0, 2.0]
                assert value(np, eng.call(np.negative, eng.from_dlpack(x))) == [1.0, -2.0]
                assert value(np, eng.call(module, eng.from_dlpack(x))) == [-1.0, 2.0]
                kinds = []

                def of_numpy(a):
                    kinds.append(type(a))

                # NumPy's functions take the arrays of others.
                of_numpy.__module__ = "numpy"
                eng.call(of_numpy, eng.from_dlpack(x)).wait()
                assert kinds == [np.ndarray if default is np.from_dlpack else torch.Tensor]
        made = []

        def mine(t):
            made.append(t)
            return torch.from_dlpack(t)

        with est.Engine(workers=1, using=mine) as eng:
            assert value(np, eng.call(torch.relu, eng.from_dlpack(x))) == [0.0, 2.0]
        assert len(made) == 1

    def test_a_lease_ends_with_its_block_although_the_engine_has_a_default(self, np):
        with est.Engine(workers=1, using=np.from_dlpack) as eng:
            t = eng.zeros(2, "int64")
            for value in range(2):
                with t.write() as view:
                    np.from_dlpack(view)[:] = value
            assert t.tolist() == [1, 1]

    def test_a_view_says_how_its_elements_are_reached(self, eng):
        with eng.zeros(2, "int64").write() as view:
            for use in (lambda: view[0], lambda: view.__setitem__(0, 7)):
                with pytest.raises(TypeError, match=r"t\.write\(using=np\.from_dlpack\)"):
                    use()

    @pytest.mark.parametrize("library", ["PIL.Image", "cv2", "numba.core", "pandas", "scipy.ndimage", "skimage", "sklearn.svm"])
    def test_functions_of_libraries_without_arrays_of_their_own_get_those_of_numpy(self, eng, np, ones, library):
        def function(x):
            kinds.append(type(x))

        kinds = []
        function.__module__ = library
        eng.call(function, ones).wait()
        torch = peer("torch")
        with est.Engine(workers=1, using=torch.from_dlpack) as other:
            other.call(function, ones).wait()
        # Functions of these two can take arrays of several libraries.
        takes_many = library.split(".")[0] in ("scipy", "sklearn")
        assert kinds == [np.ndarray, torch.Tensor if takes_many else np.ndarray]

    def test_kernels_of_numba_get_tensors(self, eng, ones):
        kinds = []

        def kernel(x):
            kinds.append(type(x))

        kernel.__module__ = "numba.cuda.dispatcher"
        eng.call(kernel, ones).wait()
        assert kinds == [est.Tensor]

    def test_functions_of_scipy(self, eng, np, ones):
        ndimage = peer("scipy.ndimage")
        assert value(np, eng.call(ndimage.maximum_filter, ones, 3)) == [1.0] * 3
        assert value(np, eng.call(peer("numba").njit(lambda x: x + 1), ones)) == [2.0] * 3

    def test_what_cannot_be_called_is_refused(self):
        with pytest.raises(TypeError, match="`using` is a function"):
            est.Engine(using="numpy")


class TestWrapped:
    def test_wrap_submits(self, eng, np, ones):
        add = eng.wrap(np.add, like=((3,), "float64"))
        t = add(ones, 2)
        assert t.shape == (3,) and value(np, t) == [3.0] * 3
        assert add.__name__ == "add"

    def test_op_orders_what_it_writes(self, eng, np, ones):
        @eng.op(writes="out", using=np.from_dlpack)
        def scale(x, factor, *, out):
            """Scales."""
            np.multiply(x, factor, out=out)

        y = eng.zeros(3, "float64")
        assert isinstance(scale(ones, 3, out=y), est.Operation)
        # In place: what it reads and what it writes are one tensor.
        scale(y, factor=2, out=y)
        assert value(np, y) == [6.0] * 3
        assert (scale.__name__, scale.__doc__) == ("scale", "Scales.")

    def test_op_orders_tensors_that_are_defaults(self, eng, np, gate):
        y, factor = eng.zeros(3, "float64"), eng.zeros(1, "float64")
        seen = []

        @eng.op(writes="out", using=np.from_dlpack)
        def scale(x, factor=factor, steps=2, *, out=y):
            seen.append((type(factor), steps))
            np.multiply(x, factor, out=out)

        def fill(factor):
            gate()
            factor[:] = 3

        eng.submit(fill, writes=[factor], using=np.from_dlpack)
        scale(eng.from_dlpack(np.ones(3)))
        gate.open()
        assert value(np, y) == [3.0] * 3 and seen == [(np.ndarray, 2)]

    def test_op_passes_each_tensor_to_its_parameter(self, eng, np):
        a, b, c = (eng.from_dlpack(np.full(2, float(n)), writable=True) for n in (1, 2, 4))

        @eng.op(reads=["items"], writes=["first", "last"], using=np.from_dlpack)
        def mix(first, items, last):
            first += items["b"]
            last += first

        mix(a, {"b": b}, c).wait()
        assert [value(np, t)[0] for t in (a, b, c)] == [3.0, 2.0, 7.0]

    @pytest.mark.parametrize(("reads", "is_skipped"), [("acc", True), (["acc", "x"], True), (None, False), ("x", False)])
    def test_the_failure_of_what_op_updates_is_followed_where_reads_names_it_too(self, eng, np, ones, reads, is_skipped):
        called = []

        @eng.op(reads=reads, writes="acc", using=np.from_dlpack)
        def add(acc, x=None):
            called.append(acc.flags.writeable)

        acc = eng.zeros(3, "float64")
        assert eng.submit(lambda acc: 1 / 0, writes=[acc], name="load").exception(30).operation == "load"
        error = add(acc).exception(30) if reads == "acc" else add(acc, ones).exception(30)
        assert (error is not None, called) == ((True, []) if is_skipped else (False, [True]))
        assert not is_skipped or error.operation == "load"

    def test_op_follows_the_failure_of_a_tensor_that_another_parameter_reads(self, eng, np):
        called = []

        @eng.op(writes="out", using=np.from_dlpack)
        def copy(x, out):
            called.append(x)

        y = eng.zeros(3, "float64")
        eng.submit(lambda y: 1 / 0, writes=[y], name="load").exception(30)
        assert copy(y, y).exception(30).operation == "load"
        assert called == []

    def test_op_fills_in_positional_only_parameters(self, eng, np, ones):
        acc = eng.zeros(3, "float64")

        def add(x, factor=2, acc=acc, /, *, more=1):
            acc += x * factor + more

        add = eng.op(add, writes="acc", using=np.from_dlpack)
        add(ones).wait(30)
        add(ones, 3, more=0).wait(30)
        assert value(np, acc) == [6.0] * 3

    def test_op_without_writes_promises_its_result(self, eng, np, ones):
        @eng.op(using=np.from_dlpack)
        def double(x):
            return x * 2

        assert value(np, double(ones)) == [2.0] * 3

    def test_op_takes_a_function_without_a_signature(self, eng):
        with pytest.raises(ValueError, match="signature"):
            eng.op(writes="x")(min)
        assert eng.op(min)([3, 2]).result(30) == 2

    def test_op_without_options_is_the_decorator(self, np):
        with est.Engine(workers=1, using=np.from_dlpack) as engine:

            @engine.op
            def double(x, *, times=2):
                return x * times

            assert double.__name__ == "double"
            assert value(np, double(engine.from_dlpack(np.ones(3)), times=3)) == [3.0] * 3
            with pytest.raises(TypeError, match="3 is not callable"):
                engine.op(3)

    @pytest.mark.parametrize("writes", [(), "x"])
    def test_arguments_with_names_of_options_are_the_functions_own(self, eng, np, writes):
        seen = []

        @eng.op(writes=writes, using=np.from_dlpack, name="pick")
        def pick(x, *, copy=False, name="a", fn=None):
            seen.append((type(x), copy, name, fn))
            return x + 1

        pick(eng.zeros(3, "int64"), copy=True, name="b", fn=np.sin).wait()
        assert seen == [(np.ndarray, True, "b", np.sin)]

    def test_the_library_of_a_wrapped_function_makes_the_arrays_with_keyword_arguments_too(self, eng, np, ones):
        assert value(np, eng.wrap(np.sum)(ones, axis=0)) == 3.0

    def test_a_tensor_to_write_to_is_refused_by_a_call(self, eng, np, torch, ones):
        """PyTorch would write to it, while others read it."""
        out = eng.zeros(3, "float64")
        for given in (out, (out,), [out]):
            for submits in (eng.call, eng.call_async, lambda fn, *a, **k: eng.wrap(fn)(*a, **k), lambda fn, *a, **k: eng.op(fn)(*a, **k)):
                for function in (torch.add, np.add):
                    with pytest.raises(TypeError, match=r"only reads its arguments.*eng\.submit\(.*writes=\[out\]"):
                        submits(function, ones, 1, out=given)
        assert value(np, out) == [0.0] * 3
        # An argument that is no tensor is the function's own.
        array = np.zeros(3)
        eng.call(np.add, ones, 1, out=array).wait()
        assert array.tolist() == [2.0] * 3
        # So is what is declared.
        eng.op(lambda x, out: torch.add(x, 1, out=out), writes=["out"], using=torch.from_dlpack)(ones, out=out).wait()
        assert value(np, out) == [2.0] * 3

    def test_wrong_names_are_refused(self, eng, ones):
        with pytest.raises(TypeError, match="has no parameter 'z'"):
            eng.op(writes="z")(lambda x: None)
        with pytest.raises(TypeError, match="names of parameters"):
            eng.op(writes=[3])
        with pytest.raises(TypeError, match="`reads` and `writes` do not name"):
            eng.op(reads="x", writes="y")(lambda x, y, z: None)(ones, eng.zeros(1, "int8"), eng.zeros(2, "int8"))
        with pytest.raises(TypeError, match=r"partial\(.*has no parameter 'z'"):
            eng.op(writes="z")(functools.partial(lambda x, y: None, y=1))
        with pytest.raises(TypeError, match="`reads` and `writes` do not name"):
            eng.op(reads="x", writes="y")(functools.partial(lambda x, y, z: None))(ones, eng.zeros(1, "int8"), eng.zeros(2, "int8"))
        with pytest.raises(TypeError, match="<lambda>: missing a required argument: 'y'"):
            eng.op(writes="y")(lambda x, y: None)(ones)

    def test_reads_without_writes_are_refused_with_what_to_write(self, eng):
        for writes in ({}, {"writes": []}):
            with pytest.raises(TypeError, match=r"`reads` without `writes`: write `@eng.op\(reads=..., writes=...\)`"):
                eng.op(reads="x", **writes)

    def test_the_function_may_have_a_parameter_fn(self, eng, np):
        assert np.from_dlpack(eng.call(lambda fn: fn * 2, fn=np.ones(1))).tolist() == [2]

        async def main():
            return await eng.call_async(lambda fn: fn * 2, fn=np.ones(1))

        assert np.from_dlpack(asyncio.run(main())).tolist() == [2]

    def test_an_option_that_there_is_not_is_refused_where_the_function_is_made(self, eng, np):
        with pytest.raises(TypeError, match="`wrap` has no option 'ouputs'"):
            eng.wrap(np.divmod, ouputs=2)
        for name in ("args", "fn", "kwargs"):
            with pytest.raises(TypeError, match=f"`wrap` has no option '{name}'"):
                eng.wrap(np.divmod, **{name: 2})
            with pytest.raises(TypeError, match=f"`op` with `writes` has no option '{name}'"):
                eng.op(writes="y", **{name: 2})(lambda y: None)
        with pytest.raises(TypeError, match="`op` has no option 'on_skip'"):
            eng.op(on_skip=print)(np.negative)
        with pytest.raises(TypeError, match="`op` with `writes` has no option 'outputs'"):
            eng.op(writes="out", outputs=2)(lambda out: None)
        with pytest.raises(TypeError, match="3 is not callable"):
            eng.wrap(3)

    def test_op_takes_no_longer_for_each_tensor_where_there_are_many(self, eng):
        fill = eng.op(writes="outs")(lambda *outs: None)

        def calls_of_functions(count):
            """Steps of generators count as well."""
            outs, calls = [eng.zeros(1, "int8") for _ in range(count)], []
            sys.setprofile(lambda frame, event, _: calls.append(event))
            try:
                op = fill(*outs)
            finally:
                sys.setprofile(None)
            op.wait()
            return len(calls)

        assert calls_of_functions(400) < 8 * calls_of_functions(100)

    def test_an_array_in_the_place_of_a_tensor_that_is_written_is_refused(self, eng, np, ones):
        @eng.op(writes="outs")
        def fill(x, outs):
            return None

        class Image:
            __array_interface__ = np.zeros(3).__array_interface__

        for outs, kind in ((np.zeros(3), "numpy.ndarray"), ([eng.zeros(1, "int8"), np.zeros(3)], "numpy.ndarray"), (Image(), ".*Image")):
            with pytest.raises(TypeError, match=f"expected an estafette.Tensor to write to, not {kind}"):
                fill(ones, outs)
        fill(np.zeros(3), [None, eng.zeros(1, "int8")]).wait()
