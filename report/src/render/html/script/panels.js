// Everything around the timeline. Text from the trace only ever becomes text of an element, never markup.

function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name in made) made[name] = value;
    else made.setAttribute(name, value);
  }
  for (const child of children) {
    const isLong = typeof child === "string" && child.length > TEXT_MAX;
    if (isLong) made.title ||= child;
    made.append(isLong ? cut(child, TEXT_MAX) : child);
  }
  return made;
}

// A name, of which the whole is shown when the mouse is over it.
function named(tag, name) {
  const short = cut(name, NAME_MAX);
  return element(tag, short === name ? {} : { title: name }, short);
}

// The report's sentences put names between backquotes; here they get a style of their own.
function prose(sentence) {
  const parts = sentence.split("`");
  return parts.map((part, at) => (at % 2 && at < parts.length - 1 ? named("code", part) : part));
}

// A coloured square for a legend.
function swatch(color) {
  const made = element("span", { className: "swatch" });
  made.style.background = `var(--${color})`;
  return made;
}

function bar(shares, label) {
  const made = element("span", { className: "bar", role: "img" });
  made.setAttribute("aria-label", label);
  for (const [color, share] of shares) {
    if (!(share > 0)) continue;
    const part = element("span");
    part.style.background = `var(--${color})`;
    part.style.width = `${100 * share}%`;
    made.append(part);
  }
  return made;
}

function fillHead(data) {
  document.title = `${data.program}: where the time went`;
  document.getElementById("program").append(named("span", data.program));
  const started = data.started > 0 ? `recorded ${new Date(data.started).toISOString().replace("T", " ").slice(0, 19)} UTC` : "";
  document.getElementById("started").textContent = started;
  const { headline, totals, failures, critical_path: path, clocks, missing } = data.report;
  const [first, ...rest] = headline.split(/(?<=\.) (?=The longest)/);
  document.getElementById("headline").replaceChildren(...prose(first));
  document.getElementById("longest").append(...prose(rest.join(" ")));
  const tiles = document.getElementById("tiles");
  const tile = (value, label) => {
    tiles.append(element("div", { className: "tile" }, element("b", {}, value), element("span", {}, label)));
  };
  tile(duration(data.duration), "run time");
  tile(totals.operations.toLocaleString("en"), "operations");
  tile(duration(totals.waited_ns), "waited, summed");
  tile(duration(totals.running_ns), "computed, summed");
  tile(`${duration(path.length_ns)} (${percent(path.length_ns, data.duration)})`, "critical path");
  if (totals.leases) tile(totals.leases.toLocaleString("en"), "leases");
  for (const [number, label] of [[totals.failed, "failed"], [totals.cancelled, "cancelled"], [totals.skipped, "skipped"], [totals.unfinished, "not ended"]]) {
    if (number) tile(number.toLocaleString("en"), label);
  }
  const list = document.getElementById("failures");
  for (const { name, why, count: times } of failures) {
    list.append(element("li", {}, ...prose(name), times > 1 ? ` (${times.toLocaleString("en")} times): ` : ": ", named("span", why)));
  }
  const banner = document.getElementById("losses");
  banner.hidden = !missing.length && !clocks.length;
  if (clocks.length) banner.append(element("ul", {}, ...clocks.map((words) => element("li", {}, words))));
  if (missing.length) {
    banner.append(element("strong", {}, "This trace is not complete. "), "What is shown is right, and something is missing:");
    banner.append(element("ul", {}, ...missing.map((words) => element("li", {}, words))));
  }
}

// The totals by cause, as one bar and as switches.
function fillCauses(data, state, changed) {
  const byCause = data.report.causes.map((row) => row.waited_ns);
  const whole = byCause.reduce((sum, part) => sum + part, 0);
  const shares = byCause.map((part, cause) => [`cause-${cause}`, whole > 0 ? part / whole : 0]);
  const place = document.getElementById("causes");
  place.append(bar(shares, "waited time by cause"));
  const legend = element("div", { className: "legend", role: "group" });
  legend.setAttribute("aria-label", "Causes to show");
  CAUSES.forEach((cause, at) => {
    const words = `${cause.name} ${duration(byCause[at])} (${percent(byCause[at], whole)})`;
    const button = element("button", { type: "button", title: `Waited because ${cause.explanation}. Click to hide or show.` });
    button.setAttribute("aria-pressed", "true");
    button.append(swatch(`cause-${at}`), words);
    button.onclick = () => {
      state.causes[at] = !state.causes[at];
      button.setAttribute("aria-pressed", String(state.causes[at]));
      changed();
    };
    legend.append(button);
  });
  place.append(legend);
}

function fillLibraries(data) {
  if (data.part) {
    document.getElementById("joined").textContent = `Intervals of less than 1/${data.part} of their wait are drawn with their neighbour.`;
  }
  const place = document.getElementById("libraries");
  data.libraries.forEach((name, at) => place.append(element("span", {}, swatch(`library-${at % LIBRARY_COLORS}`), name)));
}

// The ten worst waits in the report's words.
function fillWorst(data, choose) {
  const place = document.getElementById("worst");
  const rows = data.report.worst;
  rows.forEach((row, at) => {
    const button = element("button", { type: "button", className: "stall" });
    button.dataset.stall = data.worst[at];
    const color = `cause-${CAUSES.findIndex((cause) => cause.name === row.cause)}`;
    const share = row.total_ns / rows[0].total_ns;
    button.append(element("b", {}, duration(row.total_ns)), element("span", {}, ...prose(row.sentence), bar([[color, share]], row.cause)));
    button.onclick = () => choose(data.worst[at]);
    place.append(element("li", {}, button));
  });
  if (!rows.length) place.append(element("li", { className: "none" }, "Nothing waited."));
}

// What would help, and what the run time went into.
function fillAdvice(data) {
  const { advice, run_time: parts, barriers } = data.report;
  const place = document.getElementById("advice");
  for (const { change, saves_ns: saves } of advice) {
    const saved = element("span", { className: "faint" }, `saves up to ${duration(saves)} (${percent(saves, data.duration)})`);
    place.append(element("li", {}, ...prose(change), element("br"), saved));
  }
  if (!advice.length) place.append(element("li", { className: "none" }, "Nothing that this trace shows."));
  const list = document.getElementById("run-time");
  for (const { what, time_ns: time } of parts.slice(0, PARTS_MAX)) {
    const share = [["accent", time / Math.max(1, parts[0].time_ns)]];
    list.append(element("li", {}, element("span", {}, ...prose(what)), element("b", {}, duration(time)), bar(share, percent(time, data.duration))));
  }
  if (barriers.hand_overs) {
    document.getElementById("barriers").textContent = `A global barrier at each of ${count(barriers.hand_overs, "hand-over")} ` +
      `would have waited ${duration(barriers.extra_ns)} longer, ${duration(barriers.worst_ns)} at worst.`;
  }
}
const PARTS_MAX = 8;

// Who waited for whom, as a heat map: rows wait, columns are waited for.
function fillMatrix(data, choose) {
  const { libraries, waited_ns: cells } = data.report.matrix;
  const table = document.getElementById("matrix");
  if (!libraries.length) {
    table.replaceWith(element("p", { className: "none" }, "Nothing waited."));
    return;
  }
  const longest = data.longestOfCells;
  const head = element("tr", {}, element("th", {}, "waits ↓ for →"));
  libraries.forEach((name) => head.append(element("th", { scope: "col" }, name)));
  table.tHead.append(head);
  const highest = Math.max(1, ...cells.flat());
  libraries.forEach((name, row) => {
    if (!cells[row].some((waited) => waited)) return; // waits for no library
    const line = element("tr", {}, element("th", { scope: "row" }, name));
    libraries.forEach((column, at) => {
      const waited = cells[row][at];
      const cell = element("td");
      // By the square root, so that what is small differs visibly from nothing.
      const share = Math.sqrt(waited / highest);
      cell.style.setProperty("--share", `${Math.round(share * 100)}%`);
      if (share > 0.62) cell.className = "strong";
      if (waited > 0) {
        const button = element("button", { type: "button" }, duration(waited, 2));
        button.setAttribute("aria-label", `${name} waited ${duration(waited)} for ${column}; show the longest of these waits`);
        button.onclick = () => longest[row][at] !== null && choose(longest[row][at]);
        cell.append(button);
      }
      line.append(cell);
    });
    table.tBodies[0].append(line);
  });
}

// What one library handed to another.
function fillExchanges(data) {
  const table = document.getElementById("exchanges");
  const { exchanges } = data.report;
  if (!exchanges.length) {
    table.replaceWith(element("p", { className: "none" }, "Nothing was handed over."));
    return;
  }
  for (const { producer, consumer, count: times, bytes, copies, copied_bytes: copied, waited_ns: waited } of exchanges) {
    const cells = [times, bytes, copies, copied].map((number) => element("td", {}, number.toLocaleString("en")));
    table.tBodies[0].append(element("tr", {}, element("th", { scope: "row" }, `${producer} → ${consumer}`), ...cells, element("td", {}, duration(waited))));
  }
}

// Hand-overs between streams that nothing ordered.
function fillHandOvers(data) {
  const list = document.getElementById("hand-overs");
  for (const { order, producer, consumer, made, taken, why, count: times } of data.report.hand_overs) {
    const lines = [made && `made after ${made}`, taken && `taken at ${taken}`].filter(Boolean).map((line) => `, ${line}`);
    const state = order === "none" ? "not ordered" : "order unknown";
    list.append(element("li", {}, `${state}: ${producer} → ${consumer}, ${times} ×${lines.join("")}: ${why}`));
  }
}

// Whether the program's author has named it: the engine's own waits and leases have names of its own, without backquotes.
function isNamed({ kind, name }) {
  return ["operation", "copy", "wait", "await"].includes(kind) && name.startsWith("`");
}

// What finds the operations of a row: the line of a wait, or the name of anything else.
function searchText(name) {
  const end = name.lastIndexOf("`");
  return end < name.length - 1 ? name.slice(end + "` at ".length) : name.slice(1, end);
}

// Operations of one name together, as the report has them.
function fillNames(data, search) {
  // The report may be sorted by name.
  const rows = data.report.operations.filter(isNamed).sort((a, b) => b.waited_ns - a.waited_ns);
  const longest = Math.max(1, rows[0]?.waited_ns ?? 0);
  const body = document.getElementById("names").tBodies[0];
  for (const { name, count: times, running_ns: ran, waited_ns: waited, causes_ns: causes } of rows.slice(0, NAMES_MAX)) {
    const text = searchText(name);
    const button = element("button", { type: "button", title: `Search for this: ${text}` }, cut(name.replaceAll("`", ""), NAME_MAX));
    button.onclick = () => search(text);
    const shares = causes.map((part, cause) => [`cause-${cause}`, part / longest]);
    const titles = CAUSES.map((cause, at) => `${cause.name} ${duration(causes[at])}`).join(", ");
    body.append(element("tr", {},
      element("th", { scope: "row" }, button),
      element("td", {}, times.toLocaleString("en")),
      element("td", {}, duration(ran)),
      element("td", {}, duration(waited)),
      element("td", { className: "wide" }, bar(shares, titles)),
    ));
  }
  if (rows.length > NAMES_MAX) {
    document.getElementById("names-left").textContent = `${count(rows.length - NAMES_MAX, "more name")} that waited less.`;
  }
}
const NAMES_MAX = 14;

// What the tooltip says about an item of the timeline.
function tooltipOf(data, { kind, item }) {
  const line = (words, name = "") => element("div", { className: name }, words);
  if (kind === "waits") {
    const { stalls } = data;
    const node = blockerNode(data, item);
    const lines = [
      line(`${waiterName(data, item)} waited ${duration(stalls.to[item] - stalls.from[item])}`, "title"),
      element("div", {}, swatch(`cause-${stalls.cause[item]}`), `${CAUSES[stalls.cause[item]].name}: ${CAUSES[stalls.cause[item]].explanation}`),
      line(`blocker: ${blockerName(data, item)}${node >= 0 && siteOf(data, node) ? ` (${siteOf(data, node)})` : ""}`),
    ];
    const tensor = stalls.tensor[item];
    const hazard = stalls.hazard[item];
    const via = stalls.via[item];
    if (via >= 0) lines.push(line(`by way of ${nodeName(data, via)}`));
    if (tensor >= 0) lines.push(line(`on ${data.tensors.name[tensor]}${hazard >= 0 ? `, ${HAZARDS[hazard]}` : ""}`));
    lines.push(line("click: go to the blocker", "faint"));
    return lines;
  }
  const node = kind === "track" ? item : data.operations.count + item;
  const columns = kind === "track" ? data.operations : data.leases;
  const lines = [
    line(nodeName(data, node), "title"),
    line(`${duration(columns.to[item] - columns.from[item])}, ${libraryName(data, libraryOfNode(data, node))}`),
  ];
  if (kind === "leases") lines.push(line(`on ${data.tensors.name[columns.tensor[item]] ?? "a tensor"} (${MODES[columns.mode[item]]})`));
  if (siteOf(data, node)) lines.push(line(siteOf(data, node), "faint"));
  if (data.onPath[node]) lines.push(line("on the critical path", "path"));
  return lines;
}
