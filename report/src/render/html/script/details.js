// The panel about what is selected.

const PHASES = [["submitted", "granted"], ["granted", "began"], ["began", "issued"], ["issued", "done"], ["done", "observed"], ["observed", "resumed"]];
const LISTED_MAX = 8;

// The panel about what is selected.
function fillDetails(data, state, actions) {
  const place = document.getElementById("details");
  place.replaceChildren();
  if (state.stall < 0 && state.node < 0) {
    place.append(element("p", { className: "none" }, "Click a wait to go to its blocker, or anything else to see what it waited for. Press ? for the keys."));
    return;
  }
  if (state.stall >= 0) place.append(...stallDetails(data, state, actions));
  if (state.node >= 0) place.append(...nodeDetails(data, state.node, actions));
}

function link(words, action) {
  const short = cut(words, NAME_MAX);
  return element("button", { type: "button", className: "link", onclick: action, title: short === words ? "" : words }, short);
}

function stallDetails(data, state, actions) {
  const { stall } = state;
  const waiter = data.stalls.waiter[stall];
  const box = element("div", { className: "sentence" }, swatch(`cause-${data.stalls.cause[stall]}`), stallSentence(data, stall), ".");
  const parts = [element("h3", {}, "The wait"), box];
  if (waiter >= 0) parts.push(element("p", {}, "Who waited: ", link(nodeName(data, waiter), () => actions.select(waiter))));
  const node = blockerNode(data, stall);
  if (node < 0) parts.push(element("p", {}, `To blame: ${blockerName(data, stall)}.`));
  else parts.push(element("h3", {}, state.node === node ? "The blocker" : "Selected"));
  return parts;
}

function nodeDetails(data, node, actions) {
  const { operations, leases } = data;
  const operation = node < operations.count;
  const facts = element("dl");
  const fact = (name, value) => value && facts.append(element("dt", {}, name), element("dd", {}, value));
  const parts = [named("h2", nodeName(data, node))];
  fact("library", libraryName(data, libraryOfNode(data, node)));
  fact("line", siteOf(data, node));
  if (operation) {
    // Waits have numbers that only the recorder uses, and that are too large for a double.
    if (operations.id[node] < 2 ** 53) fact("number", operations.id[node].toString());
    fact("kind", data.kinds[operations.kind[node]]);
    if (operations.track[node] >= 0) fact("track", data.tracks[operations.track[node]][0]);
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
    link(`${duration(data.stalls.to[stall] - data.stalls.from[stall])} ${CAUSES[data.stalls.cause[stall]].name}: ${blockerName(data, stall)}`,
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
