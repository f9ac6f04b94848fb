// The last decisions, the surprising first; each opens its explanation as a table.

import { html, plain } from "./draw.js";
import { explained, milliseconds } from "./explanation.js";

export function drawDecisions(section, { view }) {
  section.querySelector(".of").textContent =
    `${view.task} at ${view.source}, of the last 512 requests`;
  const box = section.querySelector(".table");
  // Whoever is about to press something keeps it where it is.
  if (box.contains(document.activeElement) && document.activeElement !== box) return;
  if (box.matches(":hover")) return;
  if (!view.decisions.length) {
    box.replaceChildren(html("p", { class: "note" }, "No request has been decided yet."));
    return;
  }
  const head = ["ended", "ago", "variant", "predicted", "took", "why it stands here"];
  box.replaceChildren(html("table", {},
    html("thead", {}, html("tr", {}, html("th", { scope: "col" }, "request"),
      ...head.map((one) => html("th", { scope: "col" }, one)))),
    html("tbody", {}, ...view.decisions.map((one) => row(section, view, one)))));
}

function row(section, view, one) {
  const open = html("button", { type: "button", "aria-label": `Explain request ${one.id}` },
    one.id.slice(-8));
  open.addEventListener("click", () => explain(section, view, one.id));
  const wrong = one.late || !["answered", "canceled"].includes(one.outcome);
  return html("tr", {},
    html("th", { scope: "row" }, open),
    html("td", { class: wrong ? "wrong" : "" }, one.late ? "late" : one.outcome),
    html("td", {}, `${plain(one.ago_ms / 1000)} s`),
    html("td", {}, one.escalated_from ? `${one.escalated_from} → ${one.variant}` : one.variant ?? "–"),
    html("td", {}, milliseconds(one.predicted_latency_ms)),
    html("td", {}, milliseconds(one.latency_ms)),
    html("td", {}, one.surprise));
}

async function explain(section, view, request) {
  const box = section.querySelector(".explanation");
  const asked = new URLSearchParams({ server: view.url, task: view.task, request });
  const answer = await fetch(`/explanation?${asked}`);
  const told = await answer.json();
  if (!answer.ok) {
    box.replaceChildren(html("p", { class: "note" }, told.error));
    return;
  }
  box.replaceChildren(...explained(told));
}
