"""`from_dlpack(x, writable=...)`: who vouches for memory whose struct cannot say whether it may be written."""

import gc

import pytest

import estafette as est
from capsules import Made, Producer
from conftest import until

READ_ONLY = 1


def fill(eng, np, tensor):
    eng.submit(lambda x: x.fill(7), writes=[tensor], using=np.from_dlpack).wait(30)


class TestAStructBeforeVersion1:
    def test_without_a_word_it_may_not_be_written_and_the_error_says_why(self, eng, np):
        t = eng.from_dlpack(Producer(Made(legacy=True)))
        assert t.read_only
        for write in (lambda: eng.submit(lambda x: None, writes=[t]), lambda: np.from_dlpack(t.for_write())):
            with pytest.raises(est.ConflictError, match="cannot say whether it may be written.*`writable=True`") as caught:
                write()
            assert "declares" not in str(caught.value)

    @pytest.mark.parametrize("given", [lambda made: Producer(made), lambda made: made.capsule], ids=["object", "capsule"])
    def test_its_owner_vouches_for_it(self, eng, np, given):
        made = Made(legacy=True)
        t = eng.from_dlpack(given(made), writable=True)
        assert not t.read_only
        fill(eng, np, t)
        assert list(made.memory) == [7] * 16
        del t
        gc.collect()
        until(lambda: made.deleted == 1)

    def test_it_can_go_back_in_such_a_struct_once_its_owner_vouches(self, eng):
        t = eng.from_dlpack(Producer(Made(legacy=True)))
        with pytest.raises(BufferError, match="cannot say whether it may be written.*`writable=True`"):
            t.__dlpack__()
        vouched = eng.from_dlpack(Producer(Made(legacy=True)), writable=True)
        assert vouched.__dlpack__() is not None

    def test_false_forbids_what_the_table_allows(self, eng, np):
        class Numpys(np.ndarray):
            def __dlpack__(self, **_arguments):
                return super().__dlpack__()

        source = np.zeros(4, "float32").view(Numpys)
        assert not eng.from_dlpack(source).read_only
        t = eng.from_dlpack(np.zeros(4, "float32").view(Numpys), writable=False)
        assert t.read_only

    def test_arrays_of_a_library_that_never_changes_them_are_refused(self, eng, jnp):
        with pytest.raises(BufferError, match="writable=True: arrays of jax(lib)? never change; copy=True"):
            eng.from_dlpack(jnp.arange(4.0), writable=True)
        copied = eng.from_dlpack(jnp.arange(4.0), writable=True, copy=True)
        copied.wait(30)
        assert not copied.read_only


class TestAStructThatCanSay:
    def test_a_flag_is_believed_whoever_vouches(self, eng):
        made = Made(flags=READ_ONLY)
        with pytest.raises(BufferError, match="writable=True: the owner of this memory declares it read-only; copy=True"):
            eng.from_dlpack(Producer(made), writable=True)
        assert made.deleted == 1

    def test_without_the_flag_it_may_be_written_and_false_forbids_it(self, eng, np):
        made = Made()
        fill(eng, np, eng.from_dlpack(Producer(made), writable=True))
        assert list(made.memory) == [7] * 16
        t = eng.from_dlpack(Producer(Made()), writable=False)
        assert t.read_only
        with pytest.raises(est.ConflictError, match="read-only"):
            eng.submit(lambda x: None, writes=[t])

    def test_a_tensor_of_ours_has_it_settled(self, eng):
        t = eng.zeros(3, "float32")
        for writable in (True, False):
            with pytest.raises(ValueError, match="writable"):
                eng.from_dlpack(t, writable=writable)
        assert eng.from_dlpack(t, writable=True, copy=True) is not t

    def test_the_function_of_the_module_hands_it_on(self, np):
        made = Made(legacy=True)
        t = est.from_dlpack(Producer(made), writable=True)
        assert not t.read_only
        del t
        gc.collect()
        until(lambda: made.deleted == 1)
