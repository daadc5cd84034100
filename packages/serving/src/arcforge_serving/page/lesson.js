/** The lesson: reinforcement learning of the served model, started here and drawn while it runs. */
import { getJson, postJson } from "./api.js";
import { h } from "./dom.js";

const PLACE = "page/lesson";
const SVG = "http://www.w3.org/2000/svg";
const [WIDTH, HEIGHT, LEFT, BOTTOM] = [480, 170, 44, 24];
const percent = (share) => `${Math.round(100 * share)}%`;

/** A panel that shows the lesson; `taught` is called when the server has taken the learned weights. */
export class Lesson {
  #timer = 0;
  #known = false;

  constructor(taught) {
    this.taught = taught;
    this.element = h("section", { class: "card lesson", "aria-label": "Reinforcement learning" });
  }

  async show() {
    clearTimeout(this.#timer);
    try {
      this.draw(await getJson(PLACE));
    } catch (error) {
      this.element.replaceChildren(h("p", { class: "wrong" }, error.message));
    }
    return this.element;
  }

  async start() {
    try {
      this.draw(await postJson(PLACE, {}));
    } catch (error) {
      this.element.append(h("p", { class: "wrong", role: "alert" }, error.message));
    }
  }

  draw(state) {
    const { status, heldout, rewards } = state;
    const parts = [h("h3", {}, TITLES[status])];
    if (status === "ready") parts.push(h("p", { class: "note" }, "Four minutes on this computer. The model samples solutions, a program checks them, and the policy learns from what was right."));
    if (status === "failed") parts.push(h("p", { class: "wrong", role: "alert" }, state.message));
    if (heldout.length) parts.push(h("p", { class: "figure" }, scores(heldout)));
    if (rewards.length > 1) parts.push(chart(rewards));
    if (status === "running") parts.push(bar(state.share), h("p", { class: "note", role: "status" }, `${rewards.length} steps, ${percent(state.share)} of the time`));
    else {
      const start = h("button", { type: "button", class: "primary", onclick: () => this.start() }, status === "ready" ? "Teach it" : "Again");
      const report = state.report && h("a", { href: `${PLACE}/report.html`, target: "_blank", rel: "noopener" }, "The report, with every token's advantage");
      parts.push(h("div", { class: "lesson-row" }, start, report));
    }
    if (state.taught) parts.push(h("p", { class: "note" }, "The server answers with the learned weights now: ask again."));
    this.element.replaceChildren(...parts);
    if (status === "running") this.#timer = setTimeout(() => this.show(), 1000);
    if (state.taught && !this.#known) this.taught();
    this.#known = state.taught;
  }
}

const TITLES = { ready: "Teach it", running: "Learning", finished: "What it learned", failed: "The lesson failed" };

function scores(heldout) {
  const [first, last] = [heldout[0][1], heldout.at(-1)[1]];
  if (heldout.length === 1) return `Held-out tasks solved: ${percent(first)} before`;
  return `Held-out tasks solved: ${percent(first)} → ${percent(last)}`;
}

function bar(share) {
  return h("progress", { max: 1, value: share, "aria-label": "Share of the time" });
}

/** The mean reward of each step, 0 to 1, with axes and a summary for screen readers. */
function chart(rewards) {
  const x = (step) => LEFT + ((WIDTH - LEFT - 8) * step) / Math.max(rewards.length - 1, 1);
  const y = (reward) => 8 + (HEIGHT - BOTTOM - 8) * (1 - reward);
  const text = (at, content, anchor) => shape("text", { ...at, "text-anchor": anchor }, content);
  const lines = [0, 0.5, 1].flatMap((reward) => [
    shape("line", { x1: LEFT, x2: WIDTH - 8, y1: y(reward), y2: y(reward), class: "grid" }),
    text({ x: LEFT - 6, y: y(reward) + 4 }, percent(reward), "end"),
  ]);
  const points = rewards.map((reward, step) => `${x(step).toFixed(1)},${y(reward).toFixed(1)}`).join(" ");
  const summary = `Mean reward by step: ${percent(rewards[0])} at step 1, ${percent(rewards.at(-1))} at step ${rewards.length}`;
  return shape("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": summary, class: "chart" }, [
    ...lines,
    shape("polyline", { points, class: "line" }),
    text({ x: LEFT, y: HEIGHT - 6 }, "reward, step 1", "start"),
    text({ x: WIDTH - 8, y: HEIGHT - 6 }, `step ${rewards.length}`, "end"),
  ]);
}

function shape(tag, attributes, content = []) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...[content].flat());
  return element;
}
