// Draws every <figure class="chart"> again with uPlot, as wide as it is shown: values under the pointer and by arrow
// keys, linear or logarithmic, and the curves of a second page of the same kind.
const Charts = (() => {
  const probe = document.createElement("span");
  const color = (name) => {
    probe.style.color = `var(--${name})`;
    document.body.append(probe);
    const found = getComputedStyle(probe).color;
    probe.remove();
    return found;
  };
  const named = (n) => `series-${n % 6}`;
  const FONT = "12px system-ui, sans-serif";
  const SI = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]];
  const si = (v) => {
    const [size, letter] = SI.find(([limit]) => Math.abs(v) >= limit) ?? [1, ""];
    return `${Number((v / size).toPrecision(3))}${letter}`;
  };
  const plain = (v) => (v !== 0 && (Math.abs(v) < 1e-3 || Math.abs(v) >= 1e7) ? v.toExponential(2).replace(/\.?0+e/, "e")
    : Number(v.toPrecision(5)).toLocaleString("en", { maximumFractionDigits: 6 }));
  const FORMS = { plain, si, percent: (v) => `${plain(Number((100 * v).toPrecision(4)))}%` };
  const shown = (form, v) => (v === null || v === undefined ? "–" : FORMS[form](v));

  // The index with a value of this series that is nearest to the pointer: series have their own places on the x axis.
  function nearest(u, n, at, x) {
    const xs = u.data[0], ys = u.data[n];
    if (ys[at] !== null && ys[at] !== undefined) return at;
    let left = at, right = at;
    while (left >= 0 && (ys[left] === null || ys[left] === undefined)) left -= 1;
    while (right < xs.length && (ys[right] === null || ys[right] === undefined)) right += 1;
    if (left < 0) return right < xs.length ? right : at;
    if (right >= xs.length) return left;
    return x - xs[left] <= xs[right] - x ? left : right;
  }

  // Without a pointer the legend has the last values.
  const last = (values) => values.findLastIndex((v) => v !== null && v !== undefined);

  function joined(series, log) {
    const tables = series.map(({ x, y }) => {
      const kept = x.map((at, n) => [at, log && !(y[n] > 0) ? null : y[n]]).filter(([at]) => at !== null);
      return [kept.map(([at]) => at), kept.map(([, value]) => value)];
    });
    return uPlot.join(tables);
  }

  function options(spec, series, log, width) {
    const parts = series.map(({ label, color: n, dashed, points, faint, stack, other }) => ({
      label: label || spec.y.label,
      class: faint ? "faint" : undefined,
      stroke: () => color(named(n)),
      fill: stack ? () => color(named(n)) : undefined,
      width: faint ? 1 : 1.8,
      alpha: faint ? 0.35 : 1,
      dash: other ? [2, 3] : dashed ? [6, 4] : undefined,
      points: { show: points || undefined, size: 6, fill: () => color(named(n)) },
      spanGaps: true,
      value: (u, _, n, at) => {
        const place = at ?? last(u.data[n]), v = u.data[n][place];
        const below = stack && series[n]?.stack ? u.data[n + 1][place] : 0;
        return shown(spec.y.form, v === null || v === undefined ? v : v - below);
      },
    }));
    const axis = (label, form, size) => ({
      label, labelSize: 18, labelFont: FONT, font: FONT, size, form,
      stroke: () => color("muted"), grid: { stroke: () => color("grid"), width: 1 }, ticks: { show: false },
      values: (_, values) => values.map((v) => (v === null ? null : shown(form, v))),
    });
    const whole = series.every(({ x }) => x.every((v) => v === null || Number.isInteger(v)));
    return {
      width, height: width < 480 ? 230 : 270,
      legend: { live: true, markers: { width: 0, fill: (_, n) => `var(--${named(series[n - 1]?.color ?? 0)})` } },
      cursor: { dataIdx: nearest, y: false, drag: { x: true, y: false } },
      scales: {
        x: { time: false },
        y: log ? { distr: 3 } : { range: (_, low, high) => {
          if (spec.y.from !== null) return [Math.min(spec.y.from, low), Math.max(spec.y.to, high + 0.05 * (high - spec.y.from))];
          const pad = low === high ? Math.abs(low || 1) / 2 : 0.06 * (high - low);
          return [low - pad, high + pad];
        } },
      },
      axes: [
        { ...axis(spec.x.label, spec.x.form, 32), space: 56, incrs: whole ? [1, 2, 5].flatMap((n) =>
          [...Array(9).keys()].map((e) => n * 10 ** e)).sort((a, b) => a - b) : undefined },
        { ...axis(spec.y.label, spec.y.form, 52), ...(log ? { filter: (u, splits) => splits.map((v) =>
          ([1, 2, 5].some((n) => Math.abs(Math.log10(v / n) % 1) < 1e-6 || Math.abs(Math.log10(v / n) % 1) > 1 - 1e-6)
            ? v : null)) } : {}) },
      ],
      series: [{ label: spec.x.label || "x", value: (u, v) => shown(spec.x.form, v ?? u.data[0].at(-1)) }, ...parts],
      hooks: { drawClear: [(u) => {
        for (const at of spec.marks) {
          const x = u.valToPos(at, "x", true);
          u.ctx.save();
          u.ctx.strokeStyle = color("series-1");
          u.ctx.setLineDash([6, 4]);
          u.ctx.beginPath();
          u.ctx.moveTo(x, u.bbox.top);
          u.ctx.lineTo(x, u.bbox.top + u.bbox.height);
          u.ctx.stroke();
          u.ctx.restore();
        }
      }] },
    };
  }

  class Chart {
    constructor(figure, spec) {
      Object.assign(this, { figure, spec, others: [], log: spec.y.log, name: figure.dataset.name });
      this.place = figure.appendChild(document.createElement("div"));
      this.place.className = "plot";
      this.place.tabIndex = 0;
      this.place.setAttribute("role", "group");
      this.place.setAttribute("aria-label", `${spec.title}: the arrow keys read values`);
      this.place.addEventListener("keydown", (event) => this.#key(event));
      if (spec.series.every(({ stack }) => !stack) && spec.series.some(({ y }) => y.some((v) => v > 0))) this.#switch();
      figure.classList.add("drawn");
      this.draw();
      new ResizeObserver(() => {
        const width = this.#width();
        if (width !== this.plot.width) this.plot.setSize({ width, height: width < 480 ? 230 : 270 });
      }).observe(figure);
    }

    #width() {
      return Math.max(200, Math.floor(this.figure.getBoundingClientRect().width));
    }

    #switch() {
      const tools = document.createElement("div");
      tools.className = "tools";
      const button = tools.appendChild(document.createElement("button"));
      button.type = "button";
      button.textContent = "log scale";
      button.setAttribute("aria-pressed", String(this.log));
      button.setAttribute("aria-label", `Log scale: ${this.spec.title}`);
      button.addEventListener("click", () => {
        this.log = !this.log;
        button.setAttribute("aria-pressed", String(this.log));
        this.draw();
      });
      this.figure.prepend(tools);
    }

    get series() {
      const own = this.spec.series.map((each) => ({ ...each }));
      return [...own.filter(({ stack }) => stack).reverse(), ...own.filter(({ stack }) => !stack), ...this.others];
    }

    draw() {
      const { series } = this;
      this.plot?.destroy();
      this.plot = new uPlot(options(this.spec, series, this.log, this.#width()), joined(series, this.log), this.place);
    }

    // Adds the curves of another page's chart, or takes them away.
    compare(spec, title) {
      this.others = (spec?.series ?? []).filter(({ faint, stack }) => !faint && !stack)
        .map((each) => ({ ...each, other: true, points: false, label: `${title}: ${each.label || spec.y.label}` }));
      this.draw();
    }

    #key(event) {
      const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!by) return;
      event.preventDefault();
      const last = this.plot.data[0].length - 1;
      const at = Math.min(last, Math.max(0, (this.plot.cursor.idx ?? (by > 0 ? -1 : last + 1)) + by));
      this.plot.setCursor({ left: this.plot.valToPos(this.plot.data[0][at], "x"), top: 1 });
    }
  }

  const specs = (page) => [...page.querySelectorAll("figure.chart")].map((figure) =>
    [figure, JSON.parse(figure.querySelector("script").textContent)]).filter(([, spec]) => spec.series.length);
  const charts = specs(document).map(([figure, spec]) => new Chart(figure, spec));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => charts.forEach(({ plot }) => plot.redraw()));

  function compareField() {
    const field = document.createElement("p");
    field.className = "compare";
    const label = field.appendChild(document.createElement("label"));
    label.textContent = "Draw another run's curves here too (its HTML page): ";
    const input = label.appendChild(document.createElement("input"));
    Object.assign(input, { type: "file", accept: ".html,text/html", id: "compare" });
    const note = field.appendChild(document.createElement("span"));
    note.setAttribute("role", "status");
    input.addEventListener("change", async () => {
      const file = input.files[0];
      if (!file) return;
      const page = new DOMParser().parseFromString(await file.text(), "text/html");
      const found = new Map(specs(page).map(([figure, spec]) => [figure.dataset.name, spec]));
      const fit = charts.filter(({ name }) => found.has(name));
      note.textContent = fit.length ? ` dotted: ${page.title}` : ` ${file.name} has no chart of this kind of page`;
      for (const chart of charts) chart.compare(found.get(chart.name), page.title);
    });
    return field;
  }
  if (charts.length) document.querySelector("header").append(compareField());
  return charts;
})();
