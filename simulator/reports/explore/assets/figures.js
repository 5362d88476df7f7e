/* Draws the page's figures, from the numbers of picture.py, as plotly's data and layout. */
(() => {
  const HEIGHT = { wide: 440, narrow: 330 }; // pixels
  const ROW = 19; // pixels of a name in the legend of a narrow figure
  const INK = { // text, axes, grid lines
    light: ["#1b1f24", "#59626b", "#e4e7ea"],
    dark: ["#e8eaed", "#a3abb3", "#343a41"],
  };

  const ink = (dark) => INK[dark ? "dark" : "light"];
  const parts = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
  const shade = (hex, dark) => (dark && hex === "#000000" ? "#e8eaed" : hex); // black is invisible there
  const faint = (hex) => `rgba(${parts(hex)},0.18)`;
  const forText = (hex, dark) => { // text needs more contrast
    const moved = parts(shade(hex, dark)).map((part) => Math.round(dark ? 255 - 0.62 * (255 - part) : 0.75 * part));
    return `rgb(${moved})`;
  };

  function base(dark, height) {
    const [text, axis, grid] = ink(dark);
    const line = {
      showline: true, linecolor: axis, gridcolor: grid, zeroline: false, ticks: "outside", tickcolor: axis,
      tickfont: { color: axis, size: 12 }, title: { font: { color: axis, size: 13 } }, automargin: false,
    };
    return {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", height,
      font: { family: "system-ui, sans-serif", color: text, size: 13 },
      xaxis: { ...line, showgrid: false }, yaxis: { ...line },
      hovermode: "closest", uirevision: "same", dragmode: false, transition: { duration: 0 },
    };
  }

  const title = (text, dark, above = 8) => ({
    text, xref: "paper", yref: "paper", x: 0, y: 1, xanchor: "left", yanchor: "bottom", yshift: above,
    showarrow: false, font: { color: ink(dark)[1], size: 13 },
  });

  const trace = ({ x, y }, color, width, more) => ({
    type: "scatter", mode: "lines", x, y, line: { color, width }, showlegend: false, ...more,
  });

  // Ticks at 1, 2 and 5 of each decade; of many decades only at 1
  function ticks(low, high) {
    const bases = high - low < 4 ? [1, 2, 5] : [1];
    const values = [];
    for (let decade = Math.floor(low); decade <= Math.ceil(high); decade += 1) {
      values.push(...bases.map((each) => Number(`${each}e${decade}`)));
    }
    const shown = values.filter((value) => low <= Math.log10(value) && Math.log10(value) <= high);
    return { tickmode: "array", tickvals: shown, ticktext: shown.map(String) };
  }

  function error(found, { dark, narrow }) {
    const { x, y, target } = found;
    const skip = { hoverinfo: "skip" };
    const own = (line) => shade(line.colour, dark);
    const data = found.before.map((line) => trace(line, own(line), 1.2, { ...skip, opacity: 0.45 }));
    for (const line of found.lines) {
      (line.band ?? []).forEach((edge, upper) => data.push(trace({ x: line.x, y: edge }, own(line), 0,
        { ...skip, ...(upper ? { fill: "tonexty", fillcolor: faint(own(line)) } : {}) })));
    }
    for (const line of found.lines) {
      data.push(trace(line, own(line), 2.4, {
        mode: "lines+markers", marker: { symbol: line.symbol, size: 7, maxdisplayed: 8, color: own(line) },
        name: line.name, showlegend: narrow, line: { color: own(line), width: 2.4, dash: line.dash },
        hovertemplate: `${line.name}<br>%{x:.4g} ${x.unit}: %{y:.4g}<extra></extra>`,
      }));
    }
    for (const line of found.bounds) {
      data.push(trace(line, own(line), 1.4,
        { ...skip, line: { color: forText(line.colour, dark), width: 1.4, dash: "dot" } }));
    }
    const names = narrow ? ROW * found.lines.length : 0; // above the axes, a row for each
    const layout = base(dark, (narrow ? HEIGHT.narrow : HEIGHT.wide) + names);
    const annotations = narrow ? [] : found.names.map(({ text, y: height, colour }) => ({
      text, xref: "paper", x: 1, xshift: 8, xanchor: "left", align: "left", yref: "paper", y: height,
      yanchor: "middle", showarrow: false, font: { color: forText(colour, dark), size: 13 },
    }));
    annotations.push(title(y.title, dark, 8 + names));
    const [, muted] = ink(dark);
    if (target !== null) {
      annotations.push({
        text: `target ${Number(target.toPrecision(6))}`, xref: "paper", x: 1, xanchor: "right",
        y: y.log ? Math.log10(target) : target, yanchor: "bottom", showarrow: false,
        font: { color: muted, size: 12 },
      });
    }
    return { data, layout: {
      ...layout,
      xaxis: { ...layout.xaxis, title: { text: `wall-clock time (${x.unit})` }, range: [0, x.end * 1.005] },
      yaxis: { ...layout.yaxis, type: y.log ? "log" : "linear", range: [y.low, y.high],
        ...(y.log ? ticks(y.low, y.high) : {}), minor: { showgrid: false } },
      annotations,
      margin: { l: 58, r: narrow ? 14 : 170, t: 34 + names, b: 46 },
      legend: { y: 1, yanchor: "bottom", x: 0, traceorder: "normal", font: { size: 11 }, itemwidth: 40 },
      showlegend: narrow,
      shapes: target === null ? [] : [{
        type: "line", xref: "paper", x0: 0, x1: 1, y0: target, y1: target,
        line: { color: muted, width: 1, dash: "4px,4px" },
      }],
    } };
  }

  function spent({ rows, parts: kinds, before, totals, x, height }, { dark, narrow }) {
    const data = kinds.map(({ name, colour, x: lengths, percent }) => ({
      type: "bar", orientation: "h", y: rows, name, x: lengths, marker: { color: colour }, customdata: percent,
      hovertemplate: `${name}: %{x:.3g} ${x.unit}, %{customdata:.0f} %<extra></extra>`,
    }));
    if (before) {
      data.push({
        type: "scatter", mode: "markers", y: rows, name: "as loaded", x: before,
        marker: { symbol: "line-ns", size: 20, line: { width: 2, color: ink(dark)[0] } },
        hovertemplate: `as loaded: %{x:.3g} ${x.unit}<extra></extra>`,
      });
    }
    const names = narrow ? ROW * data.length : 18; // of the legend, above the axes
    const layout = base(dark, height + names - 18);
    return { data, layout: {
      ...layout,
      barmode: "stack", bargap: 0.35, showlegend: true,
      legend: { orientation: narrow ? "v" : "h", y: 1, yanchor: "bottom", x: 0, traceorder: "normal", font: { size: 12 } },
      margin: { l: narrow ? 20 : 210, r: 18 + 7 * Math.max(0, ...totals.map(({ text }) => text.length)), t: 38 + names, b: 44 },
      annotations: [
        ...totals.map(({ x: end, text }, row) => ({
          x: end, y: rows[row], text, xanchor: "left", showarrow: false,
          font: { size: 12, color: ink(dark)[0] }, xshift: 4,
        })),
        title(narrow ? "time per step" : "time per step, and where it goes", dark, 8 + names),
      ],
      xaxis: { ...layout.xaxis, title: { text: `${x.unit} per step` }, range: [0, x.end] },
      yaxis: { ...layout.yaxis, autorange: "reversed", showgrid: false, automargin: true },
    } };
  }

  globalThis.pacelineFigures = { error, spent };
})();
