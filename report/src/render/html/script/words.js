// Numbers and things in words.

const CAUSES = [
  { name: "computing", explanation: "it was still being computed" },
  { name: "queued", explanation: "what it waited for stood in a queue itself" },
  { name: "no worker", explanation: "no worker or queue was free" },
  { name: "not observed", explanation: "it was done and that had not been observed" },
  { name: "not resumed", explanation: "it could resume and was not running yet" },
  { name: "leased", explanation: "a lease was still open" },
];
const HAZARDS = ["read after write", "write after read", "write after write"];
const MODES = ["read", "write", "update"];
const BLAME = { NONE: 0, NODE: 1, POOL: 2, QUEUE: 3, OBSERVER: 4, INTERPRETER: 5, EVENT_LOOP: 6, THREAD: 7, LOCK_OWNER: 8 };

function duration(ns, digits = 3) {
  if (!Number.isFinite(ns)) return "?";
  const units = [[1e9, "s"], [1e6, "ms"], [1e3, "µs"]];
  for (const [size, unit] of units) {
    if (Math.abs(ns) >= size) return `${Number((ns / size).toPrecision(digits)).toLocaleString("en")} ${unit}`;
  }
  return `${Math.round(ns)} ns`;
}

// A moment, as exactly as steps of `step` need.
function moment(ns, step) {
  const unit = step >= 1e9 ? [1e9, "s"] : step >= 1e6 ? [1e6, "ms"] : step >= 1e3 ? [1e3, "µs"] : [1, "ns"];
  const digits = Math.max(0, Math.ceil(-Math.log10(step / unit[0]) - 1e-9));
  const value = ns / unit[0] || 0; // no -0
  return `${value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits })} ${unit[1]}`;
}

function count(value, what) {
  return `${value.toLocaleString("en")} ${what}${value === 1 ? "" : "s"}`;
}

function size(bytes) {
  if (bytes < 1024) return `${bytes} B`;
  const power = Math.min(4, Math.floor(Math.log2(bytes) / 10));
  return `${Number((bytes / 1024 ** power).toPrecision(3))} ${["", "KiB", "MiB", "GiB", "TiB"][power]}`;
}

function amount(value, unit) {
  return unit === "bytes" ? size(value) : count(value, unit.replace(/s$/, ""));
}

// A name may have thousands of characters.
const NAME_MAX = 120;
const TEXT_MAX = 400;

function cut(words, most) {
  return words.length > most ? `${words.slice(0, most - 1)}…` : words;
}

// A name as the sentences of the report have it, without characters that a terminal would obey.
const OBEYED = /[\0-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]/g;
const ESCAPES = { "\t": "\\t", "\r": "\\r", "\n": "\\n" };

function shown(name) {
  return name.replace(OBEYED, (obeyed) => ESCAPES[obeyed] ?? `\\u{${obeyed.charCodeAt(0).toString(16)}}`);
}

function percent(part, whole) {
  return whole > 0 ? `${Math.round((100 * part) / whole)} %` : "0 %";
}

// The name of an operation or a lease.
function nodeName(data, node) {
  const { operations, leases } = data;
  if (node < operations.count) return data.names[operations.name[node]];
  const lease = node - operations.count;
  return `lease of ${data.names[leases.owner[lease]]}`;
}

function libraryName(data, library) {
  return library < 0 ? "no library" : data.libraries[library];
}

function libraryOfNode(data, node) {
  const { operations, leases } = data;
  return node < operations.count ? operations.library[node] : leases.library[node - operations.count];
}

// The operation or lease to blame for a stall, or -1.
function blockerNode(data, stall) {
  return data.stalls.blame[stall] === BLAME.NODE ? data.stalls.which[stall] : -1;
}

function blockerName(data, stall) {
  const which = data.stalls.which[stall];
  switch (data.stalls.blame[stall]) {
    case BLAME.NODE: return nodeName(data, which);
    case BLAME.POOL: return "the workers";
    case BLAME.QUEUE: case BLAME.THREAD: return data.tracks[which][0];
    case BLAME.OBSERVER: return "the reactor";
    case BLAME.INTERPRETER: return "the Python lock";
    case BLAME.LOCK_OWNER: return `the Python lock, by ${data.tracks[which][0]}`;
    case BLAME.EVENT_LOOP: return "the event loop";
    default: return "unknown";
  }
}

function siteOf(data, node) {
  const { operations, leases } = data;
  const site = node < operations.count ? operations.site[node] : leases.site[node - operations.count];
  return site < 0 ? "" : data.sites[site];
}

function waiterName(data, stall) {
  const waiter = data.stalls.waiter[stall];
  return waiter < 0 ? "an operation" : nodeName(data, waiter);
}

// One sentence about one wait.
function stallSentence(data, stall) {
  const { stalls } = data;
  const tensor = stalls.tensor[stall];
  const hazard = stalls.hazard[stall];
  const parts = [`${waiterName(data, stall)} waited ${duration(stalls.to[stall] - stalls.from[stall])}`];
  parts.push(` for ${blockerName(data, stall)}`);
  if (tensor >= 0) parts.push(` on ${data.tensors.name[tensor]}`);
  if (hazard >= 0) parts.push(`, ${HAZARDS[hazard]}`);
  return `${parts.join("")}: ${CAUSES[stalls.cause[stall]].explanation}`;
}
