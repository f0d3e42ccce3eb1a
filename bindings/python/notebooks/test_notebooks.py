"""Notebooks in a real kernel, cell by cell: the tutorial, the README's example, and waits in cells."""

import pathlib
import re

import nbclient
import nbformat
import pytest

ROOT = pathlib.Path(__file__).parents[3]
TUTORIAL = ROOT / "examples" / "python" / "tutorial.ipynb"


def run(notebook):
    """Runs it as a user does, with 60 seconds for a cell; gives what each cell showed, by type, and printed, as `text`."""
    nbclient.NotebookClient(notebook, timeout=60, kernel_name="python3").execute()
    shown = []
    for cell in notebook.cells:
        outputs = cell.get("outputs", [])
        merged = {"text": "".join(it.text for it in outputs if it.output_type == "stream")}
        for output in outputs:
            merged.update(output.get("data", {}))
        shown.append(merged)
    return shown


def run_cells(*sources):
    return run(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in sources]))


START = """
import asyncio, time
import numpy as np
import estafette as est
eng = est.Engine(using=np.from_dlpack)
def slow():
    time.sleep(0.1)
    return np.ones(2)
async def quick(*_):
    return np.ones(3)
"""


def test_the_tutorial():
    notebook = nbformat.read(TUTORIAL, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "the outputs of the tutorial belong to the reader who runs it"
    shown = run(notebook)
    html = "\n".join(cell.get("text/html", "") for cell in shown)
    assert all(text in html for text in ("float64", "pending", "first", "in_flight", "<iframe"))
    assert "use `await`" in "".join(cell["text"] for cell in shown)


def test_the_example_of_the_readme():
    (source,) = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.M | re.S)
    run_cells(source)


@pytest.mark.parametrize(
    "wait",
    [
        "eng.call(slow).wait()",
        "eng.submit(lambda: time.sleep(0.1)).wait(timeout=30)",
        "eng.call(slow).block_until_ready().result()",
        "np.from_dlpack(eng.call(slow))",
        "t = eng.call(slow)\nwith t.read() as view: view.shape",
        "eng.submit(lambda: time.sleep(0.1)); eng.wait_all()",
        "list(est.as_completed([eng.call(slow), eng.call(slow)]))",
        "from concurrent.futures import ThreadPoolExecutor as Pool\nest.wait([eng.call(slow), Pool().submit(slow)])",
        "with est.Engine() as other:\n    other.submit(lambda: time.sleep(0.1))",
        "small = est.Engine(in_flight_limit=1)\nfor _ in range(3): small.submit(lambda: time.sleep(0.05))\nsmall.shutdown()",
    ],
)
def test_a_cell_may_wait(wait):
    run_cells(START, wait)


@pytest.mark.parametrize(
    "needed",
    [
        "t = eng.call(quick)",
        "t = eng.call(quick, eng.call(slow))",
        "future = asyncio.get_running_loop().create_future()\nt = eng.from_future(future)",
        "t = eng.from_future(quick())",
        "t = eng.call(lambda: quick())",
    ],
)
def test_a_wait_that_needs_the_loop_of_the_cell_says_what_to_write(needed):
    waits = f"{needed}\ntry:\n    t.wait()\nexcept est.WouldBlockError as error:\n    print(error)"
    resolves = "if 'future' in globals(): future.set_result(np.ones(1))\nawait t\nassert t.is_ready()\nt.wait()"
    shown = run_cells(START, waits, resolves)
    assert "would stop the running event loop" in shown[1]["text"] and "`await`" in shown[1]["text"]


def test_what_is_shown_is_escaped_short_and_never_waits():
    name = "<script>alert(1)</script>"
    cells = [
        START + f"import threading; gate = threading.Event(); op = eng.submit(gate.wait, name='{name}')\neng.diagnose()",
        "t = eng.call(lambda: gate.wait() and np.ones(2)); t",
        "eng.stats()",
        "gate.set(); t.wait(); t",
        "bad = eng.call(lambda: 1 / 0)\ntry: bad.wait()\nexcept est.OperationError: pass\nbad",
        "pair = eng.call(lambda: (np.ones(1), np.ones(2)), outputs=2); eng.wait_all(); pair[1]",
        "x = eng.zeros(1, 'int8'); held = np.from_dlpack(x); eng.submit(lambda x: None, writes=[x]).cancel(); del held; x",
        "assert all(len(repr(it)) < 120 for it in (t, op, eng, eng.stats(), eng.diagnose(), bad))",
    ]
    diagnosis, pending, stats, ready, failed, part, cancelled, _ = run_cells(*cells)
    assert "&lt;script&gt;" in diagnosis["text/html"] and "<script>" not in diagnosis["text/html"]
    assert "pending" in pending["text/html"]
    assert "in_flight_limit" in stats["text/html"] and "4096" in stats["text/html"]
    assert "ready" in ready["text/html"] and "(2,)" in ready["text/html"]
    assert "failed" in failed["text/html"]
    assert "(2,)" in part["text/html"]
    assert "cancelled" in cancelled["text/html"]


def test_a_report_shows_its_page_and_without_its_file_its_text():
    cells = [
        START + "import os, tempfile; folder = tempfile.mkdtemp(); path = os.path.join(folder, 'a.pftrace')",
        "with est.record(path) as trace: eng.submit(lambda: None, name='</iframe><b>').wait()\nreport = trace.report(); report",
        "os.remove(path); report",
        # The length of a headline depends on which wait was longest.
        "assert report.headline in repr(report) and len(repr(report)) < 100 + len(report.headline)",
    ]
    _, page, text, _ = run_cells(*cells)
    page, text = page["text/html"], text["text/html"]
    assert page.startswith("<iframe srcdoc=") and page.count("<iframe") == page.count("</iframe>") == 1
    assert text.startswith("<pre>") and "<b>" not in text
