// The trace that is embedded in the page, unpacked into columns.
//
// It is the length of a JSON text in four bytes, that text, and columns, compressed together. A column is numbers in LEB128 with
// zigzag signs; `steps` hold differences to the number before. In a column of what may be missing, 0 means missing and anything
// else is one more than the value.

async function recorded() {
  const packed = Uint8Array.from(atob(document.getElementById("trace").textContent), (it) => it.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  const bytes = new Uint8Array(await new Response(stream).arrayBuffer());
  const end = 4 + new DataView(bytes.buffer).getUint32(0, true);
  return unpack(JSON.parse(new TextDecoder().decode(bytes.subarray(4, end))), bytes.subarray(end));
}

function column(bytes) {
  let count = 0;
  for (let at = 0; at < bytes.length; at++) if (bytes[at] < 128) count++;
  const values = new Float64Array(count);
  let value = 0, scale = 1, next = 0;
  for (let at = 0; at < bytes.length; at++) {
    const byte = bytes[at];
    // Not by shifts: times do not fit into 32 bits.
    value += (byte & 127) * scale;
    if (byte < 128) {
      values[next++] = value % 2 ? -(value + 1) / 2 : value / 2;
      value = 0;
      scale = 1;
    } else {
      scale *= 128;
    }
  }
  return values;
}

function steps(bytes) {
  const values = column(bytes);
  for (let at = 1; at < values.length; at++) values[at] += values[at - 1];
  return values;
}

// -1 where there is no index.
function indices(bytes) {
  return Int32Array.from(column(bytes), (value) => value - 1);
}

// NaN where there is no time; else the base plus what the column says.
function times(bytes, base) {
  return column(bytes).map((value, at) => (value === 0 ? NaN : base[at] + (value > 0 ? value - 1 : value)));
}

function unpack(source, bytes) {
  const part = ([begin, length]) => bytes.subarray(begin, begin + length);
  const parts = (places) => Object.fromEntries(Object.entries(places).map(([name, place]) => [name, part(place)]));
  const [o, l, s, e] = [source.operations, source.leases, source.stalls, source.edges].map(parts);
  const submitted = steps(o.submitted);
  const from = times(o.from, submitted);
  const opened = steps(l.opened);
  const began = steps(s.from);
  const waiter = Int32Array.from(steps(s.waiter), (value) => value - 1);
  const data = {
    ...source,
    operations: {
      count: submitted.length,
      id: steps(o.id), name: indices(o.name), kind: indices(o.kind), library: indices(o.library),
      track: indices(o.track), row: indices(o.row), site: indices(o.site), outcome: indices(o.outcome),
      submitted, from, to: times(o.to, from),
      granted: times(o.granted, submitted), began: times(o.began, submitted), issued: times(o.issued, submitted),
      done: times(o.done, submitted), observed: times(o.observed, submitted), resumed: times(o.resumed, submitted),
      firstAccess: starts(column(o.accesses)), tensor: indices(o.tensor), mode: indices(o.mode),
    },
    leases: {
      count: opened.length,
      id: steps(l.id), tensor: indices(l.tensor), mode: indices(l.mode), library: indices(l.library),
      owner: indices(l.owner), site: indices(l.site), from: opened, to: times(l.to, opened), open: indices(l.open),
    },
    stalls: {
      count: began.length,
      waiter, tensor: indices(s.tensor), from: began, to: times(s.to, began),
      cause: indices(s.cause), hazard: indices(s.hazard), via: Int32Array.from(column(s.via), (back, at) => (back ? waiter[at] - back : -1)), blame: indices(s.blame), which: indices(s.which),
    },
    edges: { count: 0, from: indices(e.from), to: indices(e.to), tensor: indices(e.tensor), hazard: indices(e.hazard) },
    counters: source.counters.map((counter) => ({ ...counter, time: steps(part(counter.time)), value: steps(part(counter.value)) })),
    critical: steps(part(source.critical)),
  };
  data.edges.count = data.edges.from.length;
  data.onPath = new Uint8Array(data.operations.count + data.leases.count);
  for (const node of data.critical) data.onPath[node] = 1;
  data.into = lists(data.edges.to, data.onPath.length);
  data.outOf = lists(data.edges.from, data.onPath.length);
  data.waitsOf = lists(data.stalls.waiter, data.operations.count);
  return data;
}

// Where the part of each begins when parts of these lengths follow each other.
function starts(lengths) {
  const sums = new Float64Array(lengths.length + 1);
  for (let at = 0; at < lengths.length; at++) sums[at + 1] = sums[at] + lengths[at];
  return sums;
}

// For each key, where it occurs in the column: `first` and `at` as in a sparse matrix.
function lists(keys, count) {
  const lengths = new Int32Array(count);
  for (const key of keys) if (key >= 0) lengths[key]++;
  const first = starts(lengths);
  const next = first.slice();
  const at = new Int32Array(first[count]);
  keys.forEach((key, index) => {
    if (key >= 0) at[next[key]++] = index;
  });
  return { of: (key) => at.subarray(first[key], first[key + 1]) };
}
