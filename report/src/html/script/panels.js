// Everything around the timeline. Text from the recording only ever becomes text of an element, never markup.

function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name in made) made[name] = value;
    else made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
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
  document.getElementById("program").textContent = data.program;
  const started = data.started > 0 ? `recorded ${new Date(data.started).toISOString().replace("T", " ").slice(0, 19)} UTC` : "";
  document.getElementById("started").textContent = started;
  document.getElementById("headline").textContent = data.headline;
  const tiles = document.getElementById("tiles");
  for (const [value, label] of data.tiles) {
    tiles.append(element("div", { className: "tile" }, element("b", {}, value), element("span", {}, label)));
  }
  if (data.losses.length) {
    const banner = document.getElementById("losses");
    banner.hidden = false;
    banner.append(element("strong", {}, "This recording is not complete. "), "What is shown is right, and something is missing:");
    banner.append(element("ul", {}, ...data.losses.map((words) => element("li", {}, words))));
  }
}

// The totals by cause, as one bar and as switches.
function fillCauses(data, state, changed) {
  const whole = data.byCause.reduce((sum, part) => sum + part, 0);
  const shares = data.byCause.map((part, cause) => [`cause-${cause}`, whole > 0 ? part / whole : 0]);
  const place = document.getElementById("causes");
  place.append(bar(shares, "waited time by cause"));
  const legend = element("div", { className: "legend", role: "group" });
  legend.setAttribute("aria-label", "Causes to show");
  CAUSES.forEach((cause, at) => {
    const words = `${cause.name} ${duration(data.byCause[at])} (${percent(data.byCause[at], whole)})`;
    const button = element("button", { type: "button", title: `Waited because ${cause.told}. Click to hide or show.` });
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
  const place = document.getElementById("libraries");
  data.libraries.forEach((name, at) => place.append(element("span", {}, swatch(`library-${at % LIBRARY_COLORS}`), name)));
}

function fillWorst(data, choose) {
  const place = document.getElementById("worst");
  const longest = Math.max(1, ...data.worst.map(([stall]) => data.stalls.to[stall] - data.stalls.from[stall]));
  for (const [stall, sentence] of data.worst) {
    const waited = data.stalls.to[stall] - data.stalls.from[stall];
    const button = element("button", { type: "button", className: "stall" });
    button.dataset.stall = stall;
    const cause = data.stalls.cause[stall];
    button.append(
      element("b", {}, duration(waited)),
      element("span", {}, sentence, bar([[`cause-${cause}`, waited / longest]], CAUSES[cause].name)),
    );
    button.onclick = () => choose(stall);
    place.append(element("li", {}, button));
  }
  if (!data.worst.length) place.append(element("li", { className: "none" }, "Nothing waited."));
}

// Who waited for whom, as a heat map: rows wait, columns are waited for.
function fillMatrix(data, choose) {
  const { rows, columns, cells } = data.matrix;
  const table = document.getElementById("matrix");
  if (!rows.length) {
    table.replaceWith(element("p", { className: "none" }, "Nothing waited."));
    return;
  }
  const head = element("tr", {}, element("th", {}, "waits ↓ for →"));
  columns.forEach((name) => head.append(element("th", { scope: "col" }, name)));
  table.tHead.append(head);
  const highest = Math.max(1, ...cells.flat().map(([waited]) => waited));
  rows.forEach((name, row) => {
    const line = element("tr", {}, element("th", { scope: "row" }, name));
    columns.forEach((column, at) => {
      const [waited, stall] = cells[row][at];
      const cell = element("td");
      // By the square root, so that what is small can be told from nothing.
      const share = Math.sqrt(waited / highest);
      cell.style.setProperty("--share", `${Math.round(share * 100)}%`);
      if (share > 0.62) cell.className = "strong";
      if (waited > 0) {
        const button = element("button", { type: "button" }, duration(waited, 2));
        button.setAttribute("aria-label", `${name} waited ${duration(waited)} for ${column}; show the longest of these waits`);
        button.onclick = () => stall >= 0 && choose(stall);
        cell.append(button);
      }
      line.append(cell);
    });
    table.tBodies[0].append(line);
  });
}

// Operations of one name together.
function fillNames(data, search) {
  const { operations, stalls } = data;
  const sums = data.names.map(() => ({ count: 0, ran: 0, waited: 0, causes: CAUSES.map(() => 0) }));
  for (let at = 0; at < operations.count; at++) {
    const sum = sums[operations.name[at]];
    const end = Number.isNaN(operations.done[at]) ? operations.issued[at] : operations.done[at];
    sum.count++;
    if (end > operations.began[at]) sum.ran += end - operations.began[at];
  }
  for (let at = 0; at < stalls.count; at++) {
    if (stalls.waiter[at] < 0 || !stalls.decisive[at]) continue;
    const sum = sums[operations.name[stalls.waiter[at]]];
    sum.waited += stalls.to[at] - stalls.from[at];
    sum.causes[stalls.cause[at]] += stalls.to[at] - stalls.from[at];
  }
  const order = [...sums.keys()].filter((name) => sums[name].count).sort((a, b) => sums[b].waited - sums[a].waited);
  const longest = Math.max(1, ...order.map((name) => sums[name].waited));
  const body = document.getElementById("names").tBodies[0];
  for (const name of order.slice(0, NAMES_MAX)) {
    const { count: times, ran, waited, causes } = sums[name];
    const button = element("button", { type: "button", title: "Search for this name" }, data.names[name]);
    button.onclick = () => search(data.names[name]);
    const shares = causes.map((part, cause) => [`cause-${cause}`, part / longest]);
    const told = CAUSES.map((cause, at) => `${cause.name} ${duration(causes[at])}`).join(", ");
    body.append(element("tr", {},
      element("th", { scope: "row" }, button),
      element("td", {}, times.toLocaleString("en")),
      element("td", {}, duration(ran)),
      element("td", {}, duration(waited)),
      element("td", { className: "wide" }, bar(shares, told)),
    ));
  }
  if (order.length > NAMES_MAX) {
    document.getElementById("names-left").textContent = `${count(order.length - NAMES_MAX, "more name")} that waited less.`;
  }
}
const NAMES_MAX = 14;

// What the tooltip says about an item of the timeline.
function tooltipOf(data, { kind, item }) {
  const line = (words, name = "") => element("div", { className: name }, words);
  if (kind === "waits") {
    const { stalls } = data;
    const node = culpritNode(data, item);
    const lines = [
      line(`${waiterName(data, item)} waited ${duration(stalls.to[item] - stalls.from[item])}`, "title"),
      element("div", {}, swatch(`cause-${stalls.cause[item]}`), `${CAUSES[stalls.cause[item]].name}: ${CAUSES[stalls.cause[item]].told}`),
      line(`culprit: ${culpritName(data, item)}${node >= 0 && siteOf(data, node) ? ` (${siteOf(data, node)})` : ""}`),
    ];
    const tensor = stalls.tensor[item];
    const hazard = stalls.hazard[item];
    if (tensor >= 0) lines.push(line(`on ${data.tensors.name[tensor]}${hazard >= 0 ? `, ${HAZARDS[hazard]}` : ""}`));
    lines.push(line("click: go to the culprit", "faint"));
    return lines;
  }
  const node = kind === "lane" ? item : data.operations.count + item;
  const columns = kind === "lane" ? data.operations : data.leases;
  const lines = [
    line(nodeName(data, node), "title"),
    line(`${duration(columns.to[item] - columns.from[item])}, ${libraryName(data, libraryOfNode(data, node))}`),
  ];
  if (kind === "leases") lines.push(line(`on ${data.tensors.name[columns.tensor[item]] ?? "a tensor"} (${MODES[columns.mode[item]]})`));
  if (siteOf(data, node)) lines.push(line(siteOf(data, node), "faint"));
  if (data.onPath[node]) lines.push(line("on the critical path", "path"));
  return lines;
}

const PHASES = [["submitted", "granted"], ["granted", "began"], ["began", "issued"], ["issued", "done"], ["done", "observed"], ["observed", "resumed"]];
const LISTED_MAX = 8;

// The panel about what is selected.
function fillDetails(data, state, actions) {
  const place = document.getElementById("details");
  place.replaceChildren();
  if (state.stall < 0 && state.node < 0) {
    place.append(element("p", { className: "none" }, "Click a wait to go to its culprit, or anything else to see what it waited for. Press ? for the keys."));
    return;
  }
  if (state.stall >= 0) place.append(...stallDetails(data, state, actions));
  if (state.node >= 0) place.append(...nodeDetails(data, state.node, actions));
}

function link(words, action) {
  return element("button", { type: "button", className: "link", onclick: action }, words);
}

function stallDetails(data, state, actions) {
  const { stall } = state;
  const waiter = data.stalls.waiter[stall];
  const box = element("div", { className: "sentence" }, swatch(`cause-${data.stalls.cause[stall]}`), stallSentence(data, stall), ".");
  const parts = [element("h3", {}, "The wait"), box];
  if (waiter >= 0) parts.push(element("p", {}, "Who waited: ", link(nodeName(data, waiter), () => actions.select(waiter))));
  const node = culpritNode(data, stall);
  if (node < 0) parts.push(element("p", {}, `To blame: ${culpritName(data, stall)}.`));
  else parts.push(element("h3", {}, state.node === node ? "The culprit" : "Selected"));
  return parts;
}

function nodeDetails(data, node, actions) {
  const { operations, leases } = data;
  const operation = node < operations.count;
  const facts = element("dl");
  const fact = (name, value) => value && facts.append(element("dt", {}, name), element("dd", {}, value));
  const parts = [element("h2", {}, nodeName(data, node))];
  fact("library", libraryName(data, libraryOfNode(data, node)));
  fact("line", siteOf(data, node));
  if (operation) {
    fact("number", operations.id[node].toString());
    fact("kind", data.kinds[operations.kind[node]]);
    if (operations.lane[node] >= 0) fact("lane", data.lanes[operations.lane[node]][0]);
    const uses = [];
    for (let at = operations.firstAccess[node]; at < operations.firstAccess[node + 1]; at++) {
      uses.push(`${MODES[operations.mode[at]]}s ${data.tensors.name[operations.tensor[at]] ?? "a tensor"}`);
    }
    fact("uses", uses.join(", "));
    if (operations.outcome[node] >= 0) fact("outcome", data.outcomes[operations.outcome[node]]);
    fact("submitted", `at ${duration(operations.submitted[node], 6)}`);
    for (const [first, then] of PHASES) {
      const length = operations[then][node] - operations[first][node];
      if (length > 0) fact(`${first} → ${then}`, duration(length));
    }
  } else {
    const lease = node - operations.count;
    fact("number", leases.id[lease].toString());
    fact("tensor", `${data.tensors.name[leases.tensor[lease]] ?? "unknown"} (${MODES[leases.mode[lease]]})`);
    fact("opened", `at ${duration(leases.from[lease], 6)}`);
    fact("held", leases.open[lease] >= 0 ? "still open at the end" : duration(leases.to[lease] - leases.from[lease]));
  }
  if (data.onPath[node]) fact("critical path", "on it");
  parts.push(facts);
  if (operation) parts.push(...listed("Its waits", [...data.waitsOf.of(node)], (stall) => [
    swatch(`cause-${data.stalls.cause[stall]}`),
    link(`${duration(data.stalls.to[stall] - data.stalls.from[stall])} ${CAUSES[data.stalls.cause[stall]].name}: ${culpritName(data, stall)}`,
      () => actions.stall(stall)),
  ]));
  const neighbour = (edge, other) => [
    link(nodeName(data, other), () => actions.select(other)),
    ` ${data.tensors.name[data.edges.tensor[edge]] ?? ""}, ${HAZARDS[data.edges.hazard[edge]]}`,
  ];
  parts.push(...listed("After", [...data.into.of(node)], (edge) => neighbour(edge, data.edges.from[edge])));
  parts.push(...listed("Before", [...data.outOf.of(node)], (edge) => neighbour(edge, data.edges.to[edge])));
  return parts;
}

function listed(title, items, show) {
  if (!items.length) return [];
  const list = element("ul", {}, ...items.slice(0, LISTED_MAX).map((item) => element("li", {}, ...show(item))));
  if (items.length > LISTED_MAX) list.append(element("li", { className: "none" }, `and ${items.length - LISTED_MAX} more`));
  return [element("h3", {}, title), list];
}
