// What the pages do beyond what a browser does by itself. Without it everything can still be read and done.
"use strict";
(() => {
  const root = document.documentElement;
  root.classList.add("scripted");
  const find = (query, from = document) => from.querySelector(query);
  const all = (query, from = document) => [...from.querySelectorAll(query)];

  // Looking again: the server says when, the page is fetched whole, and only what differs is changed.
  Idiomorph.defaults.ignoreActiveValue = true;
  Idiomorph.defaults.callbacks.beforeAttributeUpdated = (name, node) => !(name === "open" && node.tagName === "DETAILS");
  const isKept = (node) => Boolean(node && node.dataset && "keep" in node.dataset);
  Idiomorph.defaults.callbacks.beforeNodeRemoved = (old) => !isKept(old);
  Idiomorph.defaults.callbacks.beforeNodeMorphed = (old) => !isKept(old);

  let stream = null;
  let timer = null;
  let isWaiting = false;

  const isSelecting = () => all("[data-selection] input[type=checkbox]:checked").length > 0;
  const isBusy = () => isSelecting() || find("dialog[open]") !== null || find(".suggestions") !== null
    || (document.activeElement && document.activeElement.matches("main input:not([type=checkbox]), main textarea, main select"));

  function show(state) {
    const mark = find("#live");
    if (!mark) return;
    mark.dataset.state = state;
    find(".word", mark).textContent = { live: "Live", paused: "Updates paused", still: "Not connected" }[state];
  }

  function look() {
    if (document.hidden || isBusy()) {
      isWaiting = true;
      if (isBusy()) show("paused");
      return;
    }
    isWaiting = false;
    if (stream) show("live");
    htmx.trigger("#main", "look");
  }

  function follow() {
    const main = find("#main");
    if (stream) { stream.close(); stream = null; }
    clearInterval(timer);
    if (document.hidden) return; // a browser has few connections; a page that nobody sees needs none
    if (main.dataset.live) {
      stream = new EventSource(main.dataset.live);
      let wasLost = false;
      stream.onopen = () => { show(isBusy() ? "paused" : "live"); if (wasLost) look(); wasLost = false; };
      stream.onerror = () => { wasLost = true; show("still"); };
      stream.addEventListener("changed", look);
    } else if (main.dataset.poll) {
      timer = setInterval(look, Number(main.dataset.poll));
      show("live");
    } else {
      show("still");
      const mark = find("#live");
      if (mark) mark.hidden = true;
    }
  }

  document.addEventListener("visibilitychange", () => { follow(); if (!document.hidden) look(); });
  document.addEventListener("htmx:afterSettle", (event) => {
    if (event.target.id !== "main") return;
    const main = find("#main");
    if (!main.dataset.poll && timer) { clearInterval(timer); timer = null; }
    if (!main.dataset.live && stream) { stream.close(); stream = null; const mark = find("#live"); if (mark) mark.hidden = true; }
    draw();
    count();
  });
  const resume = () => { if (isWaiting && !isBusy()) look(); else if (!isBusy() && stream) show("live"); };
  document.addEventListener("focusout", () => setTimeout(resume, 50));

  // Selecting
  function count() {
    const form = find("[data-selection]");
    if (!form) return;
    const picked = all("input[name=id]:checked", form).length;
    const every = find("input[name=every]", form);
    const bar = find("[data-bar]", form);
    if (!bar) return;
    find("[data-count]", bar).textContent = every.checked ? "" : picked ? `${picked} selected` : "";
    bar.classList.toggle("is-on", picked > 0 || every.checked);
    const top = find("[data-all]", form);
    const boxes = all("input[name=id]", form);
    top.checked = boxes.length > 0 && picked === boxes.length;
    top.indeterminate = picked > 0 && picked < boxes.length;
    if (picked || every.checked) show("paused"); else resume();
  }
  document.addEventListener("change", (event) => {
    const box = event.target;
    if (box.matches("[data-all]")) all("input[name=id]", box.form).forEach((each) => { each.checked = box.checked; });
    if (box.matches("[data-selection] input")) count();
    if (box.matches("[data-submit]")) box.form.requestSubmit();
    // A file is read here and sent as text, with the rest of the form.
    if (box.matches("[data-into]") && box.files.length) {
      box.files[0].text().then((text) => { find(`#${box.dataset.into}`).value = text; });
      find("input[name=name]", box.form).value = box.files[0].name;
    }
  });

  // Keys
  let isGoing = false;
  const places = { o: "/", j: "/jobs", b: "/bulks", d: "/dead-letters", l: "/lanes", w: "/workers", u: "/usage", a: "/audit", s: "/settings" };
  function move(step) {
    const rows = all("[data-row]");
    if (!rows.length) return;
    const now = rows.findIndex((row) => row.contains(document.activeElement));
    const next = rows[Math.min(Math.max(now + step, 0), rows.length - 1)];
    const link = find("a", next);
    if (link) { link.focus(); next.scrollIntoView({ block: "nearest" }); }
  }
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const target = event.target;
    if (event.key === "Escape" && target.matches("input[type=search]")) {
      // A browser would empty the box.
      event.preventDefault();
      if (find(".suggestions")) close(); else target.blur();
      return;
    }
    if (target.matches("input:not([type=checkbox]), textarea, select") || find("dialog[open]")) return;
    if (isGoing) {
      isGoing = false;
      const link = places[event.key] && all(".side a").find((each) => each.pathname.endsWith(places[event.key]));
      if (link) { event.preventDefault(); link.click(); }
      return;
    }
    const row = target.closest && target.closest("[data-row]");
    if (event.key === "/") { const box = find("#filter"); if (box) { event.preventDefault(); box.focus(); box.select(); } }
    else if (event.key === "j") { event.preventDefault(); move(1); }
    else if (event.key === "k") { event.preventDefault(); move(-1); }
    else if (event.key === "x" && row) { const box = find("input[type=checkbox]", row); if (box) { event.preventDefault(); box.checked = !box.checked; box.dispatchEvent(new Event("change", { bubbles: true })); } }
    else if (event.key === "g") { isGoing = true; setTimeout(() => { isGoing = false; }, 1200); }
    else if (event.key === "?") { event.preventDefault(); find("#keys").showModal(); }
  });
  document.addEventListener("click", (event) => {
    const opener = event.target.closest("[data-open]");
    if (opener) find(`#${opener.dataset.open}`).showModal();
    const copier = event.target.closest("[data-copy]");
    if (copier) copy(copier);
  });
  async function copy(button) {
    try {
      await navigator.clipboard.writeText(button.dataset.copy);
    } catch {
      // Without https there is no clipboard; then the text is selected for copying by hand.
      getSelection().selectAllChildren(button.previousElementSibling);
      return;
    }
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  }

  // The filter box offers fields, and the words that a field may be.
  const words = {
    status: ["queued", "running", "paused", "completed", "failed", "canceled"],
    reason: ["attempts", "time", "permanent", "worker_deaths"],
    age: ["<1h", "<1d", ">1h", "<7d"],
  };
  function offers(box) {
    const term = box.value.slice(0, box.selectionStart).match(/(^|\s)(-?)([a-z_]*)(:?)([^\s]*)$/i);
    if (!term) return [];
    const [, , minus, field, colon, value] = term;
    if (!colon) return box.dataset.fields.split(" ").filter((each) => each.startsWith(field)).map((each) => `${minus}${each}:`);
    return (words[field] || []).filter((each) => each.startsWith(value) && each !== value).map((each) => `${minus}${field}:${each}`);
  }
  function close() { const list = find(".suggestions"); if (list) list.remove(); const box = find("#filter"); if (box) box.removeAttribute("aria-activedescendant"); }
  function suggest(box) {
    close();
    const found = offers(box);
    if (!found.length) return;
    const list = document.createElement("ul");
    list.className = "suggestions";
    list.id = "suggestions";
    list.setAttribute("role", "listbox");
    list.setAttribute("aria-label", "Suggestions");
    found.forEach((text, place) => {
      const line = document.createElement("li");
      line.setAttribute("role", "option");
      line.id = `suggestion-${place}`;
      line.textContent = text;
      line.addEventListener("pointerdown", (event) => { event.preventDefault(); take(box, text); });
      list.append(line);
    });
    box.form.append(list);
  }
  function take(box, text) {
    const end = box.selectionStart;
    const head = box.value.slice(0, end).replace(/[^\s]*$/, text);
    box.value = head + box.value.slice(end);
    box.setSelectionRange(head.length, head.length);
    suggest(box);
  }
  document.addEventListener("input", (event) => { if (event.target.id === "filter") suggest(event.target); });
  document.addEventListener("focusin", (event) => { if (event.target.id === "filter") suggest(event.target); });
  document.addEventListener("focusout", (event) => { if (event.target.id === "filter") close(); });
  document.addEventListener("keydown", (event) => {
    const box = event.target;
    if (box.id !== "filter") return;
    const lines = all(".suggestions li");
    const now = lines.findIndex((line) => line.getAttribute("aria-selected") === "true");
    if ((event.key === "ArrowDown" || event.key === "ArrowUp") && lines.length) {
      event.preventDefault();
      const next = (now + (event.key === "ArrowDown" ? 1 : -1) + lines.length) % lines.length;
      lines.forEach((line, place) => line.setAttribute("aria-selected", String(place === next)));
      box.setAttribute("aria-activedescendant", lines[next].id);
    } else if ((event.key === "Enter" || event.key === "Tab") && now >= 0) {
      event.preventDefault();
      take(box, lines[now].textContent);
    }
  });

  // Charts: the numbers are in the table beside each.
  const charts = new Map();
  const colour = (name) => getComputedStyle(root).getPropertyValue(`--${name}`).trim();
  function numbers(figure) {
    // Not those of the legend, which is a table as well.
    const rows = all("details tbody tr", figure);
    const xs = rows.map((row) => Number(find("th", row).dataset.x));
    const width = all("details thead th", figure).length - 1;
    const ys = Array.from({ length: width }, (_, n) => rows.map((row) => {
      const cell = all("td", row)[n];
      return !cell || cell.dataset.y === undefined ? null : Number(cell.dataset.y);
    }));
    return [xs, ...ys];
  }
  // Stacked: each series is drawn on top of those before it, the last one first.
  function stacked(data) {
    const sums = data[0].map(() => 0);
    return [data[0], ...data.slice(1).map((series) => series.map((value, place) => { sums[place] += value || 0; return sums[place]; }))];
  }
  function draw() {
    all("figure.chart").forEach((figure) => {
      const canvas = find(".canvas", figure);
      const raw = numbers(figure);
      const isStack = figure.dataset.kind === "stack" || figure.dataset.kind === "bars";
      const data = isStack ? stacked(raw) : raw;
      const order = isStack ? data.slice(1).map((_, n) => data.length - 1 - n) : data.slice(1).map((_, n) => n + 1);
      const drawn = [data[0], ...order.map((n) => data[n])];
      const known = charts.get(figure.id);
      if (known && known.canvas === canvas && known.width === drawn.length) { known.raw = raw; known.plot.setData(drawn); return; }
      if (known) known.plot.destroy();
      const tones = figure.dataset.tones.split(" ");
      const titles = all("details thead th", figure).slice(1).map((each) => each.textContent);
      const isDays = figure.dataset.kind === "bars";
      const entry = { canvas, raw, width: drawn.length };
      const shown = (n) => (plot, value, series, place) => {
        const number = place === null || place === undefined ? null : entry.raw[n][place];
        return number === null || number === undefined ? "–" : `${Number(number.toPrecision(3)).toLocaleString("en")} ${figure.dataset.unit}`;
      };
      const bars = isStack && uPlot.paths.bars({ size: [0.75, 40] });
      entry.plot = new uPlot({
        width: canvas.clientWidth || 300,
        height: 150,
        padding: [8, 8, 0, 0],
        cursor: { y: false, points: { size: 6 } },
        tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1e3), "UTC"),
        scales: { x: { range: (plot, low, high) => { const half = isStack && raw[0].length > 1 ? (raw[0][1] - raw[0][0]) / 2 : 0; return [low - half, high + half]; } }, y: { range: (plot, low, high) => [0, Math.max(high * 1.05, isStack ? 4 : 0.01)] } },
        axes: [
          { stroke: () => colour("faint"), grid: { show: false }, ticks: { show: false }, font: "11px system-ui", size: 24, space: 60, values: isDays ? "{MM}-{DD}" : "{HH}:{mm}" },
          { stroke: () => colour("faint"), grid: { stroke: () => colour("line"), width: 1 }, ticks: { show: false }, font: "11px system-ui", size: 44, space: 32,
            values: (plot, values) => values.map((value) => value >= 1e6 ? `${value / 1e6}M` : value >= 1e3 ? `${value / 1e3}k` : String(value)) },
        ],
        series: [{ label: "UTC", value: isDays ? "{YYYY}-{MM}-{DD}" : "{HH}:{mm}" }, ...order.map((n) => ({
          label: titles[n - 1], value: shown(n), points: { show: !isStack && raw[0].length < 3 },
          stroke: () => colour(tones[(n - 1) % tones.length]), width: isStack ? 0 : 1.5, spanGaps: false,
          fill: isStack ? () => colour(tones[(n - 1) % tones.length]) : undefined, paths: bars || undefined }))],
      }, drawn, canvas);
      charts.set(figure.id, entry);
    });
  }
  let resizing = null;
  addEventListener("resize", () => {
    clearTimeout(resizing);
    resizing = setTimeout(() => charts.forEach((entry) => entry.plot.setSize({ width: entry.canvas.clientWidth, height: 150 })), 150);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => charts.forEach((entry) => entry.plot.redraw()));

  draw();
  count();
  follow();
})();
