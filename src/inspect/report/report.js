"use strict";
(() => {
  const about = JSON.parse(document.getElementById("about").textContent);
  const E = about.experts, L = about.layers.length;
  const byId = (id) => document.getElementById(id);
  const make = (tag, text) => { const e = document.createElement(tag); if (text !== undefined) e.textContent = text; return e; };
  const state = { matrix: 0, layer: 0, source: 0, target: E > 1 ? 1 : 0 };

  /* ---- numbers: base64 to typed arrays, a layer when it is looked at ---- */

  const half = (h) => {
    const e = h >> 10 & 31, m = h & 1023, sign = h & 0x8000 ? -1 : 1;
    if (e === 31) return NaN;
    return sign * (e ? 2 ** (e - 25) * (1024 + m) : 2 ** -24 * m);
  };
  const bytesOf = (id) => Uint8Array.from(atob(byId(id).textContent), (c) => c.charCodeAt(0));
  const decode = (id, type, m) => {
    const bytes = bytesOf(id), view = new DataView(bytes.buffer), wide = type === "f32" || type === "u32";
    const n = bytes.length / (wide ? 4 : type === "u8" ? 1 : 2), out = new Float64Array(n);
    for (let i = 0; i < n; i++) {
      out[i] = type === "f32" ? view.getFloat32(4 * i, true) : type === "u32" ? view.getUint32(4 * i, true)
             : type === "u8" ? (bytes[i] === 255 ? NaN : m.from + bytes[i] / 254 * (m.to - m.from))
             : type === "f16" ? half(view.getUint16(2 * i, true)) : view.getUint16(2 * i, true);
    }
    return out;
  };
  const kept = new Map();
  /* The last few layers stay decoded. */
  const numbers = (id, layer, type, m) => {
    const key = id + "-" + about.layers[layer];
    let found = kept.get(key);
    if (found) { kept.delete(key); } else { found = decode(key, type, m); }
    kept.set(key, found);
    if (kept.size > 64) kept.delete(kept.keys().next().value);
    return found;
  };
  const matrixOf = (m, layer) => numbers(m.id, layer, m.type, m);
  const tokens = about.matrices.find((m) => m.id === "tokens");
  const losses = about.matrices.find((m) => m.id === "loss");

  /* ---- colours ---- */

  const parseMap = (hex) => Array.from({ length: 256 }, (_, i) => [0, 2, 4].map((k) => parseInt(hex.substr(6 * i + k, 2), 16)));
  const maps = { sequential: parseMap(about.sequential), diverging: parseMap(about.diverging) };
  const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const rgb = (hex) => [1, 3, 5].map((k) => parseInt(hex.substr(k, 2), 16));
  const place = (m, v) => (m.log ? Math.log1p(v) / Math.log1p(m.high || 1) : (v - m.low) / (m.high - m.low));
  const colour = (m, v) => maps[m.map][Math.min(255, Math.max(0, Math.round(place(m, v) * 255)))];

  /* One pixel a cell. */
  const cellsOf = (m, layer) => {
    const values = matrixOf(m, layer), seen = matrixOf(tokens, layer), grey = rgb(style("--grey")), paper = rgb(style("--paper"));
    const image = new ImageData(E, E);
    for (let i = 0; i < E * E; i++) {
      const self = i % E === Math.floor(i / E), known = seen[i] > 0 && !Number.isNaN(values[i]) && values[i] < 1e30;
      const c = self ? (m.hideSelf ? paper : colour(m, 1)) : known ? colour(m, values[i]) : grey;
      image.data.set([c[0], c[1], c[2], 255], 4 * i);
    }
    const canvas = new OffscreenCanvas(E, E);
    canvas.getContext("2d").putImageData(image, 0, 0);
    return canvas;
  };

  const show = (v, digits = 5) => (Number.isNaN(v) ? "not known" : Number.isInteger(v) ? String(v) : Math.abs(v) >= 1e5 || Math.abs(v) < 1e-3 ? v.toExponential(digits - 1) : String(Number(v.toPrecision(digits))));
  /* Round numbers in [low, high], at most n. */
  const ticks = (low, high, n) => {
    const power = 10 ** Math.floor(Math.log10((high - low) / n));
    const step = [1, 2, 5, 10].map((k) => k * power).find((s) => (high - low) / s <= n) || 10 * power;
    const out = [];
    for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k++) out.push(k * step);
    return out;
  };

  /* ---- the big matrix ---- */

  const big = byId("big");
  let frame = { x: 0, y: 0, size: 1 };
  /* A canvas in device pixels, drawn in CSS pixels. */
  const fit = (canvas) => {
    const box = canvas.getBoundingClientRect(), scale = window.devicePixelRatio || 1;
    canvas.width = Math.max(1, Math.round(box.width * scale));
    canvas.height = Math.max(1, Math.round(box.height * scale));
    const g = canvas.getContext("2d");
    g.scale(scale, scale);
    g.font = "12px system-ui, sans-serif";
    return { g, width: box.width, height: box.height };
  };
  const drawAxes = (g) => {
    const { x, y, size } = frame, at = (i) => (i + 0.5) * size / E;
    g.fillStyle = style("--text");
    g.strokeStyle = style("--soft");
    g.strokeRect(x - 0.5, y - 0.5, size + 1, size + 1);
    for (const t of ticks(0, E - 1 || 1, Math.min(E, size / 45)).filter(Number.isInteger)) {
      g.fillRect(x + at(t), y + size + 1, 1, 4);
      g.fillRect(x - 5, y + at(t), 4, 1);
      g.textAlign = "center"; g.textBaseline = "top";
      g.fillText(t, x + at(t), y + size + 7);
      g.textAlign = "right"; g.textBaseline = "middle";
      g.fillText(t, x - 8, y + at(t));
    }
    g.textAlign = "center"; g.textBaseline = "top";
    g.fillText("target expert", x + size / 2, y + size + 23);
    g.save();
    g.translate(x - 40, y + size / 2);
    g.rotate(-Math.PI / 2);
    g.textBaseline = "bottom";
    g.fillText("source expert", 0, 4);
    g.restore();
  };
  const drawBar = (g, m, x, y, height) => {
    for (let i = 0; i < height; i++) { /* height is whole */
      g.fillStyle = "rgb(" + maps[m.map][Math.round(255 * (1 - i / (height - 1)))].join(",") + ")";
      g.fillRect(x, y + i, 14, 1.5);
    }
    g.strokeStyle = style("--soft");
    g.strokeRect(x - 0.5, y - 0.5, 15, height + 1);
    g.fillStyle = style("--text");
    g.textAlign = "left"; g.textBaseline = "middle";
    const marks = m.log ? [0, 1, 3, 10, 30, 100, 300, 1e3, 3e3, 1e4, 3e4, 1e5, 1e6].filter((v) => v <= m.high) : ticks(m.low, m.high, 9);
    for (const v of marks) {
      const at = y + (1 - place(m, v)) * height;
      g.fillRect(x + 15, at, 4, 1);
      g.fillText(String(Number(v.toPrecision(3))).replace("-", "\u2212"), x + 22, at);
    }
    g.fillStyle = style("--grey");
    g.fillRect(x, y + height + 14, 14, 14);
    g.fillStyle = style("--text");
    g.fillText("unseen", x + 20, y + height + 22);
  };
  const drawCursor = (g) => {
    const cell = frame.size / E, x = frame.x + state.target * cell, y = frame.y + state.source * cell;
    g.lineWidth = 3; g.strokeStyle = style("--paper");
    g.strokeRect(x - 1.5, y - 1.5, cell + 3, cell + 3);
    g.lineWidth = 1.5; g.strokeStyle = style("--text");
    g.strokeRect(x - 1.5, y - 1.5, cell + 3, cell + 3);
    g.lineWidth = 1;
    g.fillStyle = style("--focus");
    for (const [u, v] of [[x + cell / 2 - 2, frame.y - 7], [frame.x - 7, y + cell / 2 - 2]]) g.fillRect(u, v, 5, 5);
  };
  let cells = null, cellsKey = "";
  const drawBig = () => {
    const m = about.matrices[state.matrix], { g, width, height } = fit(big), key = m.id + "/" + state.layer + "/" + style("--paper");
    if (key !== cellsKey) { cells = cellsOf(m, state.layer); cellsKey = key; }
    frame = { x: 52, y: 12, size: Math.floor(Math.max(40, Math.min(width - 52 - 86, height - 12 - 42))) };
    g.imageSmoothingEnabled = false;
    g.drawImage(cells, frame.x, frame.y, frame.size, frame.size);
    drawAxes(g);
    drawBar(g, m, frame.x + frame.size + 22, frame.y, Math.max(60, frame.size - 40));
    drawCursor(g);
    big.setAttribute("aria-label", m.name + ", layer " + about.layers[state.layer] + ", " + E + " by " + E + " experts");
  };

  /* ---- beside it ---- */

  const bestTarget = (source) => {
    if (!losses) return -1;
    const row = matrixOf(losses, state.layer);
    let best = -1;
    for (let t = 0; t < E; t++) {
      const v = row[source * E + t];
      if (v < 1e30 && (best < 0 || v < row[source * E + best])) best = t;
    }
    return best;
  };
  const tellCell = () => {
    const { source, target, layer } = state, at = source * E + target, table = make("table"), seen = matrixOf(tokens, layer)[at];
    const row = (name, value) => { const tr = table.insertRow(); const th = make("th", name); th.scope = "row"; tr.append(th, make("td", value)); };
    row("layer " + about.layers[layer], source === target ? "expert " + source + " itself" : "expert " + source + " \u2192 " + target);
    for (const m of about.matrices) {
      if (m !== tokens && seen === 0 && source !== target) continue;
      if (source === target && (m === tokens || m.hideSelf)) continue;
      const v = matrixOf(m, layer)[at];
      row(m.name, !(v < 1e30) ? "not known" : (m.type === "u8" ? "about " : "") + show(v, { f32: 7, f16: 3, u8: 2 }[m.type] || 10));
    }
    if (source !== target && seen === 0) row("no evidence", "never observed together");
    else if (source !== target && losses && Number.isNaN(matrixOf(losses, layer)[at])) row("no evidence", "fewer tokens than the recipe asks for");
    const best = bestTarget(source), routed = numbers("routed", layer, "u32"), norms = numbers("norms", layer, "f32");
    if (losses) row("best target of " + source, best < 0 ? "none" : best + " (loss " + show(matrixOf(losses, layer)[source * E + best]) + ")");
    row("tokens routed to " + source, show(routed[source]) + (routed[source] ? "" : " (cold)"));
    row("norm of " + source + " and " + target, show(norms[source]) + ", " + show(norms[target]));
    byId("cell").replaceChildren(table);
  };
  const drawNorms = () => {
    const { g, width, height } = fit(byId("norms")), norms = numbers("norms", state.layer, "f32"), routed = numbers("routed", state.layer, "u32");
    const warm = [...norms.keys()].filter((i) => routed[i] > 0), by = warm.sort((a, b) => norms[a] - norms[b]);
    const least = by[0], most = by[by.length - 1], top = (norms[most] || 1) * 1.05, left = 44, base = height - 18, room = base - 6, step = (width - left) / E;
    g.textAlign = "right"; g.textBaseline = "middle";
    for (const v of ticks(0, top, 4)) {
      g.fillStyle = style("--line"); g.fillRect(left, base - v / top * room, width - left, 1);
      g.fillStyle = style("--text"); g.fillText(String(Number(v.toPrecision(4))), left - 6, base - v / top * room);
    }
    for (let i = 0; i < E; i++) {
      const h = Math.min(1, norms[i] / top) * room;
      g.fillStyle = style(i === most ? "--high" : i === least ? "--low" : routed[i] ? "--bar" : "--grey");
      g.fillRect(left + i * step, base - h, Math.max(1, step - (step > 4 ? 1 : 0)), h);
    }
    g.fillStyle = style("--focus");
    for (const i of [state.source, state.target]) g.fillRect(left + (i + 0.5) * step - 2, base + 3, 5, 5);
    byId("norms-text").textContent = by.length ? "largest " + show(norms[most]) + " at expert " + most + ", least " + show(norms[least]) + " at expert " + least +
      (by.length < E ? "; " + (E - by.length) + " cold (grey)" : "") : "no expert was routed to";
  };
  const tellPools = () => {
    const all = about.pools.map((p) => {
      const box = make("p"), members = p.members[state.layer];
      box.append(make("b", "Static pool of " + p.size + " by " + p.by + ": "), members.join(" "));
      return box;
    });
    byId("pools").replaceChildren(...all);
  };

  /* ---- all layers: each drawn when it comes into view ---- */

  const grid = byId("grid"), small = [];
  const drawSmall = (i) => {
    if (small[i].drawn === state.matrix + style("--paper")) return;
    small[i].drawn = state.matrix + style("--paper");
    const canvas = small[i].canvas;
    canvas.width = canvas.height = E;
    canvas.getContext("2d").drawImage(cellsOf(about.matrices[state.matrix], i), 0, 0);
  };
  const watcher = new IntersectionObserver((entries) => {
    for (const e of entries) { const s = small[Number(e.target.dataset.i)]; s.visible = e.isIntersecting; if (s.visible) drawSmall(Number(e.target.dataset.i)); }
  }, { rootMargin: "200px" });
  const focusSmall = (i) => { if (i >= 0 && i < L) small[i].button.focus(); };
  const inRow = () => getComputedStyle(grid).gridTemplateColumns.split(" ").length;
  about.layers.forEach((number, i) => {
    const button = make("button"), canvas = make("canvas");
    button.type = "button";
    button.dataset.i = i;
    button.append("layer " + number, canvas);
    button.onclick = () => { select({ layer: i }); byId("matrix").scrollIntoView(); big.focus({ preventScroll: true }); };
    button.onkeydown = (e) => {
      const to = { ArrowLeft: i - 1, ArrowRight: i + 1, ArrowUp: i - inRow(), ArrowDown: i + inRow(), Home: 0, End: L - 1 }[e.key];
      if (to !== undefined) { focusSmall(to); e.preventDefault(); }
    };
    small.push({ button, canvas, drawn: "", visible: false });
    grid.append(button);
    watcher.observe(button);
  });

  /* ---- choosing ---- */

  const clamp = (v, n) => Math.min(n - 1, Math.max(0, v));
  const select = (change) => {
    const before = { ...state };
    Object.assign(state, change);
    state.layer = clamp(state.layer, L);
    state.source = clamp(state.source, E);
    state.target = clamp(state.target, E);
    drawBig();
    tellCell();
    drawNorms();
    if (before.layer !== state.layer || change.all) tellPools();
    byId("layer").value = state.layer;
    small.forEach((s, i) => {
      s.button.setAttribute("aria-pressed", i === state.layer);
      s.button.tabIndex = i === state.layer ? 0 : -1;
      if (s.visible) drawSmall(i);
    });
  };
  const pointed = (e) => {
    const box = big.getBoundingClientRect(), cell = frame.size / E;
    const target = Math.floor((e.clientX - box.left - frame.x) / cell), source = Math.floor((e.clientY - box.top - frame.y) / cell);
    if (target >= 0 && target < E && source >= 0 && source < E && (target !== state.target || source !== state.source)) select({ source, target });
  };
  big.onpointermove = pointed;
  big.onpointerdown = pointed;
  big.onkeydown = (e) => {
    const n = e.shiftKey ? 10 : 1, { source, target, layer } = state;
    const to = {
      ArrowLeft: { target: target - n }, ArrowRight: { target: target + n }, ArrowUp: { source: source - n }, ArrowDown: { source: source + n },
      Home: { target: 0 }, End: { target: E - 1 }, PageUp: { layer: layer - 1 }, PageDown: { layer: layer + 1 }, Enter: { target: bestTarget(source) },
    }[e.key];
    if (!to) return;
    e.preventDefault();
    if (e.key !== "Enter" || to.target >= 0) select(to);
  };
  byId("previous").onclick = () => select({ layer: state.layer - 1 });
  byId("next").onclick = () => select({ layer: state.layer + 1 });
  about.layers.forEach((number, i) => { const o = make("option", number); o.value = i; byId("layer").append(o); });
  byId("layer").onchange = (e) => select({ layer: Number(e.target.value) });
  about.matrices.forEach((m, i) => {
    const label = make("label"), radio = make("input");
    radio.type = "radio"; radio.name = "kind"; radio.checked = i === 0;
    radio.onchange = () => select({ matrix: i });
    label.append(radio, " " + m.name);
    byId("kinds").append(label);
  });
  for (const a of document.querySelectorAll("a[data-layer]")) a.onclick = () => { select({ layer: about.layers.indexOf(Number(a.dataset.layer)) }); };

  /* ---- colours of the page, size, paper ---- */

  const themes = ["", "light", "dark"], names = ["as the system", "light", "dark"];
  const redraw = () => { select({ all: true }); };
  byId("theme").onclick = () => {
    const next = (themes.indexOf(document.documentElement.dataset.theme || "") + 1) % 3;
    byId("theme").textContent = "Colours: " + names[next];
    wear(themes[next]);
  };
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  let waiting = 0;
  window.addEventListener("resize", () => { cancelAnimationFrame(waiting); waiting = requestAnimationFrame(redraw); });
  /* Paper is light, whatever the screen is, and shows what was not yet looked at. */
  let onScreen = "";
  const wear = (theme) => { if (theme) document.documentElement.dataset.theme = theme; else delete document.documentElement.dataset.theme; redraw(); };
  window.addEventListener("beforeprint", () => { onScreen = document.documentElement.dataset.theme || ""; wear("light"); small.forEach((s, i) => drawSmall(i)); });
  window.addEventListener("afterprint", () => wear(onScreen));
  document.body.classList.add("ready");
  if (bestTarget(0) >= 0) state.target = bestTarget(0);
  redraw();
})();
