// The timeline: a canvas that shows part of the time and some of the rows, an overview of all of it, and what the mouse does.

const SHOWN_MIN_NS = 200;
const MARGIN = 0.01;

class Timeline {
  constructor(data, state, listener) {
    this.data = data;
    this.state = state;
    this.listener = listener;
    this.canvas = document.getElementById("timeline");
    this.scroller = document.getElementById("scroller");
    this.spacer = document.getElementById("spacer");
    this.overview = document.getElementById("overview");
    this.tooltip = document.getElementById("tooltip");
    this.layout = makeLayout(data);
    this.whole = { from: -data.duration * MARGIN, to: data.duration * (1 + MARGIN) || 1 };
    this.view = { ...this.whole, width: 0, height: 0, scroll: 0, gutter: GUTTER_WIDE };
    this.painter = new Painter(data, this.layout, readColors());
    this.drawn = 0;
    this.listen();
    this.resize();
  }

  listen() {
    const { canvas, scroller, overview } = this;
    new ResizeObserver(() => this.resize()).observe(scroller);
    scroller.addEventListener("scroll", () => {
      this.view.scroll = scroller.scrollTop;
      this.draw();
    });
    canvas.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    canvas.addEventListener("pointerdown", (event) => this.press(event));
    canvas.addEventListener("pointermove", (event) => this.hover(event));
    canvas.addEventListener("pointerleave", () => this.leave());
    canvas.addEventListener("dblclick", (event) => this.zoom(0.2, this.timeAt(event.offsetX)));
    const jump = (event) => {
      const { gutter, width } = this.view;
      const share = Math.max(0, (event.offsetX - gutter) / (width - gutter));
      this.centre(this.whole.from + share * (this.whole.to - this.whole.from));
    };
    overview.addEventListener("pointerdown", (event) => {
      overview.setPointerCapture(event.pointerId);
      jump(event);
    });
    overview.addEventListener("pointermove", (event) => event.buttons && jump(event));
  }

  resize() {
    const width = this.scroller.clientWidth;
    this.view.gutter = width < 700 ? GUTTER_NARROW : GUTTER_WIDE;
    const wanted = this.layout.height + AXIS_HEIGHT + 4;
    this.scroller.style.height = `${Math.min(wanted, Math.max(300, Math.round(window.innerHeight * 0.68)))}px`;
    this.spacer.style.height = `${wanted}px`;
    this.view.width = this.scroller.clientWidth;
    this.view.height = this.scroller.clientHeight;
    fit(this.canvas, this.view.width, this.view.height);
    fit(this.overview, this.overview.parentElement.clientWidth, 46);
    this.background = null;
    this.draw();
  }

  recolor() {
    this.painter.colors = readColors();
    this.background = null;
    this.draw();
  }

  // Draws once before the next picture, however often it is asked to.
  draw() {
    this.waiting ??= requestAnimationFrame(() => {
      this.waiting = null;
      const begin = performance.now();
      this.painter.paint(scaled(this.canvas), this.view, this.state);
      this.drawOverview();
      this.drawn = performance.now() - begin;
    });
  }

  // What lies below the window of the overview changes rarely, and is kept.
  drawOverview() {
    const { overview, view, whole } = this;
    const { colors } = this.painter;
    // Above the ruler: what is below each other is at the same time.
    const [width, height] = [view.width - view.gutter, 46];
    if (!this.background) {
      this.background = document.createElement("canvas");
      fit(this.background, width, height);
      paintOverview(scaled(this.background), this.data, whole, width, height, colors);
    }
    const context = scaled(overview);
    context.clearRect(0, 0, overview.clientWidth, height);
    context.fillStyle = colors.faint;
    context.font = colors.font;
    context.textBaseline = "middle";
    context.fillText("waiting", 12, height / 2);
    context.translate(view.gutter, 0);
    context.drawImage(this.background, 0, 0, width, height);
    const scale = width / (whole.to - whole.from);
    const [left, right] = [(view.from - whole.from) * scale, (view.to - whole.from) * scale];
    context.fillStyle = colors.surface;
    context.globalAlpha = 0.65;
    context.fillRect(0, 0, left, height);
    context.fillRect(right, 0, width - right, height);
    context.globalAlpha = 1;
    if (right - left > width - 1) return;
    context.strokeStyle = colors.select;
    context.strokeRect(left + 0.5, 0.5, Math.max(3, right - left - 1), height - 1);
  }

  timeAt(x) {
    const { view } = this;
    return view.from + ((x - view.gutter) / (view.width - view.gutter)) * (view.to - view.from);
  }

  show(from, to) {
    const length = Math.min(Math.max(to - from, SHOWN_MIN_NS), this.whole.to - this.whole.from);
    const middle = (from + to) / 2;
    this.view.from = Math.max(this.whole.from, Math.min(middle - length / 2, this.whole.to - length));
    this.view.to = Math.min(this.whole.to, this.view.from + length);
    this.draw();
  }

  centre(time) {
    const half = (this.view.to - this.view.from) / 2;
    this.show(time - half, time + half);
  }

  zoom(factor, around = (this.view.from + this.view.to) / 2) {
    const { from, to } = this.view;
    if ((to - from) * factor < SHOWN_MIN_NS && factor < 1) factor = SHOWN_MIN_NS / (to - from);
    this.show(around - (around - from) * factor, around + (to - around) * factor);
  }

  pan(share) {
    const step = share * (this.view.to - this.view.from);
    this.show(this.view.from + step, this.view.to + step);
  }

  // Makes an interval of time and a row visible, with some of what is around.
  reveal(from, to, kind, item) {
    const { view } = this;
    const visible = from >= view.from && to <= view.to;
    const pixels = ((to - from) / (view.to - view.from)) * (view.width - view.gutter);
    if (!visible || pixels < 8) this.show(from - (to - from) * 2, to + (to - from) * 2);
    const place = this.layout.place(kind, item);
    if (place) {
      const top = place.row.top + place.shelf * place.row.shelfHeight;
      const room = view.height - AXIS_HEIGHT;
      if (top < view.scroll || top + 20 > view.scroll + room) this.scroller.scrollTop = Math.max(0, top - room / 2);
      view.scroll = this.scroller.scrollTop;
    }
    this.draw();
  }

  // What is under a point: { kind, item }, or null.
  at(x, y) {
    const { view } = this;
    if (x < view.gutter || y < AXIS_HEIGHT) return null;
    const inside = y - AXIS_HEIGHT + view.scroll;
    const row = this.layout.rows.find((each) => each.shelves && inside >= each.top && inside < each.top + each.height);
    if (!row) return null;
    const shelf = row.shelves[Math.floor((inside - row.top) / row.shelfHeight)];
    const time = this.timeAt(x);
    const slack = (2 * (view.to - view.from)) / (view.width - view.gutter);
    let best = null;
    let distance = slack;
    for (let at = after(shelf.reach, time - slack); at < shelf.item.length && shelf.from[at] <= time + slack; at++) {
      const off = Math.max(0, shelf.from[at] - time, time - shelf.to[at]);
      if (off <= distance) {
        distance = off;
        best = { kind: row.kind, item: shelf.item[at] };
        if (off === 0 && shelf.to[at] - shelf.from[at] > slack) break;
      }
    }
    return best;
  }

  wheel(event) {
    if (event.ctrlKey || event.metaKey) {
      event.preventDefault();
      this.zoom(Math.exp(event.deltaY * 0.004), this.timeAt(event.offsetX));
    } else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      event.preventDefault();
      this.pan((event.deltaX || event.deltaY) / this.view.width);
    }
  }

  press(event) {
    const { canvas } = this;
    const start = { x: event.clientX, from: this.view.from, to: this.view.to };
    let moved = false;
    canvas.setPointerCapture(event.pointerId);
    const move = (now) => {
      const shift = now.clientX - start.x;
      moved ||= Math.abs(shift) > 3;
      if (!moved) return;
      this.leave();
      const time = (shift / (this.view.width - this.view.gutter)) * (start.to - start.from);
      this.show(start.from - time, start.to - time);
    };
    const release = (now) => {
      canvas.removeEventListener("pointermove", move);
      canvas.removeEventListener("pointerup", release);
      canvas.removeEventListener("pointercancel", release);
      if (!moved && now.type === "pointerup") this.listener.clicked(this.at(now.offsetX, now.offsetY));
    };
    canvas.addEventListener("pointermove", move);
    canvas.addEventListener("pointerup", release);
    canvas.addEventListener("pointercancel", release);
  }

  hover(event) {
    if (event.buttons) return;
    const found = this.at(event.offsetX, event.offsetY);
    const before = this.state.hover;
    this.state.hover = found;
    this.canvas.style.cursor = found ? "pointer" : "default";
    if (!found) return this.leave(before);
    if (before?.kind !== found.kind || before?.item !== found.item) {
      this.tooltip.replaceChildren(...this.listener.explanation(found));
      this.draw();
    }
    this.tooltip.hidden = false;
    const { width, height } = this.tooltip.getBoundingClientRect();
    const left = Math.min(event.clientX + 14, window.innerWidth - width - 8);
    const below = event.clientY + 16;
    const top = below + height > window.innerHeight ? event.clientY - height - 10 : below;
    this.tooltip.style.transform = `translate(${Math.max(8, left)}px, ${Math.max(8, top)}px)`;
  }

  leave() {
    this.tooltip.hidden = true;
    if (this.state.hover) {
      this.state.hover = null;
    }
    this.draw();
  }
}

function fit(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  canvas.width = Math.max(1, Math.round(width * ratio));
  canvas.height = Math.max(1, Math.round(height * ratio));
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
}

function scaled(canvas) {
  const ratio = window.devicePixelRatio || 1;
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  return context;
}

// Rows, and where each item lies in them.
function makeLayout(data) {
  const layout = makeRows(data);
  const columns = { track: data.operations, waits: data.stalls, leases: data.leases };
  const places = {};
  for (const kind of Object.keys(columns)) {
    places[kind] = { row: new Int32Array(columns[kind].count).fill(-1), shelf: new Uint8Array(columns[kind].count) };
  }
  layout.rows.forEach((row, index) => {
    row.shelves?.forEach((shelf, at) => {
      for (const item of shelf.item) {
        places[row.kind].row[item] = index;
        places[row.kind].shelf[item] = at;
      }
    });
  });
  layout.place = (kind, item) => {
    const row = places[kind].row[item];
    return row < 0 ? null : { row: layout.rows[row], shelf: places[kind].shelf[item] };
  };
  return layout;
}

// How much was waited at each moment, by cause, over the whole trace.
function paintOverview(context, data, whole, width, height, colors) {
  const { stalls } = data;
  const columns = Math.max(1, Math.round(width));
  const waited = CAUSES.map(() => new Float64Array(columns));
  const scale = columns / (whole.to - whole.from);
  for (let at = 0; at < stalls.count; at++) {
    const first = (stalls.from[at] - whole.from) * scale;
    const last = (stalls.to[at] - whole.from) * scale;
    const sums = waited[stalls.cause[at]];
    for (let x = Math.floor(first); x <= last && x < columns; x++) {
      sums[x] += Math.min(last, x + 1) - Math.max(first, x);
    }
  }
  let highest = 0;
  for (let x = 0; x < columns; x++) highest = Math.max(highest, waited.reduce((sum, sums) => sum + sums[x], 0));
  for (let x = 0; x < columns; x++) {
    let base = height;
    waited.forEach((sums, cause) => {
      const tall = highest > 0 ? (sums[x] / highest) * (height - 2) : 0;
      context.fillStyle = colors.causes[cause];
      context.fillRect(x, base - tall, 1, tall);
      base -= tall;
    });
  }
}
