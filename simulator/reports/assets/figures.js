"use strict";
(() => {
  let figures = {};
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const print = matchMedia("print");
  const hidden = new Set(); // keys of lines, on the whole page
  const offered = {}; // by figure: the lines that its legend has
  let printing = false;
  const PAPER = 660; // pixels between the margins of a printed page
  const NARROW = 620;
  const SYMBOLS = { circle: "●", square: "■", diamond: "◆", "triangle-up": "▲", cross: "✚", star: "★", x: "✖", "triangle-down": "▼", pentagon: "⬟", hexagon: "⬢", "triangle-right": "▶", "triangle-left": "◀" };
  const DASHES = { solid: "", dash: "7 4", dot: "2 3", dashdot: "7 3 2 3", longdash: "11 4", longdashdot: "11 3 2 3" };

  const narrow = () => !printing && innerWidth <= NARROW;
  const make = (tag, attributes, ...children) => {
    const svg = ["svg", "line", "text"].includes(tag);
    const it = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
    for (const [key, value] of Object.entries(attributes)) it.setAttribute(key, value);
    it.append(...children);
    return it;
  };

  // "--c0/0.2" is the page's colour --c0 at opacity 0.2
  function colour(token) {
    const [name, alpha] = token.split("/");
    const hex = getComputedStyle(document.documentElement).getPropertyValue(name).trim();
    if (!alpha) return hex;
    const [r, g, b] = [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
    return `rgba(${r},${g},${b},${alpha})`;
  }
  function themed(value) {
    if (typeof value === "string") return value.startsWith("--") ? colour(value) : value;
    if (Array.isArray(value)) return typeof value[0] === "number" ? value.slice() : value.map(themed);
    if (value === null || typeof value !== "object") return value;
    return Object.fromEntries(Object.entries(value).map(([key, each]) => [key, themed(each)]));
  }

  function layout(id) {
    const spec = figures[id];
    const own = themed(spec.layout);
    const axis = { gridcolor: colour("--rule"), linecolor: colour("--muted"), zeroline: false, automargin: true, spikecolor: colour("--muted"), spikethickness: 1, spikedash: "dot", exponentformat: "power", minexponent: 6 };
    const made = {
      ...own,
      height: spec.height,
      width: printing ? PAPER : undefined,
      autosize: !printing,
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: getComputedStyle(document.body).fontFamily, size: 12.5, color: colour("--ink") },
      hoverlabel: { bgcolor: colour("--card"), bordercolor: colour("--rule"), font: { color: colour("--ink") }, namelength: -1, align: "left" },
      margin: { l: 48, r: 16, t: 12, b: 48 },
      showlegend: false,
      dragmode: narrow() ? false : "zoom",
      hovermode: narrow() ? "closest" : own.hovermode ?? "closest",
      xaxis: { ...axis, ...own.xaxis },
      yaxis: { ...axis, ...own.yaxis },
    };
    if (narrow()) squeeze(made, spec.data);
    for (const name of ["xaxis", "yaxis"]) if (own[name]?.type === "log" && own[name].range) Object.assign(made[name], ticks(own[name].range, name));
    for (const note of made.annotations ?? []) if (made.yaxis.type === "log") note.y = Math.log10(note.y);
    return made;
  }

  // On a phone, break long names into several lines
  function squeeze(made, data) {
    for (const name of ["xaxis", "yaxis"]) {
      const title = made[name].title?.text ?? "";
      if (title.length > (name === "yaxis" ? 24 : 36)) made[name].title = { text: halves(title).join("<br>") };
    }
    Object.assign(made.xaxis, { nticks: 5, tickangle: 0 });
    const names = [...new Set(data.flatMap((trace) => trace.y).filter((each) => typeof each === "string"))];
    if (!names.length) return;
    const rows = names.map((name) => name.replace(/ (?=\S{4})/g, "<br>"));
    made.yaxis = { ...made.yaxis, tickmode: "array", tickvals: names, ticktext: rows, tickfont: { size: 11 } };
    const most = Math.max(...rows.map((row) => row.split("<br>").length));
    made.height = Math.max(made.height, 130 + (15 * most + 4) * names.length);
  }
  // Ticks at 0.1, 0.2, 0.5, 1; on a phone 0.1, 0.3, 1; of many decades only at powers of ten
  function ticks([low, high], name) {
    const digits = high - low > 4 ? [1] : narrow() && name === "xaxis" && high - low > 1.5 ? [1, 3] : [1, 2, 5];
    const values = [];
    for (let power = Math.floor(low); power <= high; power += 1) values.push(...digits.map((digit) => digit * 10 ** power));
    const shown = values.filter((value) => Math.log10(value) >= low && Math.log10(value) <= high);
    if (shown.length < 3) return {};
    const text = (value) => (value >= 1e-4 && value < 1e6 ? String(Number(value.toPrecision(3))) : value.toExponential(0));
    return { tickmode: "array", tickvals: shown, ticktext: shown.map(text) };
  }

  function draw(id) {
    const plot = document.getElementById(`plot-${id}`);
    const data = themed(figures[id].data);
    for (const trace of data) if (hidden.has(trace.legendgroup)) trace.visible = false;
    Plotly.react(plot, data, layout(id), { displayModeBar: false, responsive: true });
  }

  function halves(label) {
    const spaces = [...label.matchAll(/ /g)].map((found) => found.index);
    if (!spaces.length) return [label];
    const middle = spaces.reduce((a, b) => (Math.abs(2 * a - label.length) <= Math.abs(2 * b - label.length) ? a : b));
    return [label.slice(0, middle), label.slice(middle + 1)];
  }

  function legend(id) {
    const box = make("div", { class: "legend", role: "group", "aria-label": "Show or hide" });
    for (const [key, line] of Object.entries(figures[id].lines)) {
      const stroke = make("line", { x1: 0, x2: 30, y1: 6, y2: 6, "stroke-width": 2.5, "stroke-dasharray": DASHES[line.dash] });
      stroke.style.stroke = `var(${line.colour})`;
      const symbol = make("text", { x: 15, y: 10, "text-anchor": "middle", "font-size": 12 }, SYMBOLS[line.symbol]);
      symbol.style.fill = `var(${line.colour})`;
      const button = make("button", { type: "button", "aria-pressed": "true", "data-key": key, title: "Show or hide" },
        make("svg", { width: 30, height: 12, "aria-hidden": "true" }, stroke, symbol), line.name);
      button.addEventListener("click", () => {
        if (!hidden.delete(key)) hidden.add(key);
        for (const each of document.querySelectorAll(`[data-key="${key}"]`)) each.setAttribute("aria-pressed", String(!hidden.has(key)));
        Object.keys(figures).filter((other) => key in figures[other].lines).forEach(draw);
      });
      box.append(button);
    }
    return box;
  }
  // Make the legend of a figure, unless it has it
  function offer(id) {
    const lines = JSON.stringify(figures[id].lines);
    if (offered[id] === lines) return;
    offered[id] = lines;
    const controls = document.getElementById(`plot-${id}`).parentElement.querySelector(".choices");
    controls.replaceChildren(...(Object.keys(figures[id].lines).length ? [legend(id)] : []));
  }
  const all = () => Object.keys(figures).forEach(draw);
  const paper = (on) => {
    if (on === printing) return;
    printing = on;
    for (const fold of document.querySelectorAll("section > details:has(> summary > h2)")) fold.open = on;
    all();
  };
  const inside = (fold, id) => fold.contains(document.getElementById(`plot-${id}`));
  // A plot has no width while its section is folded
  document.addEventListener("toggle", ({ target }) => {
    if (target.open) Object.keys(figures).filter((id) => inside(target, id)).forEach(draw);
  }, true);
  dark.addEventListener("change", all);
  print.addEventListener("change", () => paper(print.matches));
  addEventListener("beforeprint", () => paper(true));
  addEventListener("afterprint", () => paper(false));
  let width = innerWidth;
  addEventListener("resize", () => { if (innerWidth !== width && !printing) { width = innerWidth; all(); } });

  async function show(found) {
    figures = found;
    while (!window.Plotly) await new Promise((done) => { setTimeout(done, 20); });
    Object.keys(figures).forEach(offer);
    all();
    document.documentElement.dataset.ready = "";
  }
  window.pacelineFigures = show;
  const embedded = document.getElementById("figures");
  if (embedded) show(JSON.parse(embedded.textContent));
})();
