"""The engine's messages about a device are in Python's log."""

import subprocess
import sys
import textwrap

_BROKEN = """
    import ctypes, logging, os, time
    import estafette as est

    logging.basicConfig(format="%(levelname)s %(name)s %(message)s")
    simulator = ctypes.CDLL(os.environ["ESTAFETTE_CUDA_SIM"], mode=ctypes.RTLD_GLOBAL)
    simulator.cusim_driver_version(13000)
    with est.Engine(workers=1, failures="ignore") as eng:
        x = eng.empty((64,), "uint8", device="cuda")
        simulator.cusim_fault_device(0, 700)
        try:
            eng.submit(lambda x: None, writes=[x], on="cuda").wait(timeout=30)
        except est.OperationError:
            pass
        del x
"""


def test_a_broken_device_and_the_memory_that_leaks_with_it():
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(_BROKEN)], capture_output=True, text=True, timeout=120, check=True
    )
    lines = ran.stderr.splitlines()
    assert any(line.startswith("ERROR estafette a CUDA context is broken") and "cuda:0" in line for line in lines), lines
    assert any(line.startswith(("WARNING estafette", "ERROR estafette")) and "leaked" in line for line in lines), lines
