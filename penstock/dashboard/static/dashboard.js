// Live updates, selection, keyboard shortcuts, filter suggestions and charts. Every page also works without scripts.
"use strict";
(() => {
  const root = document.documentElement;
  root.classList.add("scripted");
  const find = (query, from = document) => from.querySelector(query);
  const all = (query, from = document) => [...from.querySelectorAll(query)];

  // Live updates: when the server says so, the page is fetched again, and only the differences are applied.
  Idiomorph.defaults.ignoreActiveValue = true;
  Idiomorph.defaults.callbacks.beforeAttributeUpdated = (name, node) => !(name === "open" && node.tagName === "DETAILS");
  const isKept = (node) => Boolean(node && node.dataset && "keep" in node.dataset);
  Idiomorph.defaults.callbacks.beforeNodeRemoved = (old) => !isKept(old);
  Idiomorph.defaults.callbacks.beforeNodeMorphed = (old) => !isKept(old);

  let stream = null;
  let timer = null;
  let isRefreshPending = false;

  const isSelecting = () => all("[data-selection] input[type=checkbox]:checked").length > 0;
  const isBusy = () => isSelecting() || find("dialog[open]") !== null || find(".suggestions") !== null
    || (document.activeElement && document.activeElement.matches("main input:not([type=checkbox]), main textarea, main select"));

  function showLiveState(state) {
    const indicator = find("#live");
    if (!indicator) return;
    indicator.dataset.state = state;
    find(".word", indicator).textContent = { live: "Live", paused: "Updates paused", disconnected: "Disconnected" }[state];
  }

  function refresh() {
    if (document.hidden || isBusy()) {
      isRefreshPending = true;
      if (isBusy()) showLiveState("paused");
      return;
    }
    isRefreshPending = false;
    if (stream) showLiveState("live");
    htmx.trigger("#main", "refresh");
  }

  function connect() {
    const main = find("#main");
    if (stream) { stream.close(); stream = null; }
    clearInterval(timer);
    if (document.hidden) return; // browsers allow few connections, so hidden tabs hold none
    if (main.dataset.live) {
      stream = new EventSource(main.dataset.live);
      let wasLost = false;
      stream.onopen = () => { showLiveState(isBusy() ? "paused" : "live"); if (wasLost) refresh(); wasLost = false; };
      stream.onerror = () => { wasLost = true; showLiveState("disconnected"); };
      stream.addEventListener("changed", refresh);
    } else if (main.dataset.poll) {
      timer = setInterval(refresh, Number(main.dataset.poll));
      showLiveState("live");
    } else {
      showLiveState("disconnected");
      const indicator = find("#live");
      if (indicator) indicator.hidden = true;
    }
  }

  document.addEventListener("visibilitychange", () => { connect(); if (!document.hidden) refresh(); });
  document.addEventListener("htmx:afterSettle", (event) => {
    if (event.target.id !== "main") return;
    const main = find("#main");
    if (!main.dataset.poll && timer) { clearInterval(timer); timer = null; }
    if (!main.dataset.live && stream) { stream.close(); stream = null; const indicator = find("#live"); if (indicator) indicator.hidden = true; }
    drawCharts();
    updateSelection();
    toEnd();
  });
  const resume = () => { if (isRefreshPending && !isBusy()) refresh(); else if (!isBusy() && stream) showLiveState("live"); };
  document.addEventListener("focusout", () => setTimeout(resume, 50));

  // The stream of a running task: chunks are appended to those that the page shows.
  let followed = null;
  const shown = (part) => (typeof part === "string" ? part : `\n${JSON.stringify(part, null, 2)}\n`);
  function followTask() {
    const box = find("[data-stream]");
    if (followed && (followed.box !== box || document.hidden)) { followed.source.close(); followed = null; }
    if (!box || followed || document.hidden) return;
    const source = new EventSource(`${box.dataset.stream}?after=${encodeURIComponent(box.dataset.after)}`);
    followed = { box, source };
    source.addEventListener("chunk", (event) => {
      const chunk = JSON.parse(event.data);
      if (box.dataset.lease !== String(chunk.lease)) box.textContent = ""; // a retry begins a new stream
      box.dataset.lease = chunk.lease;
      box.dataset.after = event.lastEventId;
      box.append(chunk.parts.map(shown).join(""));
      box.closest("section").hidden = false;
    });
    source.addEventListener("end", () => { source.close(); delete box.dataset.stream; followed = null; });
  }
  document.addEventListener("visibilitychange", followTask);
  document.addEventListener("htmx:afterSettle", followTask);
  followTask();

  // Selection of rows
  function updateSelection() {
    const form = find("[data-selection]");
    if (!form) return;
    const selected = all("input[name=id]:checked", form).length;
    const every = find("input[name=every]", form);
    const bar = find("[data-bar]", form);
    if (!bar) return;
    find("[data-count]", bar).textContent = every.checked ? "" : selected ? `${selected} selected` : "";
    bar.classList.toggle("is-on", selected > 0 || every.checked);
    const top = find("[data-all]", form);
    const boxes = all("input[name=id]", form);
    top.checked = boxes.length > 0 && selected === boxes.length;
    top.indeterminate = selected > 0 && selected < boxes.length;
    if (selected || every.checked) showLiveState("paused"); else resume();
  }
  document.addEventListener("change", (event) => {
    const box = event.target;
    if (box.matches("[data-all]")) all("input[name=id]", box.form).forEach((each) => { each.checked = box.checked; });
    if (box.matches("[data-selection] input")) updateSelection();
    if (box.matches("[data-submit]")) box.form.requestSubmit();
    if (box.matches("[data-into]") && box.files.length) readFile(box, box.files[0]);
  });

  // The chosen file is submitted with the form: as text that can be edited, or in base64 if it is not UTF-8 (XLSX).
  async function readFile(box, file) {
    const bytes = new Uint8Array(await file.arrayBuffer());
    let text = null;
    try { text = new TextDecoder("utf-8", { fatal: true }).decode(bytes); } catch { /* not UTF-8 */ }
    if (text !== null && text.includes("\0")) text = null;
    let content = "";
    if (text === null) for (let at = 0; at < bytes.length; at += 0x8000) content += String.fromCharCode(...bytes.subarray(at, at + 0x8000));
    const rows = find(`#${box.dataset.into}`);
    rows.value = text ?? "";
    find("textarea[name=content]", box.form).value = btoa(content);
    find("[data-chosen]", box.form).textContent = text === null ? file.name : "";
    find("input[name=name]", box.form).value = file.name;
  }

  // Keyboard shortcuts. "l" still opens the providers, whose page was called "Lanes".
  let isGoPending = false;
  const targets = { o: "/", j: "/jobs", b: "/bulks", d: "/dead-letters", p: "/providers", l: "/providers", w: "/workers", u: "/usage", a: "/audit", s: "/settings" };
  function focusRow(step) {
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
      // The browser would clear the box.
      event.preventDefault();
      if (find(".suggestions")) closeSuggestions(); else target.blur();
      return;
    }
    if (target.matches("input:not([type=checkbox]), textarea, select") || find("dialog[open]")) return;
    if (isGoPending) {
      isGoPending = false;
      const link = targets[event.key] && all(".side a").find((each) => each.pathname.endsWith(targets[event.key]));
      if (link) { event.preventDefault(); link.click(); }
      return;
    }
    const row = target.closest && target.closest("[data-row]");
    if (event.key === "/") { const box = find("#filter"); if (box) { event.preventDefault(); box.focus(); box.select(); } }
    else if (event.key === "j") { event.preventDefault(); focusRow(1); }
    else if (event.key === "k") { event.preventDefault(); focusRow(-1); }
    else if (event.key === "x" && row) { const box = find("input[type=checkbox]", row); if (box) { event.preventDefault(); box.checked = !box.checked; box.dispatchEvent(new Event("change", { bubbles: true })); } }
    else if (event.key === "g") { isGoPending = true; setTimeout(() => { isGoPending = false; }, 1200); }
    else if (event.key === "?") { event.preventDefault(); find("#shortcuts").showModal(); }
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
      // Without https there is no clipboard: select the text so that it can be copied manually.
      getSelection().selectAllChildren(button.previousElementSibling);
      return;
    }
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  }

  // The filter box suggests fields and values.
  const fieldValues = {
    status: ["queued", "running", "paused", "completed", "failed", "canceled"],
    reason: ["attempts", "time", "permanent", "worker_deaths"],
    age: ["<1h", "<1d", ">1h", "<7d"],
  };
  function suggestionsFor(box) {
    const term = box.value.slice(0, box.selectionStart).match(/(^|\s)(-?)([a-z_][a-z0-9_.]*|)(:?)([^\s]*)$/i);
    if (!term) return [];
    const [, , minus, field, colon, value] = term;
    if (!colon) return box.dataset.fields.split(" ").filter((each) => each.startsWith(field)).map((each) => `${minus}${each}${each === "params" ? "." : ":"}`);
    return (fieldValues[field] || []).filter((each) => each.startsWith(value) && each !== value).map((each) => `${minus}${field}:${each}`);
  }
  function closeSuggestions() { const list = find(".suggestions"); if (list) list.remove(); const box = find("#filter"); if (box) box.removeAttribute("aria-activedescendant"); }
  function showSuggestions(box) {
    closeSuggestions();
    const found = suggestionsFor(box);
    if (!found.length) return;
    const list = document.createElement("ul");
    list.className = "suggestions";
    list.id = "suggestions";
    list.setAttribute("role", "listbox");
    list.setAttribute("aria-label", "Suggestions");
    found.forEach((text, index) => {
      const line = document.createElement("li");
      line.setAttribute("role", "option");
      line.id = `suggestion-${index}`;
      line.textContent = text;
      line.addEventListener("pointerdown", (event) => { event.preventDefault(); insertSuggestion(box, text); });
      list.append(line);
    });
    box.form.append(list);
  }
  function insertSuggestion(box, text) {
    const end = box.selectionStart;
    const head = box.value.slice(0, end).replace(/[^\s]*$/, text);
    box.value = head + box.value.slice(end);
    box.setSelectionRange(head.length, head.length);
    showSuggestions(box);
  }
  document.addEventListener("input", (event) => { if (event.target.id === "filter") showSuggestions(event.target); });
  document.addEventListener("focusin", (event) => { if (event.target.id === "filter") showSuggestions(event.target); });
  document.addEventListener("focusout", (event) => { if (event.target.id === "filter") closeSuggestions(); });
  document.addEventListener("keydown", (event) => {
    const box = event.target;
    if (box.id !== "filter") return;
    const lines = all(".suggestions li");
    const now = lines.findIndex((line) => line.getAttribute("aria-selected") === "true");
    if ((event.key === "ArrowDown" || event.key === "ArrowUp") && lines.length) {
      event.preventDefault();
      const next = (now + (event.key === "ArrowDown" ? 1 : -1) + lines.length) % lines.length;
      lines.forEach((line, index) => line.setAttribute("aria-selected", String(index === next)));
      box.setAttribute("aria-activedescendant", lines[next].id);
    } else if ((event.key === "Enter" || event.key === "Tab") && now >= 0) {
      event.preventDefault();
      insertSuggestion(box, lines[now].textContent);
    }
  });

  // Charts are drawn from the table in each figure.
  const charts = new Map();
  const color = (name) => getComputedStyle(root).getPropertyValue(`--${name}`).trim();
  function readNumbers(figure) {
    // The legend is a table as well, hence "details".
    const rows = all("details tbody tr", figure);
    const xs = rows.map((row) => Number(find("th", row).dataset.x));
    const width = all("details thead th", figure).length - 1;
    const ys = Array.from({ length: width }, (_, n) => rows.map((row) => {
      const cell = all("td", row)[n];
      return !cell || cell.dataset.y === undefined ? null : Number(cell.dataset.y);
    }));
    return [xs, ...ys];
  }
  // Stacked series: each contains the sum of the series before it, and is drawn behind them.
  function stacked(data) {
    const sums = data[0].map(() => 0);
    return [data[0], ...data.slice(1).map((series) => series.map((value, index) => { sums[index] += value || 0; return sums[index]; }))];
  }
  // Seconds read best in the unit that fits them; other numbers get a k or an M.
  // Steps of a time axis: 2 min or 5 min, not 200 s.
  const SECONDS = [...[-5, -4, -3, -2, -1].flatMap((power) => [1, 2, 5].map((number) => Number(`${number}e${power}`))),
    1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 18000, 36000, 86400, 172800, 432000, 864000, 1728000, 4320000, 8640000];
  function withUnit(value, unit) {
    const short = (number) => Number(number.toPrecision(3)).toLocaleString("en", { maximumFractionDigits: 8 });
    if (unit === "s") {
      if (value === 0) return "0";
      const [size, name] = value < 1 ? [0.001, "ms"] : value < 120 ? [1, "s"] : value < 7200 ? [60, "min"] : [3600, "h"];
      return `${short(value / size)} ${name}`;
    }
    const number = value >= 1e6 ? `${short(value / 1e6)}M` : value >= 1e4 ? `${short(value / 1e3)}k` : short(value);
    return unit ? `${number} ${unit}` : number;
  }
  function drawCharts() {
    all("figure.chart").forEach((figure) => {
      const canvas = find(".canvas", figure);
      const raw = readNumbers(figure);
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
      const shown = (n) => (plot, value, series, index) => {
        const number = index === null || index === undefined ? null : entry.raw[n][index];
        return number === null || number === undefined ? "–" : withUnit(number, figure.dataset.unit);
      };
      const bars = isStack && uPlot.paths.bars({ size: [0.75, 40] });
      entry.plot = new uPlot({
        width: canvas.clientWidth || 300,
        height: 150,
        padding: [8, 18, 0, 0],
        cursor: { y: false, points: { size: 6 } },
        tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1e3), "UTC"),
        scales: { x: { range: (plot, low, high) => { const half = isStack && raw[0].length > 1 ? (raw[0][1] - raw[0][0]) / 2 : 0; return [low - half, high + half]; } }, y: { range: (plot, low, high) => [0, high > 0 ? Math.max(high * 1.08, figure.dataset.unit ? 0 : 4) : 1] } },
        axes: [
          { stroke: () => color("faint"), grid: { show: false }, ticks: { show: false }, font: "11px system-ui", size: 24, space: 60, values: isDays ? "{MM}-{DD}" : "{HH}:{mm}" },
          { stroke: () => color("faint"), grid: { stroke: () => color("line"), width: 1 }, ticks: { show: false }, font: "11px system-ui", size: 56, space: 32,
            ...(figure.dataset.unit === "s" ? { incrs: SECONDS } : {}), values: (plot, values) => values.map((value) => withUnit(value, figure.dataset.unit === "s" ? "s" : "")) },
        ],
        // The values of the legend show only while the pointer is on the chart.
        hooks: { setLegend: [(plot) => plot.root.classList.toggle("is-hovered", plot.cursor.idx !== null && plot.cursor.idx !== undefined && plot.cursor.left >= 0)] },
        series: [{ label: "UTC", value: isDays ? "{YYYY}-{MM}-{DD}" : "{HH}:{mm}" }, ...order.map((n) => ({
          label: titles[n - 1], value: shown(n), points: { show: !isStack && raw[n].filter((value) => value !== null).length < 20, size: 4 },
          stroke: () => color(tones[(n - 1) % tones.length]), width: isStack ? 0 : 1.5, spanGaps: false,
          fill: isStack ? () => color(tones[(n - 1) % tones.length]) : undefined, paths: bars || undefined }))],
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

  // A log stays at its end while lines arrive, unless the reader scrolled up.
  let isAtEnd = true;
  const toEnd = () => { const log = find("#log"); if (log && isAtEnd) log.scrollTop = log.scrollHeight; };
  document.addEventListener("scroll", (event) => {
    if (event.target.id === "log") isAtEnd = event.target.scrollHeight - event.target.scrollTop - event.target.clientHeight < 40;
  }, true);

  // Filters that this browser saved, per page. They are shown as text, never as markup.
  const savedKey = `penstock-filters:${location.pathname}`;
  function readSaved() {
    try {
      const found = JSON.parse(localStorage.getItem(savedKey) || "[]");
      return Array.isArray(found) ? found.filter((each) => typeof each === "string").slice(0, 20) : [];
    } catch { return []; }
  }
  function writeSaved(filters) {
    try { localStorage.setItem(savedKey, JSON.stringify(filters.slice(0, 20))); } catch { /* no storage in this browser */ }
    showSaved();
  }
  function showSaved() {
    const bar = find("#saved");
    const box = find("#filter");
    if (!bar || !box) return;
    const filters = readSaved();
    const applied = box.defaultValue.trim();
    const make = (name, text, action) => {
      const made = Object.assign(document.createElement("button"), { type: "button", className: "quiet", textContent: text });
      made.setAttribute("aria-label", name);
      made.addEventListener("click", action);
      return made;
    };
    bar.replaceChildren();
    filters.forEach((text) => {
      const link = document.createElement("a");
      link.href = `${location.pathname}?filter=${encodeURIComponent(text)}`;
      link.textContent = text;
      bar.append(link, make(`Remove the saved filter ${text}`, "×", () => writeSaved(filters.filter((each) => each !== text))));
    });
    if (applied && !filters.includes(applied)) bar.append(make("Save filter in this browser", "Save filter", () => writeSaved([...filters, applied])));
  }

  drawCharts();
  updateSelection();
  showSaved();
  toEnd();
  connect();
})();
