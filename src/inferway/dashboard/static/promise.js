// The promise of each task: a word, its reason, its numbers, and its balance.

import {
  back, clock, digits, html, linear, numbers, path, picture, room, signed, since, svg,
} from "./draw.js";

const SIGNS = {
  kept: "M3 13l6 6L21 5",
  "at-risk": "M12 3v11M12 18v3",
  missed: "M5 5l14 14M19 5L5 19",
  gone: "M5 5l14 14M19 5L5 19",
};

const strips = new Map();

export function drawPromises(container, tasks, selected, select, doing) {
  for (const [key, strip] of strips) {
    if (!tasks.has(key)) {
      strip.article.remove();
      strips.delete(key);
    }
  }
  if (!tasks.size) {
    const words = doing ? `No server answers yet: ${doing}.` : "Waiting for the first answer.";
    if (container.textContent !== words) container.replaceChildren(html("p", { class: "note" }, words));
  } else if (!strips.size) container.replaceChildren();
  for (const [place, [key, task]] of [...tasks].entries()) {
    if (!strips.has(key)) strips.set(key, made(task.view, () => select(key)));
    const { article } = strips.get(key);
    if (container.children[place] !== article) container.insertBefore(article, container.children[place]);
    fill(strips.get(key), task, key === selected);
  }
  container.classList.toggle("many", tasks.size > 2);
  container.classList.toggle("crowd", tasks.size > 8);
  const none = [...tasks.values()].every(({ view }) => view.promise.state === "none");
  container.classList.toggle("bare", tasks.size > 8 && none);
}

function made(view, chosen) {
  const task = html("button", { class: "task", type: "button" },
    view.task, html("small", {}, ` at ${view.source}`));
  task.addEventListener("click", chosen);
  const verdict = html("p", { class: "verdict" });
  const reason = html("p", { class: "reason" });
  const list = html("dl", { class: "numbers" });
  const balance = html("div");
  const line = html("div");
  const article = html("article", { class: "strip", "aria-label": `${view.task} at ${view.source}` },
    html("div", {}, html("h3", {}, task), verdict, reason),
    list, html("div", {}, line, balance));
  return { article, task, verdict, reason, list, balance, line, state: null };
}

function fill(strip, { view, series }, pressed) {
  const { state, verdict, reason, target, mean, mean_name, balance, answers, labels } =
    view.promise;
  strip.task.setAttribute("aria-pressed", pressed);
  strip.article.toggleAttribute("data-ended", view.ended);
  if (strip.state !== state) {
    strip.state = state;
    strip.article.dataset.state = state;
    const sign = SIGNS[state] && svg("svg", { viewBox: "0 0 24 24", "aria-hidden": "true" },
      svg("path", { d: SIGNS[state], fill: "none", stroke: "currentColor", "stroke-width": 4,
        "stroke-linecap": "round", "stroke-linejoin": "round" }));
    strip.verdict.replaceChildren(...(sign ? [sign] : []), verdict);
  }
  if (strip.reason.textContent !== reason) strip.reason.textContent = reason;
  const pairs = [["requests a second", digits(view.rate_per_s)]];
  if (target !== undefined) {
    pairs.unshift(
      ["target", digits(target, 4)],
      [mean_name, mean === null ? "–" : digits(mean, 4),
        mean === null ? "" : `${signed(mean - target)}`],
    );
    pairs.push(["answers", answers.toLocaleString("en")]);
  }
  if (labels) {
    const [low, high] = labels.interval;
    pairs.splice(2, 0, ["mean by labels", digits(labels.mean, 4),
      `${digits(low, 3)} to ${digits(high, 3)}`]);
  }
  numbers(strip.list, pairs);
  const wide = Math.min(460, room(strip.line, 200));
  strip.line.replaceChildren(...(target === undefined ? [] : [meanLine(series, target, wide)]));
  strip.balance.replaceChildren(
    ...(target === undefined ? [] : [balanceBar(balance, series.balance, wide)]));
}

// The running mean of the last quarter of an hour, and the target.
function meanLine(series, target, width) {
  const height = 76;
  const means = series.mean.map((one) => (one === null ? null : one - target));
  const most = Math.max(0.002, ...means.map((one) => Math.abs(one ?? 0))) * 1.15;
  const now = series.times.at(-1);
  const x = linear([now - since(series.times), now], [0, width]);
  const y = linear([-most, most], [height - 18, 4]);
  const points = means.map((one, i) => [x(series.times[i]), one === null ? null : y(one)]);
  const begin = series.times[0];
  const name = `Mean accuracy since ${clock(begin)} against its target ${digits(target, 4)}: `
    + `now ${digits(series.mean.at(-1), 4)}`;
  return html("figure", {},
    picture(width, height, name,
      svg("line", { class: "target", x1: 0, x2: width, y1: y(0), y2: y(0) }),
      svg("path", { class: "mean", d: path(points) }),
      svg("text", { x: 0, y: y(0) - 4 }, `target ${digits(target, 4)}`),
      svg("text", { x: 0, y: height }, back(since(series.times))),
      svg("text", { x: width, y: height, "text-anchor": "end" }, "now")));
}

// What is ahead of the promise or owed to it, from the middle to either side.
function balanceBar(balance, past, width) {
  const height = 34;
  const most = Math.max(1, Math.abs(balance), ...past.map((one) => Math.abs(one ?? 0)));
  const x = linear([-most, most], [0, width]);
  const [left, right] = balance < 0 ? [x(balance), x(0)] : [x(0), x(balance)];
  const word = balance < 0 ? "owed" : "ahead";
  return picture(width, height, `Accuracy balance ${signed(balance)}: ${word}`,
    svg("rect", { class: "beyond", x: 0, y: 0, width, height: 12, rx: 2 }),
    svg("rect", { class: word, x: left, y: 0, width: Math.max(1, right - left), height: 12, rx: 2 }),
    svg("line", { class: "axis", x1: x(0), x2: x(0), y1: -3, y2: 15 }),
    svg("text", { x: 0, y: 29 }, "owed"),
    svg("text", { class: "strong", x: x(0), y: 29, "text-anchor": "middle" },
      `balance ${signed(balance)}`),
    svg("text", { x: width, y: 29, "text-anchor": "end" }, "ahead"));
}
