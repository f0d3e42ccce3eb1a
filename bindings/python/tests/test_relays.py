"""Relays: a tensor crosses from library to library, each leg an operation."""

import itertools

import pytest

from peers import PEERS, aligned

NAMES = ("numpy", "jax", "torch")

# Every peer, in an order in which a peer that does not know read-only memory never comes after one that makes such memory.
CIRCLE = ("numpy", "tvm_ffi", "tensorflow", "torch", "pyarrow", "jax")


def orders():
    circle = [CIRCLE[start:] + CIRCLE[:start] for start in range(len(CIRCLE))]
    return [pytest.param(order, id="-".join(order)) for order in [*itertools.permutations(NAMES), *circle]]


class TestRelays:
    @pytest.mark.parametrize("order", orders())
    def test_a_baton_goes_through_all_of_them_without_a_copy(self, eng, np, order):
        libs = [PEERS[name]() for name in order]
        made, seen = {}, {}

        def leg(index, lib):
            def run(array):
                seen[index] = lib.address(array)
                made[index] = lib.plus_one(array)
                return made[index]

            return run

        start = aligned(np, (8, 8))
        promises = [eng.from_dlpack(start)]
        for index, lib in enumerate(libs):
            promises.append(eng.call(leg(index, lib), promises[-1], using=lib.from_dlpack))
        result = np.from_dlpack(promises[-1])
        assert result.tolist() == (start + len(libs)).tolist()
        for index, lib in enumerate(libs):
            assert seen[index] == promises[index].data_ptr, f"{lib.name} copied its input"
            assert lib.address(made[index]) == promises[index + 1].data_ptr, f"the result of {lib.name} was copied"

    @pytest.mark.parametrize("first, second", list(itertools.combinations(PEERS, 2)), ids=str)
    def test_updates_in_place_and_reads_by_two_libraries_are_ordered(self, eng, np, first, second):
        libs = [PEERS[first](), PEERS[second]()]
        t = eng.from_dlpack(aligned(np, 4))
        reads = []
        for _ in range(20):
            eng.submit(lambda x: x.__iadd__(1), writes=[t], using=np.from_dlpack)
            reads += [eng.call(lib.plus_one, t, using=lib.from_dlpack) for lib in libs]
        for index, read in enumerate(reads):
            step = index // 2
            assert np.from_dlpack(read).tolist() == [step + 2, step + 3, step + 4, step + 5]
