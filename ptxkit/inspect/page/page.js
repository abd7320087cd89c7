"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const $ = (id) => document.getElementById(id);
  const ROW = 17, SPARE = 12;
  const PALETTE = ["#4e79a7", "#f28e2b", "#e15759", "#76b7b2", "#59a14f", "#edc948", "#b07aa1", "#ff9da7", "#9c755f", "#8a8f94", "#2f6f9f", "#a05d00"];
  const state = { kernel: 0, file: "", heat: "", active: "sass", pinned: null, control: false, query: "" };

  const make = (tag, text, cls) => {
    const e = document.createElement(tag);
    if (text !== undefined) e.textContent = text;
    if (cls) e.className = cls;
    return e;
  };
  const count = (n) => (n >= 1e9 ? (n / 1e9).toPrecision(3) + "G" : n >= 1e6 ? (n / 1e6).toPrecision(3) + "M" : n >= 1e4 ? (n / 1e3).toPrecision(3) + "k" : String(n));
  const hue = (n) => `hsl(${Math.round((n * 137.508) % 360)} 62% 52%)`;
  const place = (loc) => loc.file + ":" + loc.line;
  const base = (path) => path.split("/").pop();

  // ---- what belongs together: source lines, PTX lines and SASS instructions of one kernel ---------------------------------
  let links;
  function link(kernel) {
    const bySource = new Map(), byPtx = new Map(), colors = new Map();
    const put = (map, key, value) => { if (!map.has(key)) map.set(key, []); map.get(key).push(value); };
    kernel.instructions.forEach((instruction, i) => {
      for (let loc = instruction.source; loc; loc = loc.inlined_at) put(bySource, place(loc), i);
      if (instruction.ptx_line) put(byPtx, instruction.ptx_line, i);
    });
    const ptxOfSource = new Map();
    kernel.ptx_sources.forEach((loc, n) => { if (loc) put(ptxOfSource, place(loc), n + kernel.ptx_first); });
    const order = [...new Set([...bySource.keys(), ...ptxOfSource.keys()])].sort((a, b) => {
      const [fa, la] = [a.slice(0, a.lastIndexOf(":")), +a.slice(a.lastIndexOf(":") + 1)];
      const [fb, lb] = [b.slice(0, b.lastIndexOf(":")), +b.slice(b.lastIndexOf(":") + 1)];
      return fa < fb ? -1 : fa > fb ? 1 : la - lb;
    });
    order.forEach((key, n) => colors.set(key, hue(n)));
    return { bySource, byPtx, ptxOfSource, colors };
  }
  const ptxSource = (kernel, line) => kernel.ptx_sources[line - kernel.ptx_first] || null;

  // What a line of a pane belongs to: {source: keys, ptx: lines, sass: indices}
  function related(pane, index) {
    const kernel = data.kernels[state.kernel];
    const source = new Set(), ptx = new Set(), sass = new Set();
    const addSource = (loc) => { for (; loc; loc = loc.inlined_at) source.add(place(loc)); };
    if (pane === "sass") {
      const i = kernel.instructions[index];
      sass.add(index);
      addSource(i.source);
      if (i.ptx_line) ptx.add(i.ptx_line);
    } else if (pane === "ptx") {
      const line = index + 1, loc = ptxSource(kernel, line);
      ptx.add(line);
      (links.byPtx.get(line) || []).forEach((i) => sass.add(i));
      if (loc) source.add(place(loc));
    } else {
      const key = state.file + ":" + (index + 1);
      source.add(key);
      (links.bySource.get(key) || []).forEach((i) => {
        sass.add(i);
        if (kernel.instructions[i].ptx_line) ptx.add(kernel.instructions[i].ptx_line);
      });
      (links.ptxOfSource.get(key) || []).forEach((l) => ptx.add(l));
    }
    return { source, ptx, sass };
  }

  // ---- panes ------------------------------------------------------------------------------------------------------------------
  class Pane {
    constructor(name) {
      this.name = name;
      this.section = $(name);
      this.view = this.section.querySelector(".view");
      this.rows = this.view.appendChild(make("div", undefined, "rows"));
      this.items = [];
      this.cursor = 0;
      this.shown = new Map();
      this.all = false;
      this.view.addEventListener("scroll", () => this.draw(), { passive: true });
      this.section.addEventListener("focus", () => { state.active = name; });
      this.rows.addEventListener("mouseover", (e) => this.at(e, (i) => { if (!state.pinned) show(name, i); }));
      this.view.addEventListener("mouseleave", () => { if (!state.pinned) clear(); });
      this.rows.addEventListener("click", (e) => this.at(e, (i) => { state.active = name; this.cursor = i; pin(name, i); }));
      new ResizeObserver(() => this.draw()).observe(this.view);
    }
    at(event, then) {
      const row = event.target.closest(".row");
      if (row) then(+row.dataset.index);
    }
    set(items, note) {
      this.items = items;
      this.cursor = 0;
      this.section.querySelector(".note").textContent = note || "";
      this.rows.style.height = items.length * ROW + "px";
      this.view.scrollTop = 0;
      this.redraw();
    }
    redraw() {
      this.rows.replaceChildren();
      this.shown.clear();
      this.draw();
    }
    draw() {
      const first = this.all ? 0 : Math.max(0, Math.floor(this.view.scrollTop / ROW) - SPARE);
      const last = this.all ? this.items.length : Math.min(this.items.length, Math.ceil((this.view.scrollTop + this.view.clientHeight) / ROW) + SPARE);
      for (const [i, row] of this.shown) if (i < first || i >= last) { row.remove(); this.shown.delete(i); }
      for (let i = first; i < last; i++) {
        if (this.shown.has(i)) continue;
        const row = this.items[i]();
        row.dataset.index = i;
        row.style.top = i * ROW + "px";
        this.mark(row, i);
        this.shown.set(i, row);
        const next = this.shown.get(i + 1);
        this.rows.insertBefore(row, next || null);
      }
    }
    key(i) { return this.name === "source" ? state.file + ":" + (i + 1) : this.name === "ptx" ? i + 1 : i; }
    mark(row, i) {
      const lit = state.lit && state.lit[this.name].has(this.key(i));
      row.classList.toggle("lit", !!lit);
      row.classList.toggle("pin", !!(state.pinned && state.pinned.pane === this.name && state.pinned.index === i));
      row.classList.toggle("cursor", state.active === this.name && this.cursor === i);
      row.classList.toggle("match", !!state.query && this.text(i).toLowerCase().includes(state.query));
    }
    text(i) { return this.texts[i]; }
    remark() { for (const [i, row] of this.shown) this.mark(row, i); }
    reveal(i) {
      const top = i * ROW, height = this.view.clientHeight;
      if (top < this.view.scrollTop + ROW || top > this.view.scrollTop + height - 3 * ROW) this.view.scrollTop = Math.max(0, top - height / 3);
      this.draw();
    }
    move(i) {
      this.cursor = Math.min(this.items.length - 1, Math.max(0, i));
      this.reveal(this.cursor);
      if (!state.pinned) show(this.name, this.cursor);
      else remark();
    }
  }
  const panes = { source: new Pane("source"), ptx: new Pane("ptx"), sass: new Pane("sass") };
  const remark = () => Object.values(panes).forEach((p) => p.remark());

  function show(pane, index) { state.lit = related(pane, index); remark(); }
  function clear() { state.lit = null; remark(); }
  function unpin() { state.pinned = null; clear(); }
  function pin(pane, index) {
    if (state.pinned && state.pinned.pane === pane && state.pinned.index === index) return unpin();
    state.pinned = { pane, index };
    show(pane, index);
    if (pane !== "source") {
      const here = [...state.lit.source].find((k) => k.startsWith(state.file + ":")) || [...state.lit.source][0];
      if (here) toSource(here);
    }
    for (const other of ["ptx", "sass"]) {
      if (other === pane) continue;
      const rows = [...state.lit[other]].map((v) => (other === "ptx" ? v - 1 : v)).sort((a, b) => a - b);
      if (rows.length) panes[other].reveal(rows[0]);
    }
    remark();
  }
  function toSource(key) {
    const at = key.lastIndexOf(":"), file = key.slice(0, at), line = +key.slice(at + 1);
    if (file !== state.file && data.sources[file]) openFile(file);
    if (file === state.file) panes.source.reveal(line - 1);
  }

  // ---- rows -------------------------------------------------------------------------------------------------------------------
  const heatOf = (file, line) => {
    const heat = data.kernels[state.kernel].heat;
    const found = heat && heat.metrics[state.heat] && heat.metrics[state.heat][file];
    return (found && found[line]) || 0;
  };
  const ptxHeatOf = (line) => {
    const heat = data.kernels[state.kernel].heat;
    const found = heat && heat.ptx && heat.ptx[state.heat];
    return (found && found[line]) || 0;
  };
  let hottest = 1, hottestPtx = 1;
  function warm(row, value, most) {
    const cell = make("span", value ? count(value) : "", "heat");
    if (value) cell.style.background = `rgba(var(--heat), ${(0.08 + 0.72 * Math.sqrt(value / most)).toFixed(3)})`;
    row.append(cell);
  }
  function start(key, quiet) {
    const row = make("div", undefined, quiet ? "row quiet" : "row");
    const band = make("span", undefined, "band");
    if (key && links.colors.has(key)) band.style.background = links.colors.get(key);
    row.append(band);
    return row;
  }
  function openFile(file) {
    state.file = file;
    $("file").value = file;
    const source = data.sources[file] || { lines: [], note: "" };
    panes.source.texts = source.lines;
    panes.source.set(source.lines.map((text, n) => () => {
      const key = file + ":" + (n + 1);
      const row = start(key, !links.colors.has(key));
      if (state.heat) warm(row, heatOf(file, n + 1), hottest);
      row.append(make("span", n + 1, "no"), make("span", text, "text"));
      return row;
    }), source.note);
  }
  function openPtx(kernel) {
    const lines = kernel.ptx === null ? [] : data.ptx[kernel.ptx].split("\n");
    panes.ptx.texts = lines;
    panes.ptx.set(lines.map((text, n) => () => {
      const loc = ptxSource(kernel, n + 1);
      const outside = kernel.ptx_lines && (n + 1 < kernel.ptx_lines[0] || n + 1 > kernel.ptx_lines[1]);
      const row = start(loc && place(loc), outside || /^\s*(\.loc|\.file|\/\/)/.test(text));
      if (state.heat) warm(row, ptxHeatOf(n + 1), hottestPtx);
      row.append(make("span", n + 1, "no"), make("span", text, "text"));
      return row;
    }), lines.length ? "" : "not at hand");
    if (kernel.ptx_lines) panes.ptx.view.scrollTop = (kernel.ptx_lines[0] - 2) * ROW;
    panes.ptx.draw();
  }
  function scheduling(c) {
    const wait = [0, 1, 2, 3, 4, 5].map((b) => (c.wait.includes(b) ? b : "-")).join("");
    const bar = (v) => (v === null ? "-" : v);
    return `${wait} R${bar(c.read_barrier)} W${bar(c.write_barrier)} ${c.yield ? "Y" : "-"} S${String(c.stall).padStart(2, "0")}`;
  }
  // A PTX line's count stands once; other instructions that came from the line only name it.
  function warmSass(row, instruction, isFirst) {
    const value = instruction.ptx_line ? ptxHeatOf(instruction.ptx_line) : 0;
    if (isFirst || !value) return warm(row, isFirst ? value : 0, hottestPtx);
    const cell = make("span", "ptx " + instruction.ptx_line, "heat of");
    cell.title = "part of the count of PTX line " + instruction.ptx_line + ", which stands at the first instruction from it";
    row.append(cell);
  }
  function openSass(kernel) {
    const peak = kernel.peak_live_registers ? kernel.peak_live_registers.registers : 0;
    const labels = new Map(kernel.blocks.filter((b) => b.label).map((b) => [b.address, b.label]));
    panes.sass.texts = kernel.instructions.map((i) => i.text);
    const first = new Map();  // PTX line -> index of the first instruction that came from it
    kernel.instructions.forEach((i, n) => { if (i.ptx_line && !first.has(i.ptx_line)) first.set(i.ptx_line, n); });
    panes.sass.set(kernel.instructions.map((i, n) => () => {
      const row = start(i.source && place(i.source), false);
      if (state.heat) warmSass(row, i, first.get(i.ptx_line) === n);
      const live = make("span", undefined, "live");
      const registers = i.live.R || 0;
      if (peak) {
        const bar = make("i");
        bar.style.width = Math.round((100 * registers) / peak) + "%";
        live.append(bar, make("b", registers));
        live.title = registers + " live registers";
        live.classList.toggle("peak", registers === peak);
      }
      row.append(live, make("span", i.address.toString(16).padStart(4, "0"), "no"));
      if (state.control) row.append(make("span", scheduling(i.control), "ctl"));
      row.append(make("span", i.text, "text"));
      row.title = (labels.has(i.address) ? labels.get(i.address) + "\n" : "") + (i.source ? base(i.source.file) + ":" + i.source.line : "no source line");
      return row;
    }), `${kernel.instructions.length} instructions`);
  }

  // ---- the summary --------------------------------------------------------------------------------------------------------
  function item(title, ...lines) {
    const box = make("div", undefined, "item");
    box.append(make("h3", title));
    for (const line of lines) box.append(typeof line === "string" ? make("p", line) : line);
    return box;
  }
  function jump(text, loc) {
    const link = make("button", text, "jump");
    link.addEventListener("click", () => toSource(place(loc)));
    return link;
  }
  function summary(kernel) {
    const r = kernel.resources, o = kernel.occupancy, m = kernel.mix.sass;
    const boxes = [];
    const spills = (r.spill_store_bytes || 0) + (r.spill_load_bytes || 0);
    const peak = kernel.peak_live_registers;
    const dynamic = kernel.launch.dynamic_shared_bytes ? ` + ${kernel.launch.dynamic_shared_bytes} dynamic` : "";
    const registers = make("p", `${r.registers} registers`);
    if (peak) {
      registers.append(`, ${peak.registers} live at most`);
      if (peak.source) registers.append(" at ", jump(base(peak.source.file) + ":" + peak.source.line, peak.source));
    }
    boxes.push(item("resources", registers, `${r.shared_bytes} B shared${dynamic}, ${r.local_bytes} B local, ${spills} B spilled, ${r.barriers} barriers`));
    boxes.push(item("occupancy", o.impossible ? o.impossible :
      `${o.ctas_per_sm} CTAs of ${o.block} threads: ${o.warps_per_sm} of ${o.max_warps} warps (${Math.round(100 * o.fraction)}%)`,
      o.impossible ? "" : `limited by ${o.limiters.join(" and ")}` + (kernel.launch.block_known ? "" : "; the CTA size is a guess")));
    const bar = make("div", undefined, "mix"), names = make("p", undefined, "mixnames");
    Object.entries(m.groups).forEach(([name, n], k) => {
      const part = make("i");
      part.style.width = (100 * n) / m.total + "%";
      part.style.background = PALETTE[k % PALETTE.length];
      part.title = Object.entries(m.classes[name]).map(([c, v]) => `${c} ${v}`).join(", ");
      bar.append(part);
      const word = make("span"), key = make("i", undefined, "key");
      key.style.background = PALETTE[k % PALETTE.length];
      word.append(key, `${name} ${n}`);
      word.title = part.title;
      names.append(word);
    });
    boxes.push(item(`mix of ${m.total} instructions`, bar, names));
    if (kernel.loops.length) {
      boxes.push(item("loops", ...kernel.loops.slice(0, 5).map((l) => {
        const p = make("p");
        p.append("›".repeat(l.depth) + " ", l.source ? jump(base(l.source.file) + ":" + l.source.line, l.source) : "somewhere",
          `: ${l.instructions} instructions, ${l.stall_cycles} stall cycles`);
        return p;
      })));
    }
    const heat = kernel.heat ? kernel.heat.sizes : kernel.heat_note;
    const ptxHeat = kernel.heat && Object.keys(kernel.heat.ptx).length;
    const legend = !kernel.heat ? "" : ptxHeat
      ? "PTX is what is counted. A source line shows the sum over its PTX lines. SASS is derived: the count of a PTX line stands once, at the first instruction from it; the others name the line (ptx N)."
      : "A source line shows the sum over its PTX lines. The PTX that was counted is not the PTX shown (another tile), so PTX and SASS have no heat.";
    const box = item("heat", heat, legend);
    box.id = "legend";
    boxes.push(box);
    if (kernel.findings.length) {
      boxes.push(item("findings", ...kernel.findings.map((f) => {
        const p = make("p", undefined, "finding");
        if (f.source) p.append(jump(base(f.source.file) + ":" + f.source.line, f.source), " ");
        p.append(f.message);
        return p;
      })));
    }
    $("summary").replaceChildren(...boxes);
  }

  // ---- choices --------------------------------------------------------------------------------------------------------------
  function options(select, pairs, chosen) {
    select.replaceChildren(...pairs.map(([value, text]) => {
      const o = make("option", text);
      o.value = value;
      return o;
    }));
    select.value = chosen;
  }
  function setHeat(name) {
    state.heat = name;
    $("heat").value = name;
    const heat = data.kernels[state.kernel].heat;
    hottest = hottestPtx = 1;
    if (name && heat) for (const v of Object.values(heat.ptx[name] || {})) hottestPtx = Math.max(hottestPtx, v);
    if (name && heat && heat.metrics[name]) for (const lines of Object.values(heat.metrics[name])) for (const v of Object.values(lines)) hottest = Math.max(hottest, v);
    Object.values(panes).forEach((p) => p.redraw());
  }
  function openKernel(index) {
    state.kernel = index;
    state.pinned = null;
    state.lit = null;
    const kernel = data.kernels[index];
    links = link(kernel);
    const used = new Set([...links.colors.keys()].map((k) => k.slice(0, k.lastIndexOf(":"))));
    const files = Object.keys(data.sources).filter((f) => used.has(f));
    options($("file"), files.map((f) => [f, base(f)]), files[0] || "");
    const metrics = kernel.heat ? [...new Set([...Object.keys(kernel.heat.ptx), ...Object.keys(kernel.heat.metrics)])] : [];
    $("source").hidden = !files.length;  // hand-written PTX is its own source
    if (!files.length && state.active === "source") state.active = "ptx";
    options($("heat"), [["", "none"], ...metrics.map((m) => [m, m])], "");
    $("heat").disabled = !metrics.length;
    state.heat = "";
    summary(kernel);
    openFile(files[0] || "");
    openPtx(kernel);
    openSass(kernel);
    if (metrics.length) setHeat(metrics[0]);
    // where the kernel itself is written: what its first instructions were inlined into
    let outer = (kernel.instructions.find((i) => i.source) || {}).source;
    while (outer && outer.inlined_at) outer = outer.inlined_at;
    if (outer && outer.file !== state.file && data.sources[outer.file]) openFile(outer.file);
    if (outer) panes.source.view.scrollTop = Math.max(0, (outer.line - 6) * ROW);
    panes.source.draw();
    search($("search").value);
  }
  function search(text) {
    state.query = text.trim().toLowerCase();
    const found = Object.values(panes).map((p) => (state.query ? p.texts.filter((t) => t.toLowerCase().includes(state.query)).length : 0));
    $("found").textContent = state.query ? `${found[0]} + ${found[1]} + ${found[2]} lines` : "";
    remark();
  }
  function next(step) {
    if (!state.query) return;
    const pane = panes[state.active], n = pane.items.length;
    for (let k = 1; k <= n; k++) {
      const i = (((pane.cursor + step * k) % n) + n) % n;
      if (pane.text(i).toLowerCase().includes(state.query)) return pane.move(i);
    }
  }
  function setTheme(name) { document.documentElement.dataset.theme = name; }
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  setTheme(dark.matches ? "dark" : "light");
  dark.addEventListener("change", (e) => setTheme(e.matches ? "dark" : "light"));
  const toggleTheme = () => setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark");
  function toggleControl() {
    state.control = !state.control;
    $("control").setAttribute("aria-pressed", state.control);
    panes.sass.redraw();
  }

  options($("kernel"), data.kernels.map((k, i) => [String(i), `${k.title}  ${k.kernel}  ${k.target}${k.tile ? "  " + k.tile : ""}`]), "0");
  $("kernel").addEventListener("change", (e) => openKernel(+e.target.value));
  $("file").addEventListener("change", (e) => { openFile(e.target.value); remark(); });
  $("heat").addEventListener("change", (e) => setHeat(e.target.value));
  $("search").addEventListener("input", (e) => search(e.target.value));
  $("search").addEventListener("keydown", (e) => {
    if (e.key === "Enter") { next(e.shiftKey ? -1 : 1); panes[state.active].section.focus(); }
    if (e.key === "Escape") { e.target.value = ""; search(""); panes[state.active].section.focus(); }
  });
  $("control").addEventListener("click", toggleControl);
  $("theme").addEventListener("click", toggleTheme);
  $("help").addEventListener("click", () => $("keys").showModal());
  document.addEventListener("keydown", (e) => {
    if (e.target.matches("input, select") || e.ctrlKey || e.metaKey || e.altKey || $("keys").open) return;
    const pane = panes[state.active], page = Math.max(1, Math.floor(pane.view.clientHeight / ROW) - 2);
    const order = ["source", "ptx", "sass"].filter((name) => !$(name).hidden);
    const moves = { j: 1, ArrowDown: 1, k: -1, ArrowUp: -1, PageDown: page, PageUp: -page };
    if (e.key in moves) pane.move(pane.cursor + moves[e.key]);
    else if (e.key === "Home") pane.move(0);
    else if (e.key === "End") pane.move(pane.items.length - 1);
    else if (e.key === "Tab") { state.active = order[(order.indexOf(state.active) + (e.shiftKey ? order.length - 1 : 1)) % order.length]; panes[state.active].section.focus(); remark(); }
    else if (e.key === "Enter") pin(state.active, pane.cursor);
    else if (e.key === "Escape") unpin();
    else if (e.key === "/") $("search").focus();
    else if (e.key === "n") next(1);
    else if (e.key === "N") next(-1);
    else if (e.key === "c") toggleControl();
    else if (e.key === "t") toggleTheme();
    else if (e.key === "h" && !$("heat").disabled) setHeat($("heat").options[($("heat").selectedIndex + 1) % $("heat").options.length].value);
    else if (e.key === "?") $("keys").showModal();
    else return;
    e.preventDefault();
  });
  const whole = (on) => { for (const p of Object.values(panes)) { p.all = on; p.redraw(); } };
  window.addEventListener("beforeprint", () => whole(true));
  window.addEventListener("afterprint", () => whole(false));
  openKernel(0);
  panes.sass.section.focus({ preventScroll: true });
  document.documentElement.dataset.ready = "yes";
})();
