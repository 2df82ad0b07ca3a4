// What the pages do by themselves: a conversion's progress as it happens, lists that stay fresh, and a source's layout.
// Everything else works without this file.
"use strict";

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
const page = () => document.getElementById("page");

function size(bytes) {
  if (bytes === null || bytes === undefined) return "–";
  let value = bytes, unit = 0;
  while (value >= 999.5 && unit < UNITS.length - 1) { value /= 1024; unit += 1; }
  const digits = unit === 0 ? 0 : value < 9.995 ? 2 : value < 99.95 ? 1 : 0;
  return `${value.toFixed(digits)} ${UNITS[unit]}`;
}

function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  const whole = Math.round(seconds);
  if (whole < 60) return `${whole} s`;
  const [large, small, names] = whole < 3600
    ? [whole, 60, ["min", "s"]] : [Math.floor(whole / 60), 60, ["h", "min"]];
  return `${Math.floor(large / small)} ${names[0]} ${large % small} ${names[1]}`;
}

// As wording.ago_text says it.
function ago(at) {
  const seconds = (Date.now() - at) / 1000, away = Math.abs(seconds);
  if (away < 60) return "just now";
  if (away >= 30 * 86400) return at.toISOString().slice(0, 10);
  const [unit, name] = away >= 86400 ? [86400, "day"] : away >= 3600 ? [3600, "hour"] : [60, "minute"];
  const count = Math.floor(away / unit), text = `${count} ${name}${count > 1 ? "s" : ""}`;
  return seconds > 0 ? `${text} ago` : `in ${text}`;
}

function tellAges() {
  for (const place of document.querySelectorAll("time.ago")) {
    const text = ago(new Date(place.dateTime));
    if (place.textContent !== text) place.textContent = text;
  }
}

function put(name, text) {
  const place = document.querySelector(`[data-live="${name}"]`);
  if (place !== null && place.textContent !== text) place.textContent = text;
}

// Said aloud at most once a second, and the newest text only.
const say = (() => {
  let waiting = null, timer = null, last = 0;
  return (text) => {
    waiting = text;
    if (timer !== null) return;
    timer = setTimeout(() => {
      timer = null;
      last = performance.now();
      document.getElementById("status").textContent = waiting;
    }, Math.max(0, 1000 - (performance.now() - last)));
  };
})();

function show(conversion) {
  const at = conversion.progress;
  const state = document.querySelector(".head .state");
  state.className = `state ${conversion.state}`;
  state.textContent = conversion.state;
  put("attempts", String(conversion.attempts));
  draw();
  const bar = document.querySelector("[data-live=bar]");
  document.querySelector("[data-live=waiting]").hidden = conversion.state !== "queued";
  bar.hidden = conversion.state === "queued";
  document.querySelector("[data-live=facts]").hidden = at === null;
  const known = at !== null && at.total_bytes > 0;
  const percent = known ? `${Math.floor((100 * at.moved_bytes) / at.total_bytes)} %` : at === null ? "planning" : at.stage;
  if (known) bar.querySelector("progress").value = parseInt(percent, 10);
  else bar.querySelector("progress").removeAttribute("value");
  put("percent", percent);
  if (conversion.state !== "queued") say(`${conversion.state}, ${percent}`);
  if (at === null) return;
  put("stage", at.stage);
  put("moved", `${size(at.moved_bytes)} of ${size(at.total_bytes)}`);
  put("tasks", `${at.tasks_done} of ${at.tasks}`);
  const counts = Object.entries(conversion.part_counts ?? {}).sort();
  if (counts.length) put("parts", counts.map(([state, many]) => `${many} ${state}`).join(", "));
  put("rate", at.bytes_per_second ? `${size(at.bytes_per_second)}/s` : "–");
  put("left", duration(at.seconds_left));
  put("tensor", at.tensor || "–");
}

// The pictures are drawn by the server: asked for at most once in two seconds, and not while nobody looks.
const draw = (() => {
  let timer = null, last = -Infinity;
  return () => {
    if (timer !== null) return;
    timer = setTimeout(() => {
      timer = null;
      if (document.hidden) { document.addEventListener("visibilitychange", draw, { once: true }); return; }
      last = performance.now();
      refresh("pictures").catch(() => {});
    }, Math.max(0, 2000 - (performance.now() - last)));
  };
})();

// The page as it is now, or the part of it with this id, in the place of what is shown.
async function refresh(id = "page") {
  const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
  if (answer.redirected || !answer.ok) { location.reload(); return; }
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
  const now = document.getElementById(id), next = fresh.getElementById(id);
  if (now === null || next === null || next.innerHTML === now.innerHTML) return;
  const at = now.contains(document.activeElement) ? named(document.activeElement) : null;
  const chosen = new Set([...now.querySelectorAll("input:checked")].map((box) => box.value));
  const opened = [...now.querySelectorAll("details")].map((each) => each.open);
  document.title = fresh.title;
  now.replaceWith(next);
  next.querySelectorAll("input[type=checkbox]").forEach((box) => { box.checked = chosen.has(box.value); });
  next.querySelectorAll("details").forEach((each, i) => { each.open = opened[i] ?? each.open; });
  if (at === null) return;
  const found = [...next.querySelectorAll("a, button, input, summary")].find((each) => named(each) === at);
  (found || document.getElementById("main")).focus();
}

// What tells a link, a button or a box on the page from the others, also when the page is made anew.
function named(element) {
  const href = element.getAttribute("href");
  return [element.tagName, href, element.value, href === null ? element.textContent : ""].join(" ");
}

function watch(url) {
  const events = new EventSource(url);
  events.addEventListener("conversion", (event) => show(JSON.parse(event.data)));
  // Refused for now, or for good: load the page again, and watch again if the conversion continues.
  events.addEventListener("error", () => {
    if (events.readyState === EventSource.CLOSED) setTimeout(() => again(url), 5000);
  });
  events.addEventListener("end", async (event) => {
    events.close();
    await refresh();
    say(`The conversion has ${JSON.parse(event.data).state === "cancelled" ? "been " : ""}${JSON.parse(event.data).state}.`);
  });
}

async function again(url) {
  await refresh().catch(() => {});
  if (page().dataset.events) watch(url);
}

function keepFresh(seconds) {
  setInterval(() => {
    if (!document.hidden && page().dataset.refresh) refresh().catch(() => {});
  }, 1000 * seconds);
}

// The layout's text follows the source and the mesh until somebody changes it.
function fillLayouts(form) {
  const text = form.elements.layout_text, starter = form.elements.starter;
  let latest = 0;
  const filled = async () => {
    const same = (value) => value.trim().replaceAll("\r\n", "\n");
    if (same(text.value) !== same(starter.value)) return;
    const number = (latest += 1), query = new URLSearchParams();
    for (const name of ["source", "mesh"]) query.set(name, form.elements[name].value);
    const answer = await fetch(`${form.action}?${query}`, { headers: { Accept: "text/html" } });
    if (answer.redirected || !answer.ok || number !== latest) return;
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html").getElementById("form");
    if (fresh === null || number !== latest || same(text.value) !== same(starter.value)) return;
    text.value = fresh.elements.layout_text.value;
    starter.value = fresh.elements.starter.value;
  };
  for (const name of ["source", "mesh"]) {
    form.elements[name].addEventListener("change", () => filled().catch(() => {}));
  }
}

const form = document.getElementById("form");
if (form !== null && form.elements.starter) fillLayouts(form);

setInterval(tellAges, 30000);

if (page() !== null) {
  if (page().dataset.events) watch(page().dataset.events);
  if (page().dataset.refresh) keepFresh(Number(page().dataset.refresh));
}
