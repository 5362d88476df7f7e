/* The browser's half of `paceline explore`: draws answers, and names sliders for screen readers. */
(() => {
  const paceline = { redraws: 0 };
  window.paceline = paceline;

  function tell() { // a slider that moved may have a new thumb
    for (const box of document.querySelectorAll(".control")) {
      const thumb = box.querySelector("[role=slider]");
      const text = box.querySelector("input")?.value ?? "";
      if (thumb && thumb.getAttribute("aria-label") !== box.dataset.label) thumb.setAttribute("aria-label", box.dataset.label);
      if (thumb && thumb.getAttribute("aria-valuetext") !== text) thumb.setAttribute("aria-valuetext", text);
      box.classList.toggle("changed", text !== box.dataset.own);
    }
  }

  function answered(answer) {
    const { no_update: none, set_props: set } = window.dash_clientside;
    tell();
    if (!paceline.watched) {
      paceline.watched = new MutationObserver(tell);
      paceline.watched.observe(document.querySelector(".controls"), { childList: true, subtree: true });
    }
    if (!answer) return none;
    const again = () => {
      paceline.redraws += 1;
      if (answer.more) set("more", { data: { id: paceline.redraws } });
    };
    window.pacelineFigures(answer.figures).then(again, again);
    return none;
  }

  function computing() {
    window.dash_clientside.set_props("shown", { children: "Computing …" });
    return window.dash_clientside.no_update;
  }

  window.dash_clientside = Object.assign({}, window.dash_clientside, { paceline: { answered, computing } });
})();
