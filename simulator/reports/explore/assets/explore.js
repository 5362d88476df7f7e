/* The browser's half: at most one request is under way, and the newest one is sent next. */
(() => {
  const REST = 250; // ms without a move: the slider rests
  const AGAIN = 250; // ms until the page asks for more runs
  const PLOT = { displayModeBar: false, responsive: true };
  const DARK = window.matchMedia("(prefers-color-scheme: dark)");
  const LOST = 15000; // ms after which a request is given up
  const page = { state: {}, at: {}, controls: [], busy: 0, wanted: null, id: 0, shown: "", redraws: 0 };
  window.paceline = page;
  let resting = 0;
  let again = 0;

  const set = (id, props) => window.dash_clientside.set_props(id, props);
  const control = (name) => page.controls.find((each) => each.name === name);
  const query = (state) => {
    const found = new URLSearchParams();
    page.controls.forEach(({ name }) => name in state && found.set(name, state[name]));
    return found.size ? `?${found}` : "";
  };

  function ask(phase, search) {
    clearTimeout(again);
    page.wanted = { phase, search };
    pump();
  }

  function pump() {
    if (!page.wanted || (page.busy && Date.now() - page.busy < LOST)) return;
    const { phase, search } = page.wanted;
    page.wanted = null;
    page.busy = Date.now();
    page.id += 1;
    set("ask", { data: { id: page.id, phase, search } });
  }

  function tell(name) { // for screen readers
    const thumb = document.querySelector(`#track-${name} [role=slider]`);
    const box = thumb && thumb.closest(".control");
    if (!thumb) return;
    thumb.setAttribute("aria-label", box.dataset.label);
    thumb.setAttribute("aria-valuetext", page.state[name] ?? control(name).own);
    box.classList.toggle("changed", name in page.state);
  }

  function retell() {
    page.controls.forEach(({ name }) => tell(name));
  }

  function show(state, at) {
    page.state = { ...state };
    page.controls.forEach(({ name, own }) => {
      page.at[name] = at[name];
      set(`slider-${name}`, { value: at[name] });
      set(`box-${name}`, { value: state[name] ?? own });
      tell(name);
    });
  }

  function remember() {
    const search = query(page.state);
    if (search !== location.search) history.pushState(null, "", location.pathname + search);
  }

  function rest() {
    resting = 0;
    remember();
    ask("rest", query(page.state));
  }

  function moved(...values) {
    const context = window.dash_clientside.callback_context;
    const none = window.dash_clientside.no_update;
    if (!page.controls.length) { // the first call: take the state from the address
      page.controls = values[values.length - 1] || [];
      page.controls.forEach(({ name, at }) => { page.at[name] = at; });
      retell();
      // a slider that moved may have a new thumb, at a time of React's own
      new MutationObserver(retell).observe(document.querySelector(".controls"), { childList: true, subtree: true });
      ask("url", location.search);
      return none;
    }
    // Dash may report several at once: boxes come first, for an earlier move has written them
    const told = context.triggered.map(({ prop_id: property, value }) =>
      [property.slice(0, property.lastIndexOf(".")), value]);
    told.sort(([one], [other]) => (one < other ? -1 : 1));
    told.forEach(([id, value]) => changed(id, value));
    return none;
  }

  function changed(id, value) {
    const [kind, ...rests] = id.split("-");
    const name = rests.join("-");
    if (id === "reset") {
      show({}, Object.fromEntries(page.controls.map((each) => [each.name, each.at])));
      rest();
    } else if (kind === "reset") {
      const state = { ...page.state };
      delete state[name];
      show(state, { ...page.at, [name]: control(name).at });
      rest();
    } else if (kind === "box") {
      const text = (value ?? "").trim();
      if (text !== (page.state[name] ?? control(name).own)) {
        ask("box", query({ ...page.state, [name]: text }));
      }
    } else if (kind === "slider" && value !== page.at[name]) {
      const { texts, own } = control(name);
      page.at[name] = value;
      if (texts[value] === own) delete page.state[name];
      else page.state[name] = texts[value];
      set(`box-${name}`, { value: texts[value] });
      tell(name);
      ask("drag", query(page.state));
      clearTimeout(resting);
      resting = setTimeout(rest, REST);
    }
  }

  function answered(answer) {
    if (!answer) return window.dash_clientside.no_update;
    page.shown = answer.shown;
    const settled = !page.wanted;
    if (settled && (answer.phase === "url" || answer.phase === "box")) {
      show(answer.state, answer.at);
      if (answer.phase === "box") remember();
    }
    if (settled && answer.more && answer.phase !== "drag") look();
    draw(answer.figures).then(free, free);
    return window.dash_clientside.no_update;
  }

  function free() { // the answer is on the screen: the next request may be sent
    page.redraws += 1;
    page.busy = 0;
    pump();
  }

  async function draw(figures) {
    page.figures = figures;
    while (!window.Plotly) await new Promise((done) => { setTimeout(done, 20); });
    const look = { dark: DARK.matches, narrow: window.innerWidth < 640 };
    await Promise.all(Object.entries(figures).map(([id, numbers]) => {
      const { data, layout } = window.pacelineFigures[id](numbers, look);
      return window.Plotly.react(id, data, layout, PLOT);
    }));
  }

  function look() { // ask in the background whether there are more runs
    again = setTimeout(() => {
      set("poll", { data: { id: (page.id += 1), search: query(page.state), seen: page.shown } });
    }, AGAIN);
  }

  function news(found) {
    if (!found || found.id !== page.id || resting || page.wanted || page.busy) {
      if (found && found.id === page.id && page.busy) look();
    } else if (found.new) ask("more", query(page.state));
    else look();
    return window.dash_clientside.no_update;
  }

  window.addEventListener("popstate", () => ask("url", location.search));
  DARK.addEventListener("change", () => page.figures && draw(page.figures));
  window.dash_clientside = Object.assign({}, window.dash_clientside, {
    paceline: { moved, answered, news },
  });
})();
