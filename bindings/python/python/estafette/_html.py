"""HTML of tensors, diagnoses, counters and reports, for notebooks."""

from __future__ import annotations

import dataclasses
import html
import os
import tempfile

from ._estafette import _read_report

# Pixels. The page scrolls inside of its frame.
_HEIGHT = 640
# As many rows as people read.
_ROWS_MAX = 100


def _table(head, rows):
    def line(cells, tag):
        shown = "".join(f"<{tag} style='text-align:left'>{html.escape(str(cell))}</{tag}>" for cell in cells)
        return f"<tr>{shown}</tr>"

    rows = list(rows)
    body = "".join(line(row, "td") for row in rows[:_ROWS_MAX])
    left = f"<p>and {len(rows) - _ROWS_MAX:,} more</p>" if len(rows) > _ROWS_MAX else ""
    return f"<table><thead>{line(head, 'th')}</thead><tbody>{body}</tbody></table>{left}"


def tensor(tensor):
    """A row with what is known, without waiting for anything."""
    state = "failed" if tensor._failed() else "cancelled" if tensor.cancelled() else "ready" if tensor.is_ready() else "pending"
    if not tensor.is_defined():
        return _table(["tensor"], [[state]])
    try:
        row = [tensor.shape, tensor.dtype, tensor.device, f"{tensor.nbytes:,}", state]
    except Exception:
        # The promise of a function that returned no single array, or that failed.
        return f"<code>{html.escape(repr(tensor))}</code>"
    return _table(["shape", "dtype", "device", "bytes", "state"], [row])


def diagnosis(diagnosis):
    """A row for each operation and each release, and one for all that is unlisted."""
    if diagnosis.is_idle:
        return "<p>nothing is in flight</p>"
    rows = [
        [it.name, it.status, f"{it.age:.3f} s", "; ".join(f"{by.name} ({by.hazard})" for by in it.blocked_by)]
        for it in diagnosis.operations
    ]
    if diagnosis.unlisted:
        rows.append([f"{diagnosis.unlisted:,} without operands", "", "", ""])
    rows += [[it.what, it.status, f"{it.age:.3f} s", ""] for it in diagnosis.releases]
    return _table(["operation", "status", "age", "waits for"], rows)


def stats(stats):
    """A row for each counter."""
    return _table(["counter", "value"], [[it.name, getattr(stats, it.name)] for it in dataclasses.fields(stats)])


def report(report):
    """The page of the report in a frame; its text where a file of the trace is gone."""
    with tempfile.TemporaryDirectory() as folder:
        page = os.path.join(folder, "report.html")
        try:
            _read_report(list(report.paths), 100, True, page)
        except (OSError, ValueError):
            return f"<pre>{html.escape(report.text)}</pre>"
        with open(page, encoding="utf-8") as file:
            source = html.escape(file.read())
    return f'<iframe srcdoc="{source}" style="width:100%;height:{_HEIGHT}px;border:0" sandbox="allow-scripts"></iframe>'
