// Who answers: shares of the last minute, each variant's state, and response times.

import { digits, html, linear, percent, picture, plain, room, rounds, seconds, svg } from "./draw.js";

const COLORS = 8;
const PAIRS = 6;

export function drawAnswers(section, { view }) {
  section.querySelector(".of").textContent = `${view.task} at ${view.source}, the last minute`;
  const colors = new Map(view.variants.map(({ name }, i, all) =>
    [name, `s${all.length > 1 ? Math.round((i * (COLORS - 1)) / (all.length - 1)) : 3}`]));
  section.querySelector(".shares").replaceChildren(shares(section, view.variants, colors));
  section.querySelector(".table").replaceChildren(table(view.variants, colors),
    ...again(view.escalations, colors));
  section.querySelector(".times").replaceChildren(histogram(section, view.response_times, colors));
}

function shares(section, variants, colors) {
  const width = room(section.querySelector(".shares"));
  const x = linear([0, 1], [0, width]);
  let from = 0;
  const parts = variants.filter(({ share }) => share > 0).map(({ name, share }) => {
    const begin = from;
    from += share;
    return svg("g", { class: colors.get(name) },
      svg("rect", { class: "series", x: x(begin), y: 0, width: x(share), height: 28 }));
  });
  const name = variants.map(({ name, share }) => `${name} ${percent(share)}`).join(", ");
  return picture(width, 28, `Shares of the answers: ${name}`,
    svg("rect", { class: "beyond", width, height: 28 }), ...parts);
}

function table(variants, colors) {
  const head = ["variant", "accuracy", "share", "per second", "mean time", "waiting", "healthy"];
  return html("table", {},
    html("caption", { class: "soft" }, "Variants, the fastest first"),
    html("thead", {}, html("tr", {}, ...head.map((one) => html("th", { scope: "col" }, one)))),
    html("tbody", {}, ...variants.map((one) => html("tr", {},
      html("th", { scope: "row" }, html("span", { class: `swatch ${colors.get(one.name)}` }), one.name),
      html("td", {}, digits(one.accuracy, 3)),
      html("td", {}, percent(one.share)),
      html("td", {}, plain(one.per_s)),
      html("td", {}, seconds(one.mean_s)),
      html("td", {}, String(one.queued)),
      html("td", { class: one.healthy < one.instances ? "wrong" : "" },
        `${one.healthy} of ${one.instances}`)))));
}

// What was asked again, where the task may ask twice.
function again(asked, colors) {
  if (!asked) return [];
  const swatched = (name) => [html("span", { class: `swatch ${colors.get(name) ?? "s4"}` }), name];
  const share = `Asked again: ${percent(asked.share)} of the answers`;
  if (!asked.pairs.length) return [html("p", { class: "note again" }, `${share}.`)];
  const shown = asked.pairs.slice(0, PAIRS);
  const rest = asked.pairs.slice(PAIRS).reduce((sum, one) => sum + one.share, 0);
  return [html("table", { class: "again" },
    html("caption", { class: "soft" }, `${share}, by pair`),
    html("thead", {}, html("tr", {}, html("th", { scope: "col" }, "first"),
      html("th", { scope: "col", class: "words" }, "then"),
      html("th", { scope: "col" }, "of all answers"))),
    html("tbody", {}, ...shown.map(({ first, then, share: part }) => html("tr", {},
      html("th", { scope: "row" }, ...swatched(first)),
      html("td", { class: "words" }, ...swatched(then)),
      html("td", {}, percent(part)))),
    ...(rest ? [html("tr", {}, html("th", { scope: "row" }, "other pairs"), html("td", {}),
      html("td", {}, percent(rest)))] : [])))];
}

function histogram(section, { begin_s: begin, ends_s: ends, variants }, colors) {
  if (!ends.length) return html("p", { class: "note" }, "No answers within the last minute.");
  const width = room(section.querySelector(".times"));
  const height = 150;
  const totals = ends.map((_, i) => Object.values(variants).reduce((sum, one) => sum + one[i], 0));
  const most = Math.max(...totals);
  const step = width / ends.length;
  const y = linear([0, most], [height - 22, 6]);
  const bars = [];
  const bottoms = ends.map(() => 0);
  for (const [name, counts] of Object.entries(variants)) {
    const group = svg("g", { class: colors.get(name) ?? "s4" });
    counts.forEach((count, i) => {
      if (!count) return;
      const low = bottoms[i];
      bottoms[i] += count;
      group.append(svg("rect", { class: "series", x: i * step, width: Math.max(1, step - 1),
        y: y(bottoms[i]), height: y(low) - y(bottoms[i]) }));
    });
    bars.push(group);
  }
  const every = Math.ceil(ends.length / (width < 500 ? 4 : 7));
  const marks = ends.map((end, i) => [end, i]).filter(([, i]) => i % every === every - 1);
  const sum = totals.reduce((a, b) => a + b, 0);
  const fastest = seconds(begin || ends[0]);
  const name = `Response times of ${sum.toLocaleString("en")} answers, from ${fastest} to `
    + `${seconds(ends.at(-1))}; most took about ${seconds(ends[totals.indexOf(most)])}`;
  return html("figure", {},
    picture(width, height, name,
      svg("line", { class: "axis", x1: 0, x2: width, y1: y(0), y2: y(0) }), ...bars,
      ...rounds(most, 2).slice(1).map((count) => svg("text", { x: 0, y: y(count) + 4 }, plain(count))),
      ...marks.map(([end, i]) => svg("text", { x: (i + 1) * step, y: height - 5,
        "text-anchor": i === ends.length - 1 ? "end" : "middle" }, seconds(end)))),
    html("figcaption", {}, "Answers by response time, in the variants' colors."));
}
