"""A deleter that does not return: it is named, and the memory of others goes back meanwhile."""

import logging
import threading

import estafette as est
from capsules import Made
from conftest import until


class Hanging(Made):
    """A tensor whose deleter waits, without Python's lock, until it may return."""

    def __init__(self, **arguments):
        super().__init__(**arguments)
        self.entered = threading.Event()
        self.may_return = threading.Event()

    def _delete(self, managed):
        self.entered.set()
        assert self.may_return.wait(30), "the test never released the deleter"
        super()._delete(managed)


def test_it_is_named_by_diagnose_and_the_watchdog_while_others_go_on(caplog):
    with caplog.at_level(logging.WARNING, "estafette"), est.Engine(workers=1, watchdog=0.3) as eng:
        hangs = Hanging(shape=(2, 8))
        tensor = eng.from_dlpack(hangs.capsule)
        del tensor
        assert hangs.entered.wait(30)
        others = [Made() for _ in range(50)]
        for made in others:
            eng.from_dlpack(made.capsule)
        until(lambda: all(made.deleted == 1 for made in others))
        diagnosis = eng.diagnose()
        assert not diagnosis.is_idle and not diagnosis.operations
        (release,) = diagnosis.releases
        assert release.status == "deleting" and release.age >= 0.2
        assert "float32 [2, 8] on cpu:0" in release.what and "has not returned" in str(release)
        assert str(release) in str(diagnosis)
        until(lambda: any("has not returned" in record.getMessage() for record in caplog.records))
        hangs.may_return.set()
        until(lambda: eng.diagnose().is_idle)
        assert hangs.deleted == 1
    (told,) = [record.getMessage() for record in caplog.records if "has not returned" in record.getMessage()]
    assert told.startswith("stalled: the deleter of the tensor of variable ")
