"""The examples in the docstrings of the package run as they are, and give what they say."""

import asyncio
import doctest
import gc
import inspect

import pytest

import estafette as est


def documented():
    """Everything public that has a docstring, by name."""
    found = {"estafette": est}
    for name in est.__all__:
        found[name] = getattr(est, name)
        if inspect.isclass(found[name]):
            for part, value in vars(found[name]).items():
                if not part.startswith("_") or part in ("__await__", "__dlpack__", "__dlpack_device__"):
                    found[f"{name}.{part}"] = value
    return found


DOCUMENTED = documented()
EXAMPLES = [name for name, value in DOCUMENTED.items() if ">>>" in (inspect.getdoc(value) or "")]


def test_the_main_calls_have_examples():
    wanted = ["Engine", "Engine.from_dlpack", "Engine.from_future", "Engine.submit", "Engine.call", "Engine.access"]
    wanted += ["Tensor.wait", "Tensor.for_write", "Tensor.read", "Operation.cancel"]
    assert set(wanted) <= set(EXAMPLES)


def test_everything_public_that_people_call_has_a_docstring():
    for name, value in DOCUMENTED.items():
        if callable(value) or inspect.isdatadescriptor(value):
            assert (getattr(value, "__doc__", None) or "").strip(), f"{name} has no docstring"


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_example_of(np, name):
    with est.Engine(workers=2) as eng:
        given = {"est": est, "np": np, "eng": eng, "asyncio": asyncio}
        text = inspect.getdoc(DOCUMENTED[name])
        example = doctest.DocTestParser().get_doctest(text, given, name, None, 0)
        assert example.examples
        shown = []
        runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
        runner.run(example, out=shown.append)
        assert runner.failures == 0, "".join(shown)
        # Variables of the example must not hold up the end of the engine.
        example.globs.clear()
        given.clear()
        gc.collect()
