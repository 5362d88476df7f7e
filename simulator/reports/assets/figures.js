"use strict";
(() => {
  let figures = {};
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const print = matchMedia("print");
  const hidden = new Set(); // keys of lines, on the whole page
  const state = {}; // by figure: the type of each axis, the chosen algorithm, and what readers can choose from
  let printing = false;
  const PAPER = 660; // pixels between the margins of a printed page
  const NARROW = 620;
  const INSIDE = 0.8; // of the width: lines that end before it are named at their end, others beside the plot
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

  const chosen = (id) => {
    const { choices } = figures[id];
    return Object.keys(choices ?? {}).length ? choices[state[id].choice] : figures[id];
  };

  function layout(id) {
    const spec = chosen(id);
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
      margin: { l: 48, r: 16, t: own.showlegend ? 36 : 12, b: 48 },
      legend: { orientation: "h", x: 0, xanchor: "left", y: 1, yanchor: "bottom", traceorder: "normal" },
      showlegend: Boolean(own.showlegend),
      dragmode: narrow() ? false : "zoom",
      hovermode: narrow() ? "closest" : own.hovermode ?? "closest",
      xaxis: { ...axis, ...own.xaxis },
      yaxis: { ...axis, ...own.yaxis },
    };
    if (narrow()) squeeze(made, spec.data);
    for (const name of ["xaxis", "yaxis"]) if (own[name]?.type === "log" && own[name].range) Object.assign(made[name], ticks(own[name].range, name));
    for (const [name, type] of Object.entries(state[id].axes)) {
      const range = spec.ranges[name][type].slice();
      made[name] = { ...made[name], type, range, ...(type === "log" ? ticks(range, name) : {}) };
    }
    for (const note of made.annotations ?? []) if (made.yaxis.type === "log") note.y = Math.log10(note.y);
    return made;
  }

  // On a phone, break long names into several lines
  function squeeze(made, data) {
    for (const name of ["xaxis", "yaxis"]) {
      const title = made[name].title?.text ?? "";
      if (title.length > (name === "yaxis" ? 24 : 36)) made[name].title = { text: halves(title).join("<br>") };
    }
    if (made.xaxis.type === "category") made.height += 60; // its names stand upright
    else Object.assign(made.xaxis, { nticks: 5, tickangle: 0 });
    if (made.showlegend) {
      const rows = Math.ceil(data.length / 2);
      made.margin.t = 16 + 20 * rows;
      made.height += 20 * rows;
    }
    const names = [...new Set(data.flatMap((trace) => trace.y).filter((each) => typeof each === "string"))];
    if (!names.length) return;
    const rows = names.map((name) => name.replace(/ (?=\S{4})/g, "<br>"));
    made.yaxis = { ...made.yaxis, tickmode: "array", tickvals: names, ticktext: rows, tickfont: { size: 11 } };
    const most = Math.max(...rows.map((row) => row.split("<br>").length));
    made.height = Math.max(made.height, 130 + (15 * most + 4) * names.length);
  }
  // Ticks at 0.1, 0.2, 0.5, 1; of many decades only at powers of ten
  function ticks([low, high], name) {
    const digits = high - low > (narrow() && name === "xaxis" ? 1.5 : 4) ? [1] : [1, 2, 5];
    const values = [];
    for (let power = Math.floor(low); power <= high; power += 1) values.push(...digits.map((digit) => digit * 10 ** power));
    const shown = values.filter((value) => Math.log10(value) >= low && Math.log10(value) <= high);
    if (shown.length < 3) return {};
    const text = (value) => (value >= 1e-4 && value < 1e6 ? String(Number(value.toPrecision(3))) : value.toExponential(0));
    return { tickmode: "array", tickvals: shown, ticktext: shown.map(text) };
  }

  function draw(id) {
    const plot = document.getElementById(`plot-${id}`);
    const data = themed(chosen(id).data);
    for (const trace of data) if (hidden.has(trace.legendgroup)) trace.visible = false;
    const made = layout(id);
    const names = wrapped(id);
    if (names.size) made.margin.r = 30 + Math.max(...[...names.values()].map((each) => each.width));
    Plotly.react(plot, data, made, { displayModeBar: false, responsive: true });
    if (names.size) Plotly.relayout(plot, { annotations: [...(made.annotations ?? []), ...ends(plot, names)] });
  }

  // Labels for the ends of lines: numbers where there is little room
  function wrapped(id) {
    const pen = make("canvas", {}).getContext("2d");
    pen.font = "12px system-ui, sans-serif";
    const names = new Map();
    if (narrow() && Object.keys(figures[id].lines).length < 2) return names; // the only line, without a legend
    Object.entries(figures[id].lines).forEach(([key, { name, label }], index) => {
      if (hidden.has(key)) return;
      let rows = [narrow() ? String(index + 1) : label];
      if (!narrow() && pen.measureText(name).width > 130) rows = halves(label);
      const width = Math.max(...rows.map((row) => pen.measureText(row).width));
      names.set(key, { text: rows.join("<br>"), rows: rows.length, width: Math.min(width, 230) });
    });
    return names;
  }
  function halves(label) {
    const spaces = [...label.matchAll(/ /g)].map((found) => found.index);
    if (!spaces.length) return [label];
    const middle = spaces.reduce((a, b) => (Math.abs(2 * a - label.length) <= Math.abs(2 * b - label.length) ? a : b));
    return [label.slice(0, middle), label.slice(middle + 1)];
  }

  function ends(plot, names) {
    const { xaxis, yaxis, _size: { h, w } } = plot._fullLayout;
    const share = (axis, value) => {
      const [low, high] = axis.range;
      return ((axis.type === "log" ? Math.log10(value) : axis.type === "category" ? axis._categories.indexOf(value) : value) - low) / (high - low);
    };
    const places = [];
    for (const trace of plot.data) {
      if (trace.meta !== "mean" || !names.has(trace.legendgroup)) continue;
      for (let at = trace.x.length - 1; at >= 0; at -= 1) {
        if (trace.y[at] === null) continue;
        const [x, y] = [share(xaxis, trace.x[at]), share(yaxis, trace.y[at])];
        if (!(x >= 0 && x <= 1.001 && y >= 0 && y <= 1)) continue;
        const name = names.get(trace.legendgroup);
        places.push({ x, y: (1 - y) * h, room: 16 * name.rows, text: name.text, colour: trace.line.color, inside: x < INSIDE });
        break;
      }
    }
    for (const inside of [false, true]) apart(places.filter((place) => place.inside === inside), h);
    return places.map((place) => ({
      name: "end", text: place.text, x: place.x, xref: "paper", y: 1 - place.y / h, yref: "paper",
      ax: place.inside ? 16 : (1 - place.x) * w + 12, ay: place.moved - place.y, xanchor: "left", align: "left",
      arrowhead: 0, arrowwidth: 1, arrowcolor: place.colour, standoff: 2, font: { size: 12 }, bgcolor: place.inside ? colour("--page/0.8") : undefined,
    }));
  }
  // Move overlapping labels apart, as little as possible
  function apart(places, height) {
    places.sort((a, b) => a.y - b.y);
    let below = -Infinity;
    for (const place of places) {
      place.moved = Math.max(place.y, below + place.room / 2, place.room / 2);
      below = place.moved + place.room / 2;
    }
    let above = height;
    for (const place of [...places].reverse()) {
      place.moved = Math.min(place.moved, above - place.room / 2);
      above = place.moved - place.room / 2;
    }
  }

  function legend(id) {
    const box = make("div", { class: "legend", role: "group", "aria-label": "Show or hide" });
    Object.entries(figures[id].lines).forEach(([key, line], index) => {
      const stroke = make("line", { x1: 0, x2: 30, y1: 6, y2: 6, "stroke-width": 2.5, "stroke-dasharray": DASHES[line.dash] });
      stroke.style.stroke = `var(${line.colour})`;
      const symbol = make("text", { x: 15, y: 10, "text-anchor": "middle", "font-size": 12 }, SYMBOLS[line.symbol]);
      symbol.style.fill = `var(${line.colour})`;
      const button = make("button", { type: "button", "aria-pressed": "true", "data-key": key, title: "Show or hide" },
        make("svg", { width: 30, height: 12, "aria-hidden": "true" }, stroke, symbol), make("b", {}, String(index + 1)), line.name);
      button.addEventListener("click", () => {
        if (!hidden.delete(key)) hidden.add(key);
        for (const each of document.querySelectorAll(`[data-key="${key}"]`)) each.setAttribute("aria-pressed", String(!hidden.has(key)));
        Object.keys(figures).filter((other) => key in figures[other].lines).forEach(draw);
      });
      box.append(button);
    });
    return box;
  }
  function scale(id, name) {
    const group = make("div", { class: "group", role: "group", "aria-label": `Scale of the ${name === "xaxis" ? "time" : "vertical"} axis` },
      make("span", {}, name === "xaxis" ? "time" : "vertical"));
    for (const type of ["linear", "log"]) {
      const button = make("button", { type: "button", "data-axis": name, "data-type": type, "aria-pressed": String(state[id].axes[name] === type) }, type);
      button.addEventListener("click", () => {
        state[id].axes[name] = type;
        for (const each of group.querySelectorAll("button")) each.setAttribute("aria-pressed", String(each === button));
        draw(id);
      });
      group.append(button);
    }
    return group;
  }
  function choice(id) {
    const select = make("select", {}, ...Object.keys(figures[id].choices).map((name) => make("option", {}, name)));
    select.addEventListener("change", () => { state[id].choice = select.value; draw(id); });
    return make("label", { class: "group" }, make("span", {}, figures[id].choose), select);
  }

  // Make the controls of a figure, unless it has them
  function offer(id) {
    const spec = { choices: {}, ...figures[id] };
    const offered = JSON.stringify([spec.lines, Object.keys(spec.ranges), Object.keys(spec.choices)]);
    if (state[id]?.offered === offered) return;
    const axes = Object.fromEntries(Object.keys(spec.ranges).map((name) => [name, spec.layout[name].type ?? "linear"]));
    state[id] = { axes, choice: Object.keys(spec.choices)[0], offered };
    const controls = document.getElementById(`plot-${id}`).parentElement.querySelector(".choices");
    controls.replaceChildren();
    if (Object.keys(spec.lines).length > 1) controls.append(legend(id));
    for (const name of Object.keys(spec.ranges)) if (spec.ranges[name].log) controls.append(scale(id, name));
    if (Object.keys(spec.choices).length) controls.append(choice(id));
  }
  const all = () => Object.keys(figures).forEach(draw);
  const paper = (on) => {
    if (on === printing) return;
    printing = on;
    for (const fold of document.querySelectorAll("section > details")) fold.open = on;
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
