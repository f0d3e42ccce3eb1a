"""Much memory of the device held and released beside another library, which then gets it."""

from __future__ import annotations

import time

import estafette as est
from suite import ON, REHEARSAL, SIMULATOR, Skip, installed, report, run

GIB = 1 << 30
#: What is held, as far as the device has it: the part of a large device that a program may use for its own data.
HELD = 20 * GIB
#: What the engine may keep after that, for all its kinds of memory: pools keep 256 MiB, and contexts need some.
KEPT = 1 * GIB

FOUND, MISSING = installed()
NAMES = {library.name for library in FOUND}


def hold(engine: est.Engine, size: int, pieces: int) -> list[est.Tensor]:
    """Memory of the device in so many pieces."""
    each = size // pieces
    held = [engine.empty((each,), "uint8", device=ON or "cpu") for _ in range(pieces)]
    for tensor in held:
        tensor.wait(timeout=60)
    return held


def check_what_is_held_can_be_released() -> None:
    size = 64 << 20 if REHEARSAL or SIMULATOR else GIB
    with est.Engine(workers=1) as engine:
        for _ in range(3):
            held = hold(engine, size, 8)
            assert sum(tensor.nbytes for tensor in held) == size
            del held
        engine.wait_all(timeout=60)


def check_torch_gets_what_was_held() -> None:
    if REHEARSAL or SIMULATOR or "torch" not in NAMES:
        raise Skip("needs torch with a device")
    import torch

    torch.zeros(1, device="cuda")
    torch.cuda.synchronize()
    before, total = torch.cuda.mem_get_info()
    size = min(HELD, before // 2)
    with est.Engine(workers=1) as engine:
        begin = time.perf_counter()
        held = hold(engine, size, 20)
        took = time.perf_counter() - begin
        free, _ = torch.cuda.mem_get_info()
        assert before - free >= size * 9 // 10, f"{(before - free) / GIB:.1f} GiB are held, not {size / GIB:.1f}"
        # While the engine holds it, torch gets what is left.
        beside = torch.empty(free // 2, dtype=torch.uint8, device="cuda")
        del beside
        torch.cuda.empty_cache()
        begin = time.perf_counter()
        del held
        engine.wait_all(timeout=60)
        release = time.perf_counter() - begin
        # Memory of a pool goes back when a thread synchronizes.
        deadline = time.monotonic() + 20
        while True:
            torch.cuda.synchronize()
            after, _ = torch.cuda.mem_get_info()
            if before - after <= KEPT or time.monotonic() > deadline:
                break
            time.sleep(0.01)
        assert before - after <= KEPT, f"{(before - after) / GIB:.2f} GiB are still kept"
        whole = torch.empty(after * 9 // 10, dtype=torch.uint8, device="cuda")
        whole.fill_(1)
        torch.cuda.synchronize()
        del whole
        torch.cuda.empty_cache()
        report(
            "passed",
            f"{size / GIB:.0f} of {total / GIB:.0f} GiB held beside torch",
            f"held after {took:.2f} s, released within {release:.3f} s, {(before - after) / (1 << 20):.0f} MiB kept",
        )


if __name__ == "__main__":
    for name, reason in MISSING:
        report("skipped", name, reason)
    run([check_what_is_held_can_be_released, check_torch_gets_what_was_held])
