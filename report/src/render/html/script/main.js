// The page: what is selected, what is searched for, which keys do what.

function begin(data) {
  const state = {
    stall: -1, // a wait
    node: -1, // an operation or a lease
    hover: null,
    causes: CAUSES.map(() => true),
    matches: null, // for each operation and lease, whether its name is searched for
    found: [],
    path: false, // only the critical path
  };

  const timeline = new Timeline(data, state, {
    clicked(found) {
      if (!found) clear();
      else if (found.kind === "waits") chooseStall(found.item, false);
      else select(found.kind === "track" ? found.item : data.operations.count + found.item, false);
    },
    explanation: (found) => tooltipOf(data, found),
  });

  function announce(words) {
    document.getElementById("status").textContent = words;
  }

  function details() {
    fillDetails(data, state, { select: (node) => select(node, true), stall: (stall) => chooseStall(stall, true) });
  }

  // Selects a wait and with it its blocker.
  function chooseStall(stall, reveal = true) {
    state.stall = stall;
    state.node = blockerNode(data, stall);
    details();
    announce(stallSentence(data, stall));
    if (reveal) timeline.reveal(data.stalls.from[stall], data.stalls.to[stall], "waits", stall);
    else timeline.draw();
  }

  function select(node, reveal = true) {
    state.stall = -1;
    state.node = node;
    details();
    const site = siteOf(data, node);
    announce(`${nodeName(data, node)}${site ? `, ${site}` : ""}`);
    if (reveal) revealNode(node);
    timeline.draw();
  }

  function revealNode(node) {
    const { operations, leases } = data;
    if (node < operations.count) {
      const to = Number.isNaN(operations.to[node]) ? operations.from[node] : operations.to[node];
      timeline.reveal(operations.from[node], to, "track", node);
    } else {
      const lease = node - operations.count;
      timeline.reveal(leases.from[lease], leases.to[lease], "leases", lease);
    }
  }

  function clear() {
    state.stall = state.node = -1;
    details();
    timeline.draw();
  }

  // Waits by their length, for going from one to the next.
  const byLength = data.longest;
  function nextStall(step) {
    if (!byLength.length) return;
    const at = byLength.indexOf(state.stall);
    const next = at < 0 ? (step > 0 ? 0 : byLength.length - 1) : (at + step + byLength.length) % byLength.length;
    chooseStall(byLength[next]);
  }

  const searchBox = document.getElementById("search");

  function search(text) {
    searchBox.value = text;
    const wanted = shown(text.trim()).toLowerCase();
    const { operations, leases } = data;
    const result = document.getElementById("found");
    if (!wanted) {
      state.matches = null;
      state.found = [];
      result.textContent = "";
      timeline.draw();
      return;
    }
    const contains = (words) => shown(words).toLowerCase().includes(wanted);
    const names = data.names.map(contains);
    const sites = data.sites.map(contains);
    const tensors = data.tensors.name.map(contains);
    const matches = new Uint8Array(operations.count + leases.count);
    for (let at = 0; at < operations.count; at++) {
      matches[at] = names[operations.name[at]] || (operations.site[at] >= 0 && sites[operations.site[at]]);
      for (let use = operations.firstAccess[at]; !matches[at] && use < operations.firstAccess[at + 1]; use++) {
        matches[at] = tensors[operations.tensor[use]] ?? false;
      }
    }
    for (let at = 0; at < leases.count; at++) {
      const site = leases.site[at];
      matches[operations.count + at] =
        names[leases.owner[at]] || (site >= 0 && sites[site]) || (tensors[leases.tensor[at]] ?? false);
    }
    state.matches = matches;
    const start = (node) => (node < operations.count ? operations.from[node] : leases.from[node - operations.count]);
    state.found = [...matches.keys()].filter((node) => matches[node]).sort((a, b) => start(a) - start(b));
    result.textContent = state.found.length ? `${state.found.length.toLocaleString("en")} found` : "nothing found";
    timeline.draw();
  }

  function nextFound(step) {
    const { found } = state;
    if (!found.length) return;
    const at = found.indexOf(state.node);
    select(found[(at < 0 ? (step > 0 ? 0 : found.length - 1) : at + step + found.length) % found.length]);
  }

  function togglePath() {
    state.path = !state.path;
    document.getElementById("path").setAttribute("aria-pressed", String(state.path));
    announce(state.path ? "the critical path stands out" : "everything is shown alike");
    timeline.draw();
  }

  function toggleTheme() {
    const root = document.documentElement;
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    timeline.recolor();
  }

  const help = document.getElementById("help");
  const KEYS = {
    ArrowLeft: () => timeline.pan(-0.15), a: () => timeline.pan(-0.15),
    ArrowRight: () => timeline.pan(0.15), d: () => timeline.pan(0.15),
    "+": () => timeline.zoom(0.6), "=": () => timeline.zoom(0.6), w: () => timeline.zoom(0.6),
    "-": () => timeline.zoom(1 / 0.6), s: () => timeline.zoom(1 / 0.6),
    0: () => timeline.show(timeline.whole.from, timeline.whole.to),
    ArrowUp: () => timeline.scroller.scrollBy(0, -60),
    ArrowDown: () => timeline.scroller.scrollBy(0, 60),
    "]": () => nextStall(1), "[": () => nextStall(-1),
    n: () => nextFound(1), N: () => nextFound(-1),
    c: () => state.node >= 0 && revealNode(state.node),
    p: togglePath,
    t: toggleTheme,
    "/": () => searchBox.focus(),
    "?": () => help.showModal(),
    Escape: clear,
  };

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || help.open) return;
    if (event.target === searchBox) {
      if (event.key === "Enter") nextFound(event.shiftKey ? -1 : 1);
      else if (event.key === "Escape") {
        search("");
        timeline.canvas.focus();
      } else return;
      event.preventDefault();
      return;
    }
    // Up and down scroll the page, except where the timeline has the focus.
    if (event.key.startsWith("Arrow") && event.target !== timeline.canvas && /Up|Down/.test(event.key)) return;
    const action = KEYS[event.key];
    if (!action) return;
    event.preventDefault();
    action();
  });

  searchBox.addEventListener("input", () => search(searchBox.value));
  document.getElementById("path").onclick = togglePath;
  document.getElementById("theme").onclick = toggleTheme;
  document.getElementById("keys").onclick = () => help.showModal();
  document.getElementById("fit").onclick = KEYS[0];
  document.getElementById("in").onclick = KEYS["+"];
  document.getElementById("out").onclick = KEYS["-"];
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => timeline.recolor());

  fillHead(data);
  fillCauses(data, state, () => timeline.draw());
  fillLibraries(data);
  fillWorst(data, (stall) => {
    chooseStall(stall);
    document.getElementById("scroller").scrollIntoView({ block: "nearest" });
  });
  fillAdvice(data);
  fillMatrix(data, (stall) => chooseStall(stall));
  fillExchanges(data);
  fillHandOvers(data);
  fillNames(data, (name) => {
    search(name);
    nextFound(1);
  });
  details();

  // For the browser's console, and for tests.
  window.report = { data, state, timeline, search, chooseStall, select };
  document.documentElement.dataset.ready = "true";
}

recorded().then(begin).catch((error) => {
  document.documentElement.dataset.ready = "failed";
  const old = typeof DecompressionStream === "undefined";
  document.getElementById("headline").textContent = old
    ? "This page needs a browser of 2023 or later: Chromium 80, Firefox 113, Safari 16.4."
    : `The trace in this page cannot be read: ${error}`;
});
