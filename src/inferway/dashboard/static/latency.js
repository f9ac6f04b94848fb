// Response times at the present rate against the least that any policy can reach.

import {
  back, clock, decades, html, linear, logarithmic, numbers, path, percent, picture, plain, room,
  rounds, seconds, since, svg,
} from "./draw.js";

const SPANS = { left: 56, right: 16, top: 22, bottom: 34 };
const TRAIL_S = 300;

export function drawLatency(section, task) {
  const { view, series } = task;
  section.querySelector(".of").textContent =
    `${view.task} at ${view.source}, the last ten seconds`;
  const { bound, latency, rate_per_s: rate } = view;
  const twice = bound && bound.escalate;
  const drawn = bound && (bound.curve.length || (twice && twice.curve.length));
  section.querySelector(".figures").replaceChildren(
    ...(drawn ? [against(section, task)] : [unbounded(bound)]));
  const least = bound ? bound.least_s : null;
  // A task that may ask twice is held against the bound of those that may.
  const own = twice ? twice.least_s : least;
  const times = own && latency.mean_s ? `${plain(latency.mean_s / own)} times ` : "";
  const greatest = bound && (twice || bound);
  numbers(section.querySelector(".numbers"), [
    ["mean", seconds(latency.mean_s), times && times + (twice ? "that with escalation" : "the bound")],
    ["p50", seconds(latency.p50_s)],
    ["p95", seconds(latency.p95_s)],
    ["p99", seconds(latency.p99_s)],
    ["bound of the mean", seconds(least)],
    ...(twice ? [["with escalation", seconds(twice.least_s)]] : []),
    ["rate", `${plain(rate)}/s`, greatest && greatest.max_rate_per_s
      ? `${percent(greatest.load)} of ${plain(greatest.max_rate_per_s)}/s` : ""],
  ]);
  section.querySelector(".timeline").replaceChildren(overTime(section, series));
}

function unbounded(bound) {
  const why = bound === null
    ? "No instance is healthy: there is no bound."
    : "No mix of the healthy variants reaches the target at any rate.";
  return html("p", { class: "note" }, why);
}

// Means of ten seconds each, of the last minutes: where the task has been.
function trail(series) {
  const found = [];
  for (let end = series.times.length; end > 0 && found.length < TRAIL_S / 10; end -= 10) {
    const from = Math.max(0, end - 10);
    const came = series.arrivals.slice(from, end).filter((one) => one !== null);
    let answered = 0;
    let total = 0;
    for (let i = from; i < end; i += 1) {
      if (series.latency_mean_s[i] !== null) {
        answered += series.answered[i];
        total += series.answered[i] * series.latency_mean_s[i];
      }
    }
    if (answered) found.push([came.reduce((a, b) => a + b, 0) / came.length, total / answered]);
  }
  return found;
}

function against(section, { view, series }) {
  const { bound, latency, rate_per_s: rate } = view;
  const width = room(section.querySelector(".figures"));
  const height = Math.round(Math.min(420, Math.max(240, width * 0.45)));
  const past = trail(series);
  const twice = bound.escalate && bound.escalate.curve.length ? bound.escalate : null;
  const alone = bound.curve.length > 0;
  const most = Math.max((alone ? bound : twice).max_rate_per_s * 1.08, rate * 1.08,
    ...past.map(([at]) => at));
  // With escalation many times as much may be carried: what lies far beyond is cut.
  const again = twice ? twice.curve.filter(([at]) => at <= most) : [];
  const shown = [latency.mean_s, latency.p50_s, latency.p95_s, latency.p99_s]
    .filter((one) => one !== null);
  const all = [...[...bound.curve, ...again].map(([, least]) => least), ...shown,
    ...past.map(([, mean]) => mean)];
  const x = linear([0, most], [SPANS.left, width - SPANS.right]);
  const range = [Math.min(...all) / 1.4, Math.max(...all) * 1.4];
  const y = logarithmic(range, [height - SPANS.bottom, SPANS.top]);
  const end = x(Math.min(most, (twice ?? bound).max_rate_per_s));
  const once = alone ? x(bound.max_rate_per_s) : null;
  const line = (curve) => path(curve.map(([rate, least]) => [x(rate), y(least)]));
  const at = x(rate);
  const marks = latency.mean_s === null ? [] : [
    ...[["p99", latency.p99_s], ["p95", latency.p95_s], ["p50", latency.p50_s]]
      .filter(([, value]) => value !== null)
      .flatMap(([word, value]) => [
        svg("line", { class: "tick", x1: at - 7, x2: at + 7, y1: y(value), y2: y(value) }),
        svg("text", { x: at + 11, y: y(value) + 4 }, word),
      ]),
    svg("circle", { class: "dot", cx: at, cy: y(latency.mean_s), r: 6 }),
    svg("text", at > SPANS.left + 110
      ? { class: "strong", x: at - 11, y: y(latency.mean_s) + 4, "text-anchor": "end" }
      : { class: "strong", x: at + 2, y: y(latency.mean_s) - 11 }, `mean ${seconds(latency.mean_s)}`),
  ];
  const whose = twice ? "any policy can reach that asks once" : "any policy can reach";
  const name = `At ${plain(rate)} requests a second the mean response time is `
    + `${seconds(latency.mean_s)}, p99 ${seconds(latency.p99_s)}; the least that `
    + `${whose} is ${seconds(bound.least_s)}`
    + `${twice ? `, and with escalation ${seconds(twice.least_s)}` : ""}. `
    + `The greatest rate that keeps the target is ${plain((twice ?? bound).max_rate_per_s)} a second.`;
  return html("figure", {},
    picture(width, height, name,
      svg("rect", { class: "beyond", x: end, y: SPANS.top, width: Math.max(0, width - SPANS.right - end),
        height: height - SPANS.bottom - SPANS.top }),
      ...decades(...range).flatMap((value) => [
        svg("line", { class: "grid", x1: SPANS.left, x2: width - SPANS.right, y1: y(value), y2: y(value) }),
        svg("text", { x: SPANS.left - 8, y: y(value) + 4, "text-anchor": "end" }, seconds(value)),
      ]),
      ...rounds(most, width < 500 ? 4 : 8).map((value) =>
        svg("text", { x: x(value), y: height - SPANS.bottom + 16, "text-anchor": "middle" }, plain(value))),
      svg("text", { x: width - SPANS.right, y: height - 2, "text-anchor": "end" }, "requests a second"),
      svg("path", { class: "bound", d: line(bound.curve) }),
      twice && svg("path", { class: "bound twice", d: line(again) }),
      ...[[once, twice ? "greatest rate, asked once" : "greatest rate"], [twice && end, "with escalation"]]
        .filter(([at]) => at !== null && at < width - SPANS.right)
        .flatMap(([at, word]) => [
          svg("line", { class: "target", x1: at, x2: at, y1: SPANS.top, y2: height - SPANS.bottom }),
          svg("text", { x: Math.min(at + 40, width - SPANS.right), y: SPANS.top - 7, "text-anchor": "end" },
            word),
        ]),
      ...past.map(([rate, mean]) => svg("circle", { class: "trail", cx: x(rate), cy: y(mean), r: 4 })),
      ...marks),
    html("figcaption", {}, twice
      ? "The solid line is the least mean at this target that any policy can reach that asks once, "
        + "the dashed one that of those that may ask a second variant; pale dots are the last five "
        + "minutes."
      : "The line is the least mean that any policy can reach at this target; pale dots are the last "
        + "five minutes."));
}

function overTime(section, series) {
  const width = room(section.querySelector(".timeline"));
  const height = 130;
  const now = series.times.at(-1);
  const values = [...series.latency_mean_s, ...series.latency_p99_s].filter((one) => one !== null);
  if (!values.length) return html("p", { class: "note" }, "Nothing has been answered yet.");
  const range = [Math.min(...values) / 1.2, Math.max(...values) * 1.2];
  const span = since(series.times);
  const x = linear([now - span, now], [SPANS.left, width - SPANS.right]);
  const y = logarithmic(range, [height - 22, 8]);
  const line = (key) => path(series.times.map((moment, i) =>
    [x(moment), series[key][i] === null ? null : y(series[key][i])]));
  const parts = width < 500 ? 3 : 5;
  const marks = Array.from({ length: parts + 1 }, (_, i) => (span * (parts - i)) / parts);
  return html("figure", {},
    picture(width, height, `Mean and p99 of each second since ${clock(series.times[0])}`,
      ...decades(...range).filter((_, i, all) => i % Math.ceil(all.length / 5) === 0).flatMap((value) => [
        svg("line", { class: "grid", x1: SPANS.left, x2: width - SPANS.right, y1: y(value), y2: y(value) }),
        svg("text", { x: SPANS.left - 8, y: y(value) + 4, "text-anchor": "end" }, seconds(value)),
      ]),
      svg("path", { class: "high", d: line("latency_p99_s") }),
      svg("path", { class: "mean", d: line("latency_mean_s") }),
      ...marks.map((ago, i) => svg("text", { x: x(now - ago), y: height - 4,
        "text-anchor": i === 0 ? "start" : ago ? "middle" : "end" }, ago ? back(ago) : "now"))),
    html("figcaption", {}, "Mean of each second (strong) and its p99 (pale)."));
}
