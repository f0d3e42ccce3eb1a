"""Operations have as much stack as Python's own threads. Each test is a program of its own, since a stack that is too small ends it."""

import textwrap

import pytest

import estafette as est
from conftest import run_program

# `repr` of nested lists recurses in C; the interpreter's own limit is out of the way.
DEEP = """
import sys, threading
import estafette as est

def deep(levels):
    nested = []
    for _ in range(levels):
        nested = [nested]
    return len(repr(nested))

sys.setrecursionlimit(10**6)
"""


def program(source):
    output, _ = run_program(DEEP + textwrap.dedent(source))
    return output


def test_an_operation_recurses_as_deep_as_a_thread():
    output = program("""
        found = []
        thread = threading.Thread(target=lambda: found.append(deep(15_000)))
        thread.start()
        thread.join()
        with est.Engine(workers=1) as eng:
            eng.submit(lambda: found.append(deep(15_000))).wait()
        print(found)
    """)
    assert output.strip() == "[30002, 30002]"


def test_the_stack_size_of_threading_holds_for_operations():
    output = program("""
        threading.stack_size(128 << 20)
        with est.Engine(workers=1) as eng:
            eng.submit(lambda: print(deep(60_000))).wait()
    """)
    assert output.strip() == "120002"


def test_an_engine_can_have_its_own_stack_size():
    output = program("""
        with est.Engine(workers=1, stack_size=128 << 20) as eng:
            eng.submit(lambda: print(deep(60_000))).wait()
    """)
    assert output.strip() == "120002"


def test_zero_is_the_default_of_the_system():
    with est.Engine(workers=1, stack_size=0) as eng:
        assert eng.workers == 1


@pytest.mark.parametrize("bytes_", [1, 65535, 2**41])
def test_a_stack_size_that_cannot_be_is_named_with_its_bounds(bytes_):
    with pytest.raises(est.InvalidError, match=f"a stack of {bytes_} bytes: a thread's stack has 65536 to 1099511627776 bytes"):
        est.Engine(workers=1, stack_size=bytes_)


def test_a_stack_size_that_is_no_number_is_named():
    with pytest.raises(TypeError, match="^stack_size must be a whole number, not float$"):
        est.Engine(workers=1, stack_size=1e6)
    with pytest.raises(est.InvalidError, match="^stack_size must be at least 0"):
        est.Engine(workers=1, stack_size=-1)
