// Servers and nodes: links with their round trips, what runs where and waits, who is gone.

import { clock, html, linear, percent, picture, plain, room, seconds, svg } from "./draw.js";

const WORDS = { answers: "answers", gone: "gone", asked: "asked", ended: "has ended",
  starting: "not ready" };
const PLACE = { width: 120, height: 30, gap: 12, rise: 84 };
const SHOWN = 6;

const stateOf = (source) =>
  (source.state === "answers" && !source.ready ? "starting" : source.state);

export function drawMap(section, sources) {
  const links = section.querySelector(".links");
  links.replaceChildren(...network(links, sources));
  const list = section.querySelector(".nodes");
  list.replaceChildren(...sources.map((one) => item(list, one)));
}

// Links by their two ends; of what both say, the worse holds.
function linksOf(sources) {
  const found = new Map();
  const names = new Set(sources.map(({ name }) => name));
  for (const source of sources.filter(({ node }) => node)) {
    for (const { to, alive, rtt_s, file_rtt_s } of source.node.links) {
      if (!names.has(to)) continue;
      const ends = [source.name, to].sort();
      const known = found.get(ends.join(" ")) ?? { ends, alive: true, rtt_s: null, file_rtt_s };
      known.alive &&= alive && source.state !== "gone";
      known.rtt_s ??= rtt_s;
      found.set(ends.join(" "), known);
    }
  }
  return [...found.values()];
}

// Nodes in rows by how many links lie between them and the first without a budget.
function rowsOf(sources, links) {
  const rows = new Map();
  const first = sources.find(({ node }) => node && !node.budget_bytes) ?? sources[0];
  let next = [first.name];
  for (let row = 0; next.length; row += 1) {
    for (const name of next) rows.set(name, row);
    next = [...new Set(next.flatMap((name) => links
      .filter(({ ends }) => ends.includes(name)).flatMap(({ ends }) => ends)))]
      .filter((name) => !rows.has(name));
  }
  for (const { name } of sources) if (!rows.has(name)) rows.set(name, 0);
  return rows;
}

function network(box, sources) {
  const links = linksOf(sources);
  if (!links.length) return [];
  const rows = rowsOf(sources, links);
  const members = [...new Set(rows.values())].sort((a, b) => a - b)
    .map((row) => sources.filter(({ name }) => rows.get(name) === row));
  const most = Math.max(...members.map((row) => row.length));
  const width = Math.max(Math.min(room(box), 900), most * (PLACE.width + PLACE.gap));
  const height = (members.length - 1) * PLACE.rise + PLACE.height + 4;
  const places = new Map(members.flatMap((row, i) => row.map((source, k) =>
    [source.name, { source, x: ((k + 0.5) * width) / row.length, y: i * PLACE.rise + PLACE.height / 2 + 2 }])));
  const said = ({ alive, rtt_s, file_rtt_s }) => (alive ? seconds(rtt_s ?? file_rtt_s) : "no link");
  const name = `Links: ${links.map((one) => `${one.ends.join(" and ")}, ${said(one)}`).join("; ")}`;
  return [picture(width, height, name,
    ...links.flatMap((link) => {
      const [a, b] = link.ends.map((end) => places.get(end));
      const lost = link.alive ? "" : " lost";
      return [
        svg("line", { class: `link${lost}`, x1: a.x, y1: a.y, x2: b.x, y2: b.y }),
        svg("text", { class: lost.trim(), x: (a.x + b.x) / 2 + 4, y: (a.y + b.y) / 2 + 4 }, said(link)),
      ];
    }),
    ...[...places.values()].flatMap(({ source, x, y }) => [
      svg("rect", { class: `place ${stateOf(source)}`, x: x - PLACE.width / 2, y: y - PLACE.height / 2,
        width: PLACE.width, height: PLACE.height, rx: 5 }),
      svg("text", { class: stateOf(source) === "gone" ? "lost" : "strong", x, y: y + 5,
        "text-anchor": "middle" }, short(source.name)),
    ])),
  html("p", { class: "note" }, "Round trips as the last requests had them, by the file where none has gone.")];
}

const short = (name) => (name.length > 15 ? `${name.slice(0, 14)}…` : name);

function item(list, source) {
  const state = stateOf(source);
  const since = state === "gone" ? ` since ${clock(source.since_s)}` : "";
  const rows = [
    html("h3", {}, source.name, " ", html("span", { class: "state" }, `${WORDS[state]}${since}`)),
    html("p", { class: "soft" }, state === "gone" ? source.reason : source.url),
  ];
  if (state !== "gone") rows.push(...running(list, source));
  return html("li", { "data-state": state }, ...rows);
}

function running(list, { blocks, devices, node }) {
  const rows = devices.flatMap(device);
  const budget = node?.budget_bytes;
  if (blocks.some(({ bytes }) => bytes)) rows.push(memory(blocks, budget));
  if (node && budget) {
    rows.push(html("p", { class: "soft" }, `${mebibytes(node.used_bytes)} of ${mebibytes(budget)}`));
  }
  rows.push(blocks.length
    ? html("ul", {}, ...blocks.slice(0, SHOWN).map(line))
    : html("p", {}, "no model of its own"));
  if (blocks.length > SHOWN) {
    const rest = blocks.slice(SHOWN);
    const waiting = rest.reduce((sum, one) => sum + one.waiting, 0);
    rows.push(html("p", { class: "soft" }, `and ${rest.length} more; ${waiting} wait there`));
  }
  for (const { name, step, done_bytes, total_bytes } of node?.moving ?? []) {
    const part = total_bytes ? `, ${percent(done_bytes / total_bytes)}` : "";
    rows.push(html("p", {}, `${name} is ${step}${part}`));
  }
  const lost = (node?.links ?? []).filter(({ alive }) => !alive).map(({ to }) => to);
  if (lost.length) rows.push(html("p", { class: "wrong" }, `no link to ${lost.join(", ")}`));
  if (node?.degraded) rows.push(html("p", { class: "wrong" }, node.degraded));
  return rows;
}

function line({ name, instances, healthy, bytes, waiting }) {
  const copies = healthy < instances ? ` (${healthy} of ${instances} healthy)`
    : instances > 1 ? ` × ${instances}` : "";
  return html("li", { class: healthy < instances ? "wrong" : "" },
    html("span", {}, `${name}${copies}`),
    html("span", {}, `${bytes ? `${mebibytes(bytes)}, ` : ""}${waiting} waiting`));
}

// A device that instances share: the part of its cores or accelerators that was busy.
function device({ name, slots, busy, waiting, load }) {
  const width = 240;
  const said = `${percent(load)} busy in the last minute; ${busy} of ${slots} now, ${waiting} wait`;
  return [
    html("p", { class: "device" }, `${name}: ${said}`),
    picture(width, 8, `Device ${name}: ${said}`,
      svg("rect", { class: "beyond", width, height: 8 }),
      svg("rect", { class: waiting ? "block busy" : "block", width: Math.min(1, load) * width, height: 8 })),
  ];
}

// The variants as blocks, as wide as the memory that they take, of the budget where there is one.
function memory(blocks, budget) {
  const width = 240;
  const total = budget ?? blocks.reduce((sum, { bytes }) => sum + bytes, 0);
  const x = linear([0, total], [0, width]);
  let from = 0;
  const parts = blocks.map(({ bytes, waiting }) => {
    const begin = from;
    from += bytes;
    return svg("rect", { class: waiting ? "block busy" : "block", x: x(begin), y: 0,
      width: Math.min(width, x(from)) - x(begin), height: 16 });
  });
  const name = `Memory by variant: ${blocks.map((one) => `${one.name} ${mebibytes(one.bytes)}`).join(", ")}`;
  return picture(width, 16, name, svg("rect", { class: "beyond", width, height: 16 }), ...parts);
}

function mebibytes(bytes) {
  return `${plain((bytes ?? 0) / 2 ** 20)} MiB`;
}
