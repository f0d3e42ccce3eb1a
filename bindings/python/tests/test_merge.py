"""Traces merged with traces of other profilers: markers that both have show how well the clocks agree."""

import gzip
import json
import os
import subprocess
import sys
import threading

import pytest
from conftest import run_program

import estafette as est

MARKERS = [f"marker {number}" for number in range(20)]


def run_markers(folder, annotation):
    """Runs operations whose functions are annotated for the other profiler, under their own names, and records them."""
    with est.record(folder / "run.pftrace") as trace, est.Engine(workers=0) as eng:
        for name in MARKERS:

            def body(name=name):
                with annotation(name):
                    sum(range(1000))

            eng.submit(body, name=name).wait()
    return trace.path


def spans(path):
    """Of each marker: its spans in the merged file, longest first, with their processes."""
    text = path.read_bytes()
    trace = json.loads(gzip.decompress(text) if path.name.endswith(".gz") else text)
    found = {name: [] for name in MARKERS}
    for event in trace["traceEvents"]:
        if event.get("ph") == "X" and event["name"] in found:
            found[event["name"]].append((event["ts"], event["ts"] + event["dur"], event["pid"]))
    return {name: sorted(spans, key=lambda span: span[0] - span[1]) for name, spans in found.items()}


def assert_one_clock(found):
    """Each operation encloses its marker. So the other clock is ahead by at least how far an end sticks out, and by at most how much
    later a beginning is: in microseconds, and none may say that it is 50 or more."""
    assert all(len(spans) == 2 for spans in found.values()), found
    pairs = [(ours, theirs) for ours, theirs in found.values()]
    assert all(ours[2] != theirs[2] for ours, theirs in pairs), "they are of different processes"
    at_least = max(theirs[1] - ours[1] for ours, theirs in pairs)
    at_most = min(theirs[0] - ours[0] for ours, theirs in pairs)
    assert -50 < at_least < 50 and -50 < at_most < 50, (at_least, at_most)


def test_markers_of_torch_and_ours_are_at_the_same_time(torch, tmp_path):
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        trace = run_markers(tmp_path, torch.profiler.record_function)
    profile.export_chrome_trace(str(tmp_path / "torch.json"))
    est.merge_traces(trace, tmp_path / "torch.json", to=tmp_path / "merged.json.gz")
    assert_one_clock(spans(tmp_path / "merged.json.gz"))


def test_markers_of_jax_and_ours_are_at_the_same_time(jax, tmp_path):
    jax.devices()
    with jax.profiler.trace(str(tmp_path / "jax")):
        trace = run_markers(tmp_path, jax.profiler.TraceAnnotation)
    command = [sys.executable, "-m", "estafette", "merge", trace, tmp_path / "jax", "-o", tmp_path / "merged.json"]
    subprocess.run(command, check=True)
    assert_one_clock(spans(tmp_path / "merged.json"))


def test_times_processes_and_counts_are_kept(eng, tmp_path):
    with est.record(tmp_path / "run.pftrace"):
        eng.submit(lambda: None, name="one").wait()
    began = 1_795_682_918_960_058_124
    theirs = {
        "baseTimeNanoseconds": began,
        "deviceProperties": [1],
        "traceEvents": [
            {"ph": "M", "name": "process_name", "pid": 1, "ts": 0, "args": {"name": "other"}},
            {"ph": "X", "name": "a", "pid": 1, "tid": 1, "ts": 12.5, "dur": 2},
            {"ph": "X", "name": "b", "pid": 1, "tid": 1, "ts": 20.25, "dur": 2},
        ],
    }
    (tmp_path / "first.json").write_text(json.dumps(theirs))
    (tmp_path / "second.json").write_text(json.dumps({**theirs, "baseTimeNanoseconds": began + 10_000}))
    est.merge_traces(tmp_path / "first.json", tmp_path / "second.json", tmp_path / "run.pftrace", to=tmp_path / "merged.json")
    merged = json.loads((tmp_path / "merged.json").read_text())
    assert (merged["baseTimeNanoseconds"], merged["deviceProperties"]) == (began + 12_500, [1])
    events = merged["traceEvents"]
    assert [event["ts"] for event in events[:6]] == [0, 0, 7.75, 0, 10, 17.75]
    assert [event["pid"] for event in events[:6]] == [1, 1, 1, 2, 2, 2]
    (one,) = [event for event in events[6:] if event["name"] == "one" and event["ph"] == "X"]
    assert one["pid"] == 3 and one["ts"] > 1e6


def test_an_arrow_joins_operations_of_one_trace_alone(eng, np, tmp_path):
    names = ["one", "two", "three"]
    for name in names:
        t = eng.zeros((4,), "float32")
        with est.record(tmp_path / name):
            eng.submit(lambda x: None, writes=[t], using=np.from_dlpack, name=f"make {name}")
            eng.submit(lambda x: None, reads=[t], using=np.from_dlpack, name=f"use {name}")
            eng.wait_all()
    est.merge_traces(*(tmp_path / name for name in names), to=tmp_path / "merged.json")
    processes = {}
    for event in json.loads((tmp_path / "merged.json").read_text())["traceEvents"]:
        if event["ph"] in "sf":
            # Viewers join the ends by category, name and identity, whatever the process.
            processes.setdefault((event["cat"], event["name"], event["id"]), []).append((event["ph"], event["pid"]))
    assert sorted(processes.values()) == [[("s", pid), ("f", pid)] for pid in (1, 2, 3)]


def test_identities_of_other_profilers_stay_apart_too(tmp_path):
    def trace(name, *ids):
        phases = "sfbneNOD"
        events = [{"ph": ph, "cat": "c", "name": "n", "pid": 1, "tid": 1, "ts": 1, "id": ids[0]} for ph in phases]
        events.append({"ph": "b", "cat": "c", "name": "n", "pid": 1, "tid": 1, "ts": 1, "id2": {"global": ids[0], "local": 7}})
        events.append({"ph": "X", "name": "x", "pid": 1, "tid": 1, "ts": 1, "dur": 1, "bind_id": ids[0], "id": "as it is"})
        events.append({"ph": "s", "cat": "c", "name": "n", "pid": 1, "tid": 1, "ts": 1, "id": ids[1]})
        (tmp_path / name).write_text(json.dumps({"baseTimeNanoseconds": 1, "traceEvents": events}))
        return tmp_path / name

    est.merge_traces(trace("a", 5, "0x9"), trace("b", 5, 9), trace("c", "0x5", 3), to=tmp_path / "merged.json")
    events = json.loads((tmp_path / "merged.json").read_text())["traceEvents"]

    def identity(event):
        if event["ph"] == "X":
            assert event["id"] == "as it is"
            found = event["bind_id"]
        else:
            assert event.get("id2", {"local": 7})["local"] == 7
            found = event.get("id", event.get("id2", {}).get("global"))
        return int(found, 0) if isinstance(found, str) else found

    assert len(events) == 33
    own = [[identity(event) for event in events[at : at + 11]] for at in (0, 11, 22)]
    assert all(len(set(identities[:-1])) == 1 for identities in own)
    every = [identities[at] for identities in own for at in (0, -1)]
    assert len(set(every)) == 6 and every[:2] == [5, 9]


def test_a_merge_replaces_nothing_but_an_earlier_merge(eng, tmp_path):
    for name in ("one", "two"):
        with est.record(tmp_path / name):
            eng.submit(lambda: None, name=name).wait()
    (tmp_path / "torch.json").write_text('{"baseTimeNanoseconds": 1, "traceEvents": []}')
    (tmp_path / "torch.json.gz").write_bytes(gzip.compress((tmp_path / "torch.json").read_bytes()))
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    for name in before:
        with pytest.raises(FileExistsError, match=name):
            est.merge_traces(tmp_path / "one", tmp_path / "torch.json", to=tmp_path / name)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    for name in ("merged.json", "merged.json.gz"):
        (tmp_path / name).touch()
        for inputs in (["one"], ["one", "two"]):
            est.merge_traces(*(tmp_path / each for each in inputs), to=tmp_path / name)
        with pytest.raises(FileExistsError, match=f"{name} is one of the traces to merge"):
            est.merge_traces(tmp_path / name, tmp_path / "two", to=tmp_path / name)
        # It is a trace as others are.
        est.merge_traces(tmp_path / name, tmp_path / "two", to=tmp_path / f"again-{name}")
    events = json.loads(gzip.decompress((tmp_path / "again-merged.json.gz").read_bytes()))["traceEvents"]
    operations = [event["name"] for event in events if event["ph"] == "X" and event["cat"] == "operation"]
    assert sorted(name for name in operations if name in ("one", "two")) == ["one", "two", "two"]


def test_a_merge_goes_to_a_device_and_through_a_link(eng, tmp_path):
    with est.record(tmp_path / "run.pftrace"):
        eng.submit(lambda: None, name="step").wait()
    (tmp_path / "link.json").symlink_to(tmp_path / "merged.json")
    est.merge_traces(tmp_path / "run.pftrace", to=tmp_path / "link.json")
    est.merge_traces(tmp_path / "link.json", to=tmp_path / "again.json")
    assert (tmp_path / "link.json").is_symlink() and not (tmp_path / "merged.json").is_symlink()
    # A merge of merges is one of its own.
    est.merge_traces(tmp_path / "run.pftrace", to=tmp_path / "again.json")
    command = [sys.executable, "-m", "estafette", "merge", tmp_path / "run.pftrace", "-o", "/dev/stdout"]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "step" in [event["name"] for event in json.loads(ended.stdout)["traceEvents"]]


def test_a_merge_that_fails_leaves_the_earlier_one(eng, tmp_path):
    with est.record(tmp_path / "run.pftrace"):
        for _ in range(200):
            eng.submit(lambda: None, name="step")
        eng.wait_all()
    merged = tmp_path / "merged.json"
    est.merge_traces(tmp_path / "run.pftrace", to=merged)
    before = merged.read_bytes()
    source = f"""
        import resource
        import signal
        import estafette as est

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
        try:
            est.merge_traces({str(tmp_path / "run.pftrace")!r}, to={str(merged)!r})
        except OSError as error:
            print("refused", error)
    """
    said, _ = run_program(source)
    assert "refused" in said and "merged.json" in said
    assert merged.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["merged.json", "run.pftrace"]


def test_a_merge_says_which_trace_is_not_whole(eng, tmp_path):
    with est.record(tmp_path / "run.pftrace"):
        eng.submit(lambda: None, name="step").wait()
    cut = tmp_path / "cut.pftrace"
    cut.write_bytes((tmp_path / "run.pftrace").read_bytes()[:-7])
    with pytest.warns(UserWarning, match="cut.pftrace is incomplete: ") as said:
        est.merge_traces(cut, to=tmp_path / "merged.json")
    assert said[0].filename == __file__
    command = [sys.executable, "-m", "estafette", "merge", str(cut), "-o", str(tmp_path / "merged.json")]
    merged = subprocess.run(command, check=True, capture_output=True, text=True)
    assert merged.stderr.startswith("estafette merge: ") and "cut.pftrace is incomplete: " in merged.stderr, merged.stderr


def test_what_a_merge_says_of_a_thread_is_shown_and_not_obeyed(eng, tmp_path):
    def submits():
        for _ in range(20_000):
            eng.submit(lambda: None, name="step")
        eng.wait_all()

    with est.record(tmp_path / "run.pftrace", memory_max=512 << 10):
        thread = threading.Thread(target=submits, name="\x1b]0;x")
        thread.start()
        thread.join()
    with pytest.warns(UserWarning, match="did not fit") as said:
        est.merge_traces(tmp_path / "run.pftrace", to=tmp_path / "merged.json")
    text = "\n".join(str(warning.message) for warning in said)
    assert r"events of `\u{1b}]0;x` did not fit" in text and "\x1b" not in text, text


def test_what_has_no_time_or_is_no_trace_is_refused(tmp_path):
    def refused(text, *path):
        (tmp_path / "trace.json").write_text(text)
        with pytest.raises(ValueError) as refusal:
            est.merge_traces(tmp_path.joinpath(*path or ["trace.json"]), to=tmp_path / "merged.json")
        return str(refusal.value)

    assert "trace.json does not say when it began" in refused('{"traceEvents": []}')
    assert "trace.json is no trace: it has no `traceEvents`" in refused("{}")
    assert "no trace, or nothing of it is left" in refused("anything")
    def damaged(**trace):
        return refused(json.dumps({"baseTimeNanoseconds": 1, "traceEvents": [], **trace}))

    assert "trace.json is no trace" in refused("[]") and "is no trace" in refused("[" * 100_000)
    for event in (1, None, {"ph": "X", "ts": "5", "pid": 1}, {"ph": "X", "ts": None}, {"ph": "X", "ts": 1e999}, {"ph": "M", "pid": [1]}):
        assert "trace.json is damaged: no event" in damaged(traceEvents=[event])
    assert "trace.json is damaged: it began at 'soon'" in damaged(baseTimeNanoseconds="soon")
    whole = gzip.compress(json.dumps({"baseTimeNanoseconds": 1, "traceEvents": [{"ph": "M", "name": str(n)} for n in range(99)]}).encode())
    for text in (whole[:-20], whole[:10] + b"\xff" * 50, whole[:-8] + b"\0" * 8):
        (tmp_path / "trace.json.gz").write_bytes(text)
        with pytest.raises(ValueError, match="trace.json.gz is damaged"):
            est.merge_traces(tmp_path / "trace.json.gz", to=tmp_path / "merged.json")
    assert "trace.json is damaged: it began at" in damaged(baseTimeNanoseconds=1e999)
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(OSError, match="fifo is no regular file"):
        est.merge_traces(tmp_path / "fifo", to=tmp_path / "merged.json")
    (tmp_path / "empty").mkdir()
    assert "has no trace of jax.profiler" in refused("", "empty")
    assert not (tmp_path / "merged.json").exists()
    command = [sys.executable, "-m", "estafette", "merge", tmp_path / "absent", "-o", tmp_path / "merged.json"]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == 2 and ended.stderr.startswith("estafette merge: ") and "absent" in ended.stderr
