// Draws rows on a canvas. What is narrower than a pixel is not drawn by itself: neighbours become one bar, as strong as they
// are dense, so a picture of any number of operations costs no more than its pixels and one pass over what is visible.

const GUTTER_WIDE = 148;
const GUTTER_NARROW = 92;
const AXIS_HEIGHT = 26;
const LABEL_WIDTH_MIN = 34;
const WAITING_KINDS = new Set(["wait", "await", "export", "import"]);

class Painter {
  constructor(data, layout, colors) {
    this.data = data;
    this.layout = layout;
    this.colors = colors;
    this.widths = new Map();
  }

  // Draws the part of the timeline that `view` shows: { from, to, width, height, scroll, gutter }.
  paint(context, view, state) {
    const { colors } = this;
    this.context = context;
    this.view = view;
    this.state = state;
    this.scale = (view.width - view.gutter) / (view.to - view.from);
    context.clearRect(0, 0, view.width, view.height);
    context.font = colors.font;
    context.textBaseline = "middle";
    this.grid();
    context.save();
    context.beginPath();
    context.rect(0, AXIS_HEIGHT, view.width, view.height - AXIS_HEIGHT);
    context.clip();
    for (const row of this.layout.rows) {
      const top = AXIS_HEIGHT + row.top - view.scroll;
      if (top + row.height < AXIS_HEIGHT || top > view.height) continue;
      this.row(row, top);
    }
    if (state.path) this.path();
    this.arrows();
    this.selection();
    context.restore();
    this.gutter();
  }

  x(time) {
    return this.view.gutter + (time - this.view.from) * this.scale;
  }

  grid() {
    const { context, view, colors } = this;
    const step = niceStep((view.to - view.from) / Math.max(2, (view.width - view.gutter) / 110));
    for (let time = Math.ceil(view.from / step) * step; time <= view.to; time += step) {
      const x = Math.round(this.x(time)) + 0.5;
      context.fillStyle = colors.grid;
      context.fillRect(x, AXIS_HEIGHT - 6, 1, view.height);
      context.fillStyle = colors.faint;
      const label = moment(time, step);
      if (x + 6 + label.length * 6 < view.width) context.fillText(label, x + 4, AXIS_HEIGHT / 2);
    }
    context.fillStyle = colors.grid;
    context.fillRect(0, AXIS_HEIGHT - 1, view.width, 1);
  }

  row(row, top) {
    if (row.kind === "counter") this.counter(row, top);
    else if (row.shelves) row.shelves.forEach((shelf, at) => this.shelf(row, shelf, top + at * row.shelfHeight));
  }

  // The number of the colour of an item, and whether it stands out.
  colorOf(kind, item) {
    const { data } = this;
    if (kind === "waits") return data.stalls.cause[item];
    const library = kind === "track" ? data.operations.library[item] : data.leases.library[item];
    return library < 0 ? LIBRARY_COLORS : library % LIBRARY_COLORS;
  }

  dimmed(kind, item) {
    const { data, state } = this;
    if (kind === "waits") {
      if (!state.causes[data.stalls.cause[item]]) return true;
      return state.matches !== null && !state.matches[data.stalls.waiter[item]];
    }
    const node = kind === "track" ? item : data.operations.count + item;
    if (state.matches !== null) return !state.matches[node];
    return state.path && kind === "track" && !data.onPath[node];
  }

  shelf(row, shelf, top) {
    const { context, view, colors } = this;
    const palette = row.kind === "waits" ? colors.causes : colors.libraries;
    const height = row.shelfHeight - (row.kind === "track" ? 1 : 1.5);
    const alpha = row.kind === "leases" ? 0.75 : 1;
    // Narrow neighbours of one pixel or so: where they begin and end, how much of it each colour covers.
    let left = 0, right = -1, bright = 0;
    const cover = new Float64Array(2 * (LIBRARY_COLORS + 1));
    const flush = () => {
      if (right < left) return;
      let best = 0, total = 0;
      for (let at = 0; at < cover.length; at++) {
        total += cover[at];
        if (cover[at] > cover[best]) best = at;
      }
      const dense = Math.min(1, total / Math.max(1, right - left));
      const strong = bright > 0 ? Math.max(0.3, dense) : 0.14;
      context.globalAlpha = alpha * strong;
      context.fillStyle = palette[best >> 1];
      context.fillRect(left, top, Math.max(1, right - left), height);
      cover.fill(0);
      right = -1;
      bright = 0;
    };
    for (let at = after(shelf.reach, view.from); at < shelf.item.length; at++) {
      if (shelf.from[at] > view.to) break;
      const item = shelf.item[at];
      const dim = this.dimmed(row.kind, item);
      const color = this.colorOf(row.kind, item);
      const x = Math.max(view.gutter - 2, this.x(shelf.from[at]));
      const end = Math.min(view.width + 2, this.x(shelf.to[at]));
      if (end - x < 1.5) {
        if (right >= left && x - right > 0.75) flush();
        if (right < left) left = right = Math.floor(x);
        right = Math.max(right, Math.ceil(end));
        cover[2 * color + (dim ? 1 : 0)] += Math.max(end - x, 0.05) * (dim ? 0.1 : 1);
        if (!dim) bright++;
        if (right - left >= 3) flush();
        continue;
      }
      flush();
      // Who waits on a track does nothing there.
      const idle = row.kind === "track" && WAITING_KINDS.has(this.data.kinds[this.data.operations.kind[item]]);
      context.globalAlpha = alpha * (dim ? 0.16 : idle ? 0.45 : 1);
      context.fillStyle = palette[color];
      context.fillRect(x, top, Math.max(1, end - x - (end - x > 4 ? 1 : 0)), height);
      if (row.kind === "track" && !shelf.shared && end - x > LABEL_WIDTH_MIN) this.label(item, x, end, top, height, dim || idle);
    }
    flush();
    context.globalAlpha = 1;
  }

  label(item, x, end, top, height, dim) {
    const { context, data, colors, view } = this;
    const left = Math.max(x, view.gutter) + 5;
    const room = Math.min(end, view.width) - left - 4;
    const shown = this.fitted(data.names[data.operations.name[item]], room);
    if (!shown) return;
    context.globalAlpha = dim ? 0.7 : 1;
    context.fillStyle = dim ? colors.text : colors.onSlice;
    context.fillText(shown, left, top + height / 2 + 0.5);
  }

  // As much of a name as there is room for; nothing where that is next to nothing.
  fitted(name, room) {
    const fits = Math.floor((name.length * room) / this.widthOf(name));
    if (fits < Math.min(5, name.length)) return "";
    return fits >= name.length ? name : `${name.slice(0, fits - 1)}…`;
  }

  // Measuring is slow, and names are few.
  widthOf(name) {
    let width = this.widths.get(name);
    if (width === undefined) {
      width = Math.max(1, this.context.measureText(name).width);
      this.widths.set(name, width);
    }
    return width;
  }

  counter(row, top) {
    const { context, view, colors } = this;
    const { time, value } = row.counter;
    const base = top + row.height;
    const heightOf = (amount) => (Math.max(0, amount) / row.highest) * (row.height - 4);
    context.fillStyle = colors.counterFill;
    context.strokeStyle = colors.counter;
    context.beginPath();
    context.moveTo(view.gutter, base);
    let at = after(time, view.from) - 1;
    let x = view.gutter;
    // Of all samples in one pixel the highest is shown, and the last one lasts.
    let last = at >= 0 ? value[at] : 0;
    let peak = last;
    const step = (next) => {
      context.lineTo(x, base - heightOf(peak));
      context.lineTo(x, base - heightOf(last));
      context.lineTo(next, base - heightOf(last));
    };
    for (at++; at < time.length && time[at] <= view.to; at++) {
      const next = Math.floor(this.x(time[at]));
      if (next > x) {
        step(next);
        x = next;
        peak = value[at];
      }
      last = value[at];
      peak = Math.max(peak, last);
    }
    const end = Math.max(x, Math.min(view.width, this.x(this.data.duration)));
    step(end);
    context.lineTo(end, base);
    context.fill();
    context.stroke();
  }

  // Where an item is drawn now: { x, end, top, height } in pixels of the canvas, or null if it is in no row.
  box(kind, item) {
    const place = this.layout.place(kind, item);
    if (!place) return null;
    const { row, shelf } = place;
    const columns = kind === "waits" ? this.data.stalls : kind === "track" ? this.data.operations : this.data.leases;
    const top = AXIS_HEIGHT + row.top + shelf * row.shelfHeight - this.view.scroll;
    return { x: this.x(columns.from[item]), end: this.x(columns.to[item]), top, height: row.shelfHeight - 1 };
  }

  boxOfNode(node) {
    const { operations } = this.data;
    return node < operations.count ? this.box("track", node) : this.box("leases", node - operations.count);
  }

  path() {
    const { context, data, colors, view } = this;
    context.strokeStyle = colors.path;
    context.lineWidth = 1.5;
    context.beginPath();
    let before = null;
    let drawn = -10;
    for (const node of data.critical) {
      const box = this.boxOfNode(node);
      if (!box) continue;
      const visible = box.end >= view.gutter && box.x <= view.width;
      if (visible && box.end - drawn >= 2) {
        if (before && box.x - before.end < 4000) {
          context.moveTo(before.end, before.top + before.height / 2);
          context.lineTo(box.x, box.top + box.height / 2);
        }
        if (box.end - box.x > 3) context.rect(box.x + 0.5, box.top + 0.5, box.end - box.x - 1, box.height - 1);
        drawn = box.end;
      }
      before = box;
      if (box.x > view.width) break;
    }
    context.stroke();
    context.lineWidth = 1;
  }

  // Dependences of what is selected.
  arrows() {
    const { data, state, context, colors } = this;
    if (state.node < 0) return;
    const draw = (from, to) => {
      const [a, b] = [this.boxOfNode(from), this.boxOfNode(to)];
      if (!a || !b) return;
      const [x, y, endX, endY] = [a.end, a.top + a.height / 2, b.x, b.top + b.height / 2];
      const bend = Math.max(12, Math.min(80, Math.abs(endX - x) / 2));
      context.beginPath();
      context.moveTo(x, y);
      context.bezierCurveTo(x + bend, y, endX - bend, endY, endX, endY);
      context.stroke();
      context.beginPath();
      context.moveTo(endX, endY);
      context.lineTo(endX - 6, endY - 3);
      context.lineTo(endX - 6, endY + 3);
      context.fill();
    };
    context.strokeStyle = context.fillStyle = colors.arrow;
    for (const edge of data.into.of(state.node)) draw(data.edges.from[edge], state.node);
    for (const edge of data.outOf.of(state.node)) draw(state.node, data.edges.to[edge]);
  }

  selection() {
    const { state, colors } = this;
    const stall = state.stall >= 0 ? this.box("waits", state.stall) : null;
    const node = state.node >= 0 ? this.boxOfNode(state.node) : null;
    if (stall && node && state.node !== this.data.stalls.waiter[state.stall]) this.tie(stall, node);
    this.frame(stall, colors.select);
    this.frame(node, colors.select);
    const hover = state.hover && this.box(state.hover.kind, state.hover.item);
    this.frame(hover, colors.text);
  }

  // From a stall to who is to blame for it.
  tie(stall, blocker) {
    const { context, colors } = this;
    context.strokeStyle = colors.select;
    context.setLineDash([4, 3]);
    context.beginPath();
    context.moveTo(Math.max(stall.x, this.view.gutter), stall.top + stall.height / 2);
    context.lineTo((blocker.x + blocker.end) / 2, blocker.top + blocker.height / 2);
    context.stroke();
    context.setLineDash([]);
  }

  frame(box, color) {
    if (!box) return;
    const { context } = this;
    context.strokeStyle = color;
    context.lineWidth = 2;
    context.strokeRect(box.x - 1, box.top - 1, Math.max(3, box.end - box.x) + 1, box.height + 2);
    context.lineWidth = 1;
  }

  gutter() {
    const { context, view, colors, layout } = this;
    context.fillStyle = colors.surface;
    context.fillRect(0, AXIS_HEIGHT, view.gutter, view.height);
    context.fillStyle = colors.grid;
    context.fillRect(view.gutter - 1, AXIS_HEIGHT, 1, view.height);
    context.save();
    context.beginPath();
    context.rect(0, AXIS_HEIGHT, view.gutter - 6, view.height - AXIS_HEIGHT);
    context.clip();
    for (const row of layout.rows) {
      const top = AXIS_HEIGHT + row.top - view.scroll;
      if (top + row.height < AXIS_HEIGHT || top > view.height) continue;
      if (row.kind === "heading") {
        context.font = colors.headingFont;
        context.fillStyle = colors.faint;
        context.fillText(row.label.toUpperCase(), 12, top + row.height / 2 + 3);
        context.font = colors.font;
        continue;
      }
      context.fillStyle = colors.text;
      const middle = top + Math.min(row.height, 22) / 2 + (row.height < 14 ? 1 : 0.5);
      context.fillText(this.fitted(row.label, view.gutter - 20), 12, middle);
      context.fillStyle = colors.faint;
      if (row.height > 30) row.notes.forEach((note, at) => context.fillText(this.fitted(note, view.gutter - 20), 12, middle + (at + 1) * NOTE_HEIGHT));
    }
    context.restore();
  }
}

// 1, 2 or 5 times a power of ten, at least `step`.
function niceStep(step) {
  const power = 10 ** Math.floor(Math.log10(step));
  const factor = [1, 2, 5, 10].find((nice) => nice * power >= step * (1 - 1e-9));
  return Math.max(1, factor * power);
}
