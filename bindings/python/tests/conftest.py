"""Fixtures: an engine, the peers, programs of their own, and capsules made by hand."""

import gc
import importlib
import importlib.util
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import pytest

import estafette as est

# MXNet needs an old NumPy and lives in an environment of its own: `cargo xtask test --suite mxnet`. So does PaddlePaddle, with
# others: `cargo xtask test --suite other-peers`.
APART = {"test_mxnet.py": "mxnet", "test_other_peers.py": "paddle"}
collect_ignore = [file for file, package in APART.items() if importlib.util.find_spec(package) is None]

# Shells have jobs in the background ignore Ctrl-C, and the programs that tests start inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish():
    # Every collection of every test would look through the objects from before the first test.
    gc.collect()
    gc.freeze()


def peer(name):
    """The library `name`; skips the test without it, or fails it where every peer must be there."""
    new = name not in sys.modules
    try:
        module = importlib.import_module(name)
        if new:
            # Libraries leave a million objects behind, which every collection of every test would look through.
            gc.collect()
            gc.freeze()
        return module
    except ImportError:
        if os.environ.get("ESTAFETTE_REQUIRE_PEERS") == "1":
            pytest.fail(f"{name} is required (ESTAFETTE_REQUIRE_PEERS=1) and not installed", pytrace=False)
        pytest.skip(f"{name} is not installed")


@pytest.fixture
def reports(monkeypatch):
    """Arguments of `sys.unraisablehook`, in place of pytest's own hook."""
    found = []
    monkeypatch.setattr(sys, "unraisablehook", found.append)
    return found


@pytest.fixture
def np():
    return peer("numpy")


@pytest.fixture
def jax():
    return peer("jax")


@pytest.fixture
def jnp(jax):
    return importlib.import_module("jax.numpy")


@pytest.fixture
def torch():
    return peer("torch")


@pytest.fixture
def eng():
    """An engine that reports leases after two seconds and leaves nothing behind."""
    engine = est.Engine(workers=2, lease_timeout=2.0)
    yield engine
    gc.collect()
    report = engine.shutdown(5.0)
    assert report.drained, report


class Gate:
    """Holds an operation up until the test opens it; `entered` says that the operation has begun."""

    def __init__(self):
        self._open = threading.Event()
        self.entered = threading.Event()

    def __call__(self, *_operands):
        self.entered.set()
        assert self._open.wait(30), "the test never opened the gate"

    def open(self):
        self._open.set()


@pytest.fixture
def gate():
    gate = Gate()
    yield gate
    gate.open()


def examples(many):
    """Number of made-up inputs for a test: a tenth of them in `cargo xtask test` without `--all`."""
    return many // 10 if "ESTAFETTE_FEW_EXAMPLES" in os.environ else many


def pairs(some, others):
    """Each of `some` with each of `others`, or with one of them in turn in `cargo xtask test` without `--all`: for tests that start a program."""
    few = "ESTAFETTE_FEW_EXAMPLES" in os.environ
    return [(one, other) for i, one in enumerate(some) for j, other in enumerate(others) if not few or i % len(others) == j]


def until(condition, seconds=10.0):
    """Waits for something that another thread brings about."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.001)


def run_program(source, *, timeout=60, expect=0, env=None):
    """Runs a program of its own and gives what it printed."""
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", textwrap.dedent(source)],
        capture_output=True,
        text=True,
        timeout=timeout,
        env={**os.environ, **(env or {})},
    )
    assert done.returncode == expect, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout, done.stderr
