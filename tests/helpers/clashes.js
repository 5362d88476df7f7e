// Texts of figures that are cut, or over each other.
() => {
  const names = [".legendtext", ".annotation-text-g", ".g-xtitle text", ".g-ytitle text",
    ".xtick text", ".ytick text"].join();
  const found = [];
  for (const plot of document.querySelectorAll(".js-plotly-plot")) {
    const room = plot.getBoundingClientRect();
    if (!room.width) continue;
    const texts = [...plot.querySelectorAll(names)]
      .map((each) => ({ said: each.textContent, box: each.getBoundingClientRect() }))
      .filter(({ said, box }) => said.trim() && box.width);
    texts.forEach(({ said, box }, at) => {
      if (box.left < room.left - 1 || box.right > room.right + 1
          || box.top < room.top - 1 || box.bottom > room.bottom + 1)
        found.push(`${plot.id}: cut: ${said}`);
      for (const other of texts.slice(0, at)) {
        const [one, two] = [box, other.box];
        if (Math.min(one.right, two.right) - Math.max(one.left, two.left) > 2
            && Math.min(one.bottom, two.bottom) - Math.max(one.top, two.top) > 4)
          found.push(`${plot.id}: ${said} over ${other.said}`);
      }
    });
  }
  return found;
}
