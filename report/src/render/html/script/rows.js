// The rows of the timeline, from top to bottom, and what lies in each.

const TRACK_HEIGHT = 19;
const WAIT_HEIGHT = 8;
const LEASE_HEIGHT = 9;
const COUNTER_HEIGHT = 38;
const NOTE_HEIGHT = 14;
const HEADING_HEIGHT = 24;
const ROW_GAP = 5;
// What overlaps more than this often shares its last shelf.
const SHELVES_MAX = { track: 4, waits: 10, leases: 5 };

function makeRows(data) {
  const rows = [];
  const { operations, leases, stalls } = data;
  const byTrack = data.tracks.map(() => []);
  const elsewhere = [];
  for (let at = 0; at < operations.count; at++) {
    if (Number.isNaN(operations.to[at])) continue; // a moment
    (operations.row[at] >= 0 ? byTrack[operations.row[at]] : elsewhere).push(at);
  }
  heading(rows, "tracks");
  data.tracks.forEach(([name, kind], track) => {
    if (byTrack[track].length) rows.push(row("track", name, kind, byTrack[track], operations, TRACK_HEIGHT));
  });
  if (elsewhere.length) rows.push(row("track", "no track", "", elsewhere, operations, TRACK_HEIGHT));

  const libraries = [...data.libraries.keys(), -1];
  const waits = new Map(libraries.map((library) => [library, []]));
  for (let at = 0; at < stalls.count; at++) {
    const waiter = stalls.waiter[at];
    waits.get(waiter < 0 ? -1 : operations.library[waiter]).push(at);
  }
  const held = new Map(libraries.map((library) => [library, []]));
  for (let at = 0; at < leases.count; at++) held.get(leases.library[at]).push(at);
  groups(rows, "waits", waits, stalls, WAIT_HEIGHT, data);
  groups(rows, "leases", held, leases, LEASE_HEIGHT, data);

  if (data.counters.some((counter) => counter.time.length)) heading(rows, "counters");
  for (const counter of data.counters) {
    if (!counter.time.length) continue;
    const highest = counter.value.reduce((high, value) => Math.max(high, value), 1);
    const notes = [`up to ${amount(highest, counter.unit)}`];
    // Of several processes each counter has the number of its own behind its name, for which a line has no room.
    const [, name, process] = /^(.*) @(\d+)$/s.exec(counter.name) ?? [null, counter.name, null];
    if (process) notes.push(`process ${process}`);
    rows.push({ kind: "counter", label: name, notes, counter, highest, height: COUNTER_HEIGHT + (notes.length - 1) * NOTE_HEIGHT });
  }

  let top = 0;
  for (const each of rows) {
    each.top = top;
    top += each.height + ROW_GAP;
  }
  return { rows, height: top };
}

function heading(rows, label) {
  rows.push({ kind: "heading", label, height: HEADING_HEIGHT });
}

function groups(rows, kind, byLibrary, columns, height, data) {
  if (![...byLibrary.values()].some((items) => items.length)) return;
  heading(rows, kind);
  for (const [library, items] of byLibrary) {
    const note = kind === "waits" ? "waits" : "holds";
    if (items.length) rows.push(row(kind, libraryName(data, library), note, items, columns, height));
  }
}

// Puts intervals side by side on as few shelves as hold them: what begins takes the shelf that was left first.
function row(kind, label, note, items, columns, height) {
  const { from, to } = columns;
  items.sort((a, b) => from[a] - from[b] || to[a] - to[b]);
  const ends = [];
  const shelves = [];
  const shared = new Set();
  for (const item of items) {
    let shelf = ends.findIndex((end) => end <= from[item]);
    if (shelf < 0) shelf = Math.min(ends.length, SHELVES_MAX[kind] - 1);
    if (ends[shelf] > from[item]) shared.add(shelf);
    (shelves[shelf] ??= []).push(item);
    ends[shelf] = Math.max(ends[shelf] ?? 0, to[item]);
  }
  const packed = shelves.map((shelf, at) => ({
    shared: shared.has(at),
    item: Int32Array.from(shelf),
    from: Float64Array.from(shelf, (item) => from[item]),
    to: Float64Array.from(shelf, (item) => to[item]),
    // The latest end so far: what is in order even on a shared shelf.
    reach: reach(shelf, to),
  }));
  return { kind, label, notes: [note], shelves: packed, shelfHeight: height, height: height * packed.length, count: items.length };
}

function reach(shelf, to) {
  let latest = 0;
  return Float64Array.from(shelf, (item) => (latest = Math.max(latest, to[item])));
}

// The first place in a column in order whose value is greater than `value`.
function after(column, value) {
  let low = 0, high = column.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (column[middle] > value) high = middle;
    else low = middle + 1;
  }
  return low;
}
