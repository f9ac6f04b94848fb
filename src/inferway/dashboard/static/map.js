// Servers and nodes: who answers, who is gone, what runs where.

import { clock, html, plain } from "./draw.js";

const WORDS = { answers: "answers", gone: "gone", asked: "asked", starting: "not ready" };

export function drawMap(list, sources) {
  list.replaceChildren(...sources.map(item));
}

function item(source) {
  const state = source.state === "answers" && !source.ready ? "starting" : source.state;
  const since = state === "gone" ? ` since ${clock(source.since_s)}` : "";
  const rows = [
    html("h3", {}, source.name, " ", html("span", { class: "state" }, `${WORDS[state]}${since}`)),
    html("p", { class: "soft" }, state === "gone" ? source.reason : source.url),
  ];
  const { node } = source;
  if (node && state !== "gone") {
    const running = Object.entries(node.running).map(([name, copies]) => `${copies} ${name}`);
    rows.push(html("p", {}, running.join(", ") || "no model of its own"));
    if (node.budget_bytes) {
      const used = plain(node.used_bytes / 2 ** 20);
      rows.push(html("p", { class: "soft" }, `${used} of ${plain(node.budget_bytes / 2 ** 20)} MiB`));
    }
    const lost = node.neighbors.filter((name) => !node.alive.includes(name));
    if (node.neighbors.length) {
      rows.push(html("p", { class: lost.length ? "wrong" : "soft" },
        lost.length ? `no link to ${lost.join(", ")}` : `linked to ${node.neighbors.join(", ")}`));
    }
    if (node.degraded) rows.push(html("p", { class: "wrong" }, node.degraded));
  }
  return html("li", { "data-state": state }, ...rows);
}
