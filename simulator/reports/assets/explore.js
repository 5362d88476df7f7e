/* The browser's half of `paceline explore`: draws answers, and names sliders for screen readers. */
(() => {
  let watched = null;

  function tell() { // a slider that moved may have a new thumb
    for (const box of document.querySelectorAll(".control")) {
      const thumb = box.querySelector("[role=slider]");
      const text = box.querySelector("output").innerText;
      if (thumb && thumb.getAttribute("aria-label") !== box.dataset.label) thumb.setAttribute("aria-label", box.dataset.label);
      if (thumb && thumb.getAttribute("aria-valuetext") !== text) thumb.setAttribute("aria-valuetext", text);
      box.classList.toggle("changed", text !== box.dataset.own);
    }
  }

  function answered(figures) {
    tell();
    if (!watched) {
      watched = new MutationObserver(tell);
      watched.observe(document.querySelector(".controls"), { childList: true, subtree: true });
    }
    if (figures) window.pacelineFigures(figures);
    return window.dash_clientside.no_update;
  }

  function computing(state) {
    if (state) window.dash_clientside.set_props("shown", { children: "Computing …" });
    return window.dash_clientside.no_update;
  }

  window.dash_clientside = Object.assign({}, window.dash_clientside, { paceline: { answered, computing } });
})();
