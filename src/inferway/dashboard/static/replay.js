// The twin's answer: the course that was, the one that would have been, and their numbers.

import {
  clock, decades, digits, html, linear, logarithmic, path, percent, picture, plain, room, seconds, signed, svg,
} from "./draw.js";

const LEFT = 62;
const RIGHT = 8;
const COURSES = [
  ["mean_s", "Mean response time", seconds],
  ["p99_s", "p99 of the response times", seconds],
  ["accuracy", "Mean accuracy by profile", (value) => digits(value, 4)],
];

// What is heard, and read first.
export function sentence({ numbers: { live, what_if: would }, error }) {
  const off = Math.abs(error.mean ?? 0);
  const unanswered = would.unanswered > 0.0005
    ? `, and ${percent(would.unanswered)} of the requests would go unanswered` : "";
  return `The mean response time would have been ${seconds(would.mean_s)} (it was `
    + `${seconds(live.mean_s)}), the accuracy ${digits(would.accuracy, 4)} (it was `
    + `${digits(live.accuracy, 4)})${unanswered}. The twin of what is in force is ${percent(off)} off.`;
}

export function drawReplay(box, told) {
  box.replaceChildren(
    html("p", { class: "note" }, "Solid: what was. Dashed: with the setting that is chosen, by the twin. "
      + "Shaded: as far off as the twin of what is in force was, in nine of ten stretches."),
    ...COURSES.filter(([key]) => told.live[key].some((one) => one !== null))
      .map(([key, title, unit]) => figure(box, told, key, title, unit)),
    html("div", { class: "table", tabindex: 0, role: "region", "aria-label": "Numbers of the replay" },
      table(told)),
    ...Object.entries(told.targets).map(([name, one]) => html("p", {}, joint(name, one))),
    ...told.notes.map((note) => html("p", { class: "note" }, `${note}.`)),
  );
}

// A target over several tasks: what is promised, what was, and what would have been.
function joint(name, { tasks, accuracy, energy, live, present, what_if: would }) {
  const shown = (value) => {
    if (value === null) return "unknown";
    return accuracy === undefined ? `${digits(value, 4)} J` : digits(value, 4);
  };
  const kind = accuracy === undefined ? "energy" : "accuracy";
  return `Target ${name}, a mean ${kind} of ${shown(accuracy ?? energy)} over ${tasks.join(", ")}: it was `
    + `${shown(live)}, ${shown(present)} by the twin, and would have been ${shown(would)}.`;
}

function figure(box, told, key, title, unit) {
  const width = Math.min(900, room(box));
  const height = 150;
  const [low, high] = told.band[key];
  const all = [told.live[key], told.twin[key], low, high].flat().filter((one) => one !== null);
  const times = key !== "accuracy";
  if (!times && told.target !== null) all.push(told.target);
  const [least, most] = [Math.min(...all), Math.max(...all)];
  const range = times ? [least / 1.15, most * 1.15] : [least - 0.002, most + 0.002];
  const ends = told.ends_s;
  const middle = (i) => (ends[i] + (ends[i - 1] ?? 0)) / 2;
  const x = linear([0, ends.at(-1)], [LEFT, width - RIGHT]);
  const y = (times ? logarithmic : linear)(range, [height - 22, 10]);
  const line = (values) => path(values.map((one, i) => [x(middle(i)), one === null ? null : y(one)]));
  const marks = times ? few(decades(...range)) : levels(range);
  const mean = (values) => {
    const some = values.filter((one) => one !== null);
    return some.reduce((sum, one) => sum + one, 0) / some.length;
  };
  const name = `${title}: it was ${unit(mean(told.live[key]))} on average of the stretches, and would `
    + `have been ${unit(mean(told.twin[key]))}`;
  return html("figure", {},
    html("figcaption", { class: "title" }, title),
    picture(width, height, name,
      ...marks.flatMap((value) => [
        svg("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: y(value), y2: y(value) }),
        svg("text", { x: LEFT - 8, y: y(value) + 4, "text-anchor": "end" }, unit(value)),
      ]),
      ...bands(low, high, (i) => x(middle(i)), y),
      ...(!times && told.target !== null ? [
        svg("line", { class: "target", x1: LEFT, x2: width - RIGHT, y1: y(told.target), y2: y(told.target) }),
      ] : []),
      svg("path", { class: "mean", d: line(told.live[key]) }),
      svg("path", { class: "would", d: line(told.twin[key]) }),
      svg("text", { x: LEFT, y: height - 4 }, clock(told.from_s)),
      svg("text", { x: width - RIGHT, y: height - 4, "text-anchor": "end" }, clock(told.from_s + ends.at(-1)))),
    !times && told.target !== null ? html("figcaption", {}, "The straight line is the target.") : null);
}

// The band where both of its edges are known, in as many pieces as that needs.
function bands(low, high, x, y) {
  const pieces = [];
  let piece = [];
  for (let i = 0; i <= low.length; i += 1) {
    if (i < low.length && low[i] !== null && high[i] !== null) piece.push(i);
    else if (piece.length) {
      pieces.push(piece);
      piece = [];
    }
  }
  return pieces.map((of) => {
    const up = of.map((i) => [x(i), y(high[i])]);
    const down = of.toReversed().map((i) => [x(i), y(low[i])]);
    return svg("path", { class: "band", d: `${path([...up, ...down])}Z` });
  });
}

function few(values) {
  return values.filter((_, i) => i % Math.ceil(values.length / 4) === 0);
}

function levels([low, high]) {
  const step = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2].find((one) => (high - low) / one <= 4) ?? 0.5;
  const found = [];
  for (let value = Math.ceil(low / step) * step; value <= high; value += step) found.push(value);
  return found;
}

function table({ numbers, error, requests }) {
  const rows = [
    ["was", numbers.live],
    ["the twin of what is in force", numbers.present],
    ["with the setting chosen", numbers.what_if],
  ];
  const head = ["mean", "p95", "p99", "accuracy", "unanswered", "requests a second"];
  const off = ["its error", relative(error.mean), "", relative(error.p99), points(error.accuracy), "", ""];
  const cells = ([first, ...rest]) => html("tr", {}, html("th", { scope: "row" }, first),
    ...rest.map((one) => html("td", {}, one)));
  const body = rows.map(([name, one]) => cells([name, seconds(one.mean_s), seconds(one.p95_s),
    seconds(one.p99_s), digits(one.accuracy, 4), percent(one.unanswered), plain(one.rate_per_s)]));
  body.splice(2, 0, cells(off));
  return html("table", {},
    html("caption", { class: "soft" }, `${requests.toLocaleString("en")} requests, replayed four times`),
    html("thead", {}, html("tr", {}, html("td", {}),
      ...head.map((one) => html("th", { scope: "col" }, one)))),
    html("tbody", {}, ...body));
}

const relative = (value) => (value === null ? "\u2013" : `${signed(value * 100)} %`);
const points = (value) => {
  if (value === null) return "\u2013";
  const rounded = Math.round(value * 1e4) / 1e4;
  return rounded ? signed(rounded) : "0";
};
