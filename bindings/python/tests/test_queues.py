"""Queues and pools of `multiprocessing`, with processes that are started by *spawn*."""

import concurrent.futures
import importlib
import multiprocessing
import pickle
import re
from multiprocessing.reduction import ForkingPickler

import process_functions
import pytest

import estafette as est
from conftest import peer, run_program
from test_processes import pytestmark  # noqa: F401


@pytest.fixture(params=["multiprocessing", "torch.multiprocessing"])
def context(request):
    if request.param.startswith("torch"):
        peer("torch")
    return importlib.import_module(request.param).get_context("spawn")


def test_tensors_cross_in_both_directions_before_they_are_ready(eng, np, context, gate):
    tensors, results = context.Queue(), context.Queue()
    process = context.Process(target=process_functions.double_all, args=(tensors, results))
    process.start()
    x = eng.zeros(4, "float64", shared=True)

    def fill(x):
        gate()
        x += 1

    eng.submit(fill, writes=[x], using=np.from_dlpack)
    tensors.put(x)
    y = results.get(timeout=60)
    assert isinstance(y, est.Tensor) and not y.is_ready()
    gate.open()
    assert np.from_dlpack(y).tolist() == [2] * 4
    for step in range(2, 20):
        # It waits until the other process is done with the version before.
        eng.submit(lambda x: x.__iadd__(1), writes=[x], using=np.from_dlpack)
        tensors.put(x)
        y = results.get(timeout=60)
        assert np.from_dlpack(y).tolist() == [2.0 * step] * 4
    del y
    tensors.put(None)
    tensors.put(None)
    process.join(60)
    assert process.exitcode == 0


def test_a_ticket_in_a_queue_names_the_version_of_the_put(eng, np, context):
    """A tensor would be that of the moment at which a thread of the queue pickles it."""
    x = eng.zeros(4, "float64", shared=True)
    tickets = context.Queue()
    for value in range(20):
        eng.submit(lambda x, value=value: x.fill(value), writes=[x], using=np.from_dlpack)
        tickets.put(x.ticket(once=True))
    for value in range(20):
        y = eng.from_ticket(tickets.get(timeout=60))
        assert np.from_dlpack(y).tolist() == [value] * 4
        del y


def test_a_pool_takes_tensors_as_arguments(eng, np, context):
    x = eng.zeros(4, "float64", shared=True)
    eng.submit(lambda x: x.fill(3), writes=[x], using=np.from_dlpack)
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
        y = pool.submit(process_functions.doubled, x).result(60)
        assert np.from_dlpack(y).tolist() == [6] * 4
        del y
    # The version was used, so nothing holds up the next write.
    eng.submit(lambda x: x.fill(4), writes=[x], using=np.from_dlpack).wait(60)


def test_a_process_that_ends_leaves_the_tensor_to_its_owner(eng, np):
    x = eng.zeros(4, "float64", shared=True)
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        with pytest.raises(concurrent.futures.process.BrokenProcessPool):
            pool.submit(process_functions.ends, x).result(60)
    eng.submit(lambda x: x.fill(4), writes=[x], using=np.from_dlpack).wait(60)


def test_a_process_that_dies_right_after_it_has_taken_a_tensor_leaves_it_to_its_owner(eng, np):
    context = multiprocessing.get_context("spawn")
    x, tensors = eng.zeros(4, "float64", shared=True), context.SimpleQueue()
    process = context.Process(target=process_functions.takes_and_dies, args=(tensors,))
    process.start()
    tensors.put(x)
    process.join(60)
    assert process.exitcode == -9
    eng.submit(lambda x: x.fill(4), writes=[x], using=np.from_dlpack).wait(60)


class PicklesWithin:
    """An object that pickles a tensor for itself, as the value of another pickling."""

    def __init__(self, tensor):
        self.tensor = tensor

    def __reduce__(self):
        return bytes, (bytes(ForkingPickler.dumps(self.tensor)),)


@pytest.mark.parametrize("within", [False, True])
def test_a_pickling_that_fails_leaves_the_tensor_to_its_owner(eng, np, context, within):
    x, tensors = eng.zeros(4, "float64", shared=True), context.SimpleQueue()
    unpicklable = lambda: 0  # noqa: E731
    with pytest.raises((AttributeError, pickle.PicklingError)):
        tensors.put((PicklesWithin(x) if within else x, unpicklable))
    eng.submit(lambda x: x.fill(3), writes=[x], using=np.from_dlpack).wait(60)
    # A tensor that is pickled well is held until it is taken.
    tensors.put(x)
    later = eng.submit(lambda x: x.fill(4), writes=[x], using=np.from_dlpack)
    with pytest.raises(TimeoutError):
        later.wait(0.05)
    y = tensors.get()
    assert np.from_dlpack(y).tolist() == [3] * 4
    del y
    later.wait(60)


def test_a_ticket_for_one_use_that_nothing_has_used_can_be_revoked(np):
    with est.Engine(workers=1, lease_timeout=0.05) as eng:
        x = eng.zeros(4, "float64", shared=True)
        with x.ticket(once=True) as ticket:
            write = eng.submit(lambda x: x.fill(4), writes=[x], using=np.from_dlpack)
            with pytest.raises(est.LeaseHeldError, match=r"taken out of its queue.*ticket\.revoke\(\)"):
                write.wait()
        write.wait(60)
        again = eng.from_ticket(bytes(ticket))
        with pytest.raises(est.OperationError, match="not valid any more"):
            again.wait(60)


def test_a_ticket_for_one_use_is_revoked_by_its_bytes(np):
    with est.Engine(workers=1, lease_timeout=0.05) as eng:
        x = eng.zeros(4, "float64", shared=True)
        ticket = bytes(x.ticket(once=True))
        write = eng.submit(lambda x: x.fill(4), writes=[x], using=np.from_dlpack)
        with pytest.raises(est.LeaseHeldError):
            write.wait()
        est.Ticket(ticket).revoke()
        write.wait(60)


def test_a_ticket_for_one_use_is_used_once(eng, np):
    x = eng.zeros(4, "float64", shared=True)
    ticket = bytes(x.ticket(once=True))
    # Until then it is shown, with its age.
    assert re.search(r"taken by a ticket for one use [\d.]+", str(eng.diagnose()))
    source = f"""
    import numpy as np
    import estafette as est

    with est.Engine(workers=1, failures="ignore") as eng:
        x = eng.from_ticket(bytes.fromhex("{ticket.hex()}"))
        assert np.from_dlpack(x).tolist() == [0] * 4
        again = eng.from_ticket(bytes.fromhex("{ticket.hex()}"))
        try:
            again.wait(60)
        except est.EstafetteError as error:
            assert "one use" in str(error), error
        else:
            raise AssertionError("it was used twice")
    """
    run_program(source)
    eng.submit(lambda x: x.fill(4), writes=[x], using=np.from_dlpack).wait(60)
