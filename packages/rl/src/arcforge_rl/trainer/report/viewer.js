"use strict";
// Shows the rollouts of a step and a group. Words of models and tasks enter the page as text, never as markup.
(() => {
  const data = JSON.parse(document.getElementById("rollouts-data").textContent);
  const at = (id) => document.getElementById(id);
  const steps = at("step"), groups = at("group"), place = at("shown-rollouts");

  const element = (name, text, style) => {
    const made = document.createElement(name);
    if (text !== undefined) made.textContent = text;
    if (style) made.className = style;
    return made;
  };
  const options = (select, labels) => {
    select.replaceChildren(...labels.map(([value, label]) => {
      const option = element("option", label);
      option.value = value;
      return option;
    }));
  };
  const figure = (value, digits) => (value === null || value === undefined ? "not known" : value.toFixed(digits));
  const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;
  const visible = (text) => text.replace(/\n/g, "⏎\n").replace(/[\u0000-\u0008\u000b-\u001f\u007f\u202a-\u202e\u2066-\u2069]/g, "\ufffd");

  function tokens(branch, most) {
    const line = element("pre", undefined, "tokens");
    let given = "";
    const flush = () => {
      if (given) line.append(element("span", given, "given"));
      given = "";
    };
    for (const token of branch) {
      if (typeof token === "string") {
        given += visible(token);
        continue;
      }
      flush();
      const [text, logprob, advantage, factor] = token;
      const made = element("span", visible(text), "token");
      made.tabIndex = 0;
      if (advantage !== null && most > 0) {
        made.classList.add(advantage < 0 ? "negative" : "positive");
        made.style.setProperty("--strength", `${Math.round(10 + 45 * Math.abs(advantage) / most)}%`);
        if (advantage === 0) made.classList.remove("positive");
      }
      const masked = factor === 0;
      if (masked) made.classList.add("masked");
      made.title = `log-prob ${figure(logprob, 3)} · advantage ${figure(advantage, 3)} · factor ${figure(factor, 3)}` +
        (masked ? " · masked" : "");
      line.append(made);
    }
    flush();
    return line;
  }

  function conversation(messages) {
    const line = element("pre");
    messages.forEach(([role, words], number) => {
      if (number) line.append("\n");
      line.append(element("span", `${role}: ${visible(words)}`, role === "assistant" ? "" : "given"));
    });
    return line;
  }

  function rollout(one, number, most) {
    const box = element("details", undefined, "rollout");
    box.open = number < 4;
    const reward = one.rewards.reward;
    const head = element("summary");
    head.append(element("span", reward >= 1 - 1e-9 ? "✓ " : "✗ ", reward >= 1 - 1e-9 ? "ok" : "failed"));
    const others = Object.entries(one.rewards).filter(([name]) => name !== "reward")
      .map(([name, value]) => `${name} ${figure(value, 2)}`);
    const earned = one.failure ? `failed (${visible(one.failure)})` : `reward ${figure(reward, 2)}`;
    head.append(earned + (others.length ? ` (${others.join(", ")})` : "") +
      ` · ${one.length} tokens` + (one.truncated ? ", cut off" : ""));
    box.append(head);
    for (const [name, why] of Object.entries(one.reasons)) {
      if (name === "reward" || why !== one.reasons.reward) box.append(element("p", `${name}: ${visible(why)}`, "note reason"));
    }
    const branches = one.tokens || [];
    branches.forEach((branch) => box.append(tokens(branch, most)));
    if (!branches.length) box.append(conversation(one.messages));
    else if (one.messages.length) {
      const words = element("details");
      words.append(element("summary", "as a conversation"), conversation(one.messages));
      box.append(words);
    }
    return box;
  }

  function showGroup() {
    const group = data[steps.value][Number(groups.value)];
    const advantages = group.rollouts.flatMap((one) => (one.tokens || []).flat())
      .filter((token) => typeof token !== "string" && token[2] !== null).map((token) => Math.abs(token[2]));
    const most = advantages.reduce((a, b) => Math.max(a, b), 0);
    const cut = group.of > group.rollouts.length ? ` · ${group.rollouts.length} of ${group.of} rollouts` : "";
    const about = element("p", visible(`${group.task} · expected ${group.answer || "(no answer)"}`) + cut, "note");
    place.replaceChildren(about, ...group.rollouts.map((one, number) => rollout(one, number, most)));
  }

  function showStep() {
    options(groups, data[steps.value].map((group, number) => {
      const scored = group.rollouts.filter((one) => !one.failure);
      const reward = scored.length ? mean(scored.map((one) => one.rewards.reward || 0)) : undefined;
      const learnt = group.learnt ? "" : " · left out";
      return [String(number), `${visible(`${group.domain}: ${group.task.slice(0, 60)}`)} · reward ${figure(reward, 2)}${learnt}`];
    }));
    showGroup();
  }

  const move = (by) => {
    const to = steps.selectedIndex + by;
    if (to < 0 || to >= steps.options.length) return;
    steps.selectedIndex = to;
    showStep();
  };
  options(steps, Object.keys(data).map((step) => [step, `step ${step}`]));
  steps.selectedIndex = steps.options.length - 1;
  steps.addEventListener("change", showStep);
  groups.addEventListener("change", showGroup);
  at("back").addEventListener("click", () => move(-1));
  at("on").addEventListener("click", () => move(1));
  showStep();
})();
