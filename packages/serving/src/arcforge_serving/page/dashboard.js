/** The dashboard: reads /metrics every two seconds and draws it. */
"use strict";
const EVERY = 2000, KEPT = 7200;  // milliseconds between looks, and seconds of them that are kept
const WHOLE = [...Array(12).keys()].flatMap((e) => [1, 2, 5].map((n) => n * 10 ** e));  // steps of an axis of counts
const RATES = 10;  // seconds that a rate is the mean of

// ---- Prometheus' text -----------------------------------------------------------------------------------------------

function parse(text) {
  const samples = [];
  for (const line of text.split("\n")) {
    const match = /^([A-Za-z_:][\w:]*)(?:\{(.*)\})? (\S+)/.exec(line);
    if (!match) continue;
    const labels = {};
    for (const [, name, value] of (match[2] || "").matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)) labels[name] = value;
    samples.push({ name: match[1], labels, value: Number(match[3]) });
  }
  return samples;
}

function total(samples, name) {
  return samples.filter((s) => s.name === name).reduce((sum, s) => sum + s.value, 0);
}

function rate(now, before, name) {
  return Math.max(0, total(now.samples, name) - total(before.samples, name)) / (now.at - before.at);
}

function share(now, before, part, whole) {
  const all = total(now.samples, whole) - total(before.samples, whole);
  return all > 0 ? (total(now.samples, part) - total(before.samples, part)) / all : NaN;
}

// What a share q of the observations since then was below, to the bounds of the buckets.
function quantile(now, before, name, q) {
  const since = (s) => s.value - total(before.samples.filter((b) => b.labels.le === s.labels.le), `${name}_bucket`);
  const buckets = now.samples.filter((s) => s.name === `${name}_bucket`)
    .map((s) => ({ bound: s.labels.le === "+Inf" ? Infinity : Number(s.labels.le), count: since(s) }))
    .sort((a, b) => a.bound - b.bound);
  const all = buckets.length ? buckets[buckets.length - 1].count : 0;
  const found = buckets.find((b) => all > 0 && b.count >= q * all);
  return found ? found.bound : NaN;
}

// ---- display --------------------------------------------------------------------------------------------------------

const whole = (x) => Math.round(x).toLocaleString("en");
const some = (x) => (x >= 100 ? whole(x) : x.toPrecision(3));
const percent = (x) => `${(100 * x).toFixed(1)} %`;
const seconds = (x) => (x < 1 ? `≤ ${whole(1000 * x)} ms` : `≤ ${some(x)} s`);
const CARDS = [
  ["Running sequences", whole, (now) => total(now.samples, "arcforge:num_requests_running")],
  ["Waiting sequences", whole, (now) => total(now.samples, "arcforge:num_requests_waiting")],
  ["Requests / s", some, (now, old) => rate(now, old, "arcforge:http_requests_total")],
  ["Tokens generated / s", some, (now, old) => rate(now, old, "arcforge:generation_tokens_total")],
  ["Prompt tokens / s", some, (now, old) => rate(now, old, "arcforge:prompt_tokens_total")],
  ["Found in the prefix cache", percent,
    (now, old) => share(now, old, "arcforge:prefix_cache_hits_total", "arcforge:prefix_cache_queries_total")],
  ["Cache in use by running sequences", percent, (now) => total(now.samples, "arcforge:kv_cache_usage_perc")],
  ["Cache in the prefix tree", percent, (now) => total(now.samples, "arcforge:kv_cache_shared_perc")],
  ["First token, median", seconds, (now, old) => quantile(now, old, "arcforge:time_to_first_token_seconds", 0.5)],
  ["First token, 95 %", seconds, (now, old) => quantile(now, old, "arcforge:time_to_first_token_seconds", 0.95)],
  ["Between tokens, median", seconds, (now, old) => quantile(now, old, "arcforge:inter_token_latency_seconds", 0.5)],
  ["Between tokens, 95 %", seconds, (now, old) => quantile(now, old, "arcforge:inter_token_latency_seconds", 0.95)],
  ["Tokens per check of drafts", some, (now, old) =>
    1 + share(now, old, "arcforge:spec_decode_num_accepted_tokens_total", "arcforge:spec_decode_num_drafts_total")],
  ["Preemptions / s", some, (now, old) => rate(now, old, "arcforge:num_preemptions_total")],
  ["Steps / s", some, (now, old) => rate(now, old, "arcforge:engine_steps_total")],
  ["Version of the weights", whole, (now) => total(now.samples, "arcforge:weight_version")],
];

// Values of all cards between two looks; NaN where nothing has happened.
function figures(now, before) {
  return CARDS.map(([, , value]) => value(now, before));
}

function answers(samples) {
  return samples.filter((s) => s.name === "arcforge:http_requests_total" && !/^\/(page|dashboard|metrics|health)/.test(s.labels.path || ""))
    .map((s) => [s.labels.path || "(no such route)", s.labels.status, whole(s.value)]).sort();
}

// ---- the page -------------------------------------------------------------------------------------------------------

function color(name) {
  const probe = document.body.appendChild(document.createElement("span"));
  probe.style.color = `var(--${name})`;
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}

// A chart of one figure over the time of day, with axes and the value under the pointer.
function chart(place, show) {
  const font = "12px system-ui, sans-serif";
  const clock = (at) => new Date(1000 * at).toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
  const axis = { stroke: () => color("muted"), font, grid: { stroke: () => color("grid"), width: 1 }, ticks: { show: false } };
  const width = () => Math.max(180, Math.floor(place.getBoundingClientRect().width));
  const plot = new uPlot({
    width: width(), height: 130,
    cursor: { y: false, drag: { x: false, y: false } },
    scales: { y: { range: (_, low, high) => [0, high > 0 ? 1.1 * high : 1] } },
    axes: [
      { ...axis, size: 24, space: 70, values: (_, values) => values.map((v) => clock(v).slice(0, 5)) },
      { ...axis, size: 56, space: 28, incrs: show === whole ? WHOLE : undefined, values: (_, values) => values.map((v) => show(v).replace("≤ ", "")) },
    ],
    series: [
      { label: "at", value: (_, v) => (v === null ? "" : `${clock(v)}:`) },
      { label: "value", stroke: () => color("series-0"), width: 1.6, points: { show: false }, value: (_, v) => (v === null ? "–" : show(v)) },
    ],
  }, [[], []], place);
  new ResizeObserver(() => width() !== plot.width && plot.setSize({ width: width(), height: 130 })).observe(place);
  return plot;
}

function start() {
  const $ = (id) => document.getElementById(id);
  const looks = [], times = [], history = CARDS.map(() => []);
  const cards = CARDS.map(([name, show]) => {
    const card = $("cards").appendChild(document.createElement("section"));
    card.appendChild(document.createElement("h2")).textContent = name;
    const value = card.appendChild(document.createElement("output"));
    value.textContent = "–";
    value.setAttribute("aria-label", name);
    const place = card.appendChild(document.createElement("div"));
    place.className = "plot";
    return { value, plot: chart(place, show) };
  });
  $("login").addEventListener("submit", (event) => {
    event.preventDefault();
    sessionStorage.setItem("arcforge-key", $("key").value);
    look();
  });
  $("range").addEventListener("change", redraw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => cards.forEach(({ plot }) => plot.redraw()));

  function redraw() {
    const range = Number($("range").value), now = times[times.length - 1] ?? Date.now() / 1000;
    const from = times.findIndex((at) => at >= now - range);
    cards.forEach(({ plot }, i) => {
      const values = history[i].slice(Math.max(0, from)).map((v) => (Number.isFinite(v) ? v : null));
      plot.batch(() => {
        plot.setData([times.slice(Math.max(0, from)), values], false);
        plot.setScale("x", { min: now - range, max: now });
      });
    });
  }

  function draw(now) {
    const before = looks.find((look) => now.at - look.at <= RATES + 1);
    looks.push(now);
    while (looks.length && now.at - looks[0].at > RATES + 1) looks.shift();
    $("model").textContent = (now.samples.find((s) => s.labels.model_name) || { labels: {} }).labels.model_name || "";
    $("state").textContent = total(now.samples, "arcforge:paused") ? "paused" : "";
    $("answers").tBodies[0].replaceChildren(...answers(now.samples).map((cells) => {
      const row = document.createElement("tr");
      for (const cell of cells) row.appendChild(document.createElement("td")).textContent = cell;
      return row;
    }));
    if (before === undefined) return;
    times.push(Date.now() / 1000);
    figures(now, before).forEach((value, i) => {
      history[i].push(value);
      cards[i].value.textContent = Number.isFinite(value) ? CARDS[i][1](value) : "–";
    });
    while (times[times.length - 1] - times[0] > KEPT) [times, ...history].forEach((each) => each.shift());
    redraw();
  }

  async function look() {
    const key = sessionStorage.getItem("arcforge-key");
    try {
      const reply = await fetch("metrics", { headers: key ? { Authorization: `Bearer ${key}` } : {}, cache: "no-store" });
      $("login").hidden = reply.status !== 401;
      if (!reply.ok) throw new Error(reply.status === 401 ? "this server wants a key" : `status ${reply.status}`);
      draw({ at: performance.now() / 1000, samples: parse(await reply.text()) });
    } catch (error) {
      $("state").textContent = `no figures: ${error.message}`;
    }
  }
  redraw();
  look();
  setInterval(look, EVERY);
}
if (typeof document !== "undefined") start();
