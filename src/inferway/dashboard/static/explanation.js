// Why a request was answered as it was: its candidates, and what would have chosen another.

import { digits, html, percent, plain, signed } from "./draw.js";

export const milliseconds = (value) =>
  (value === null || value === undefined ? "–" : `${plain(value)} ms`);

const total = (one) => one.predicted_wait_ms + one.predicted_service_ms;
const chance = (one) => one.probability && one.probability.reduce((a, b) => a + b, 0);

const begun = (sentence) => sentence[0].toUpperCase() + sentence.slice(1);

export function explained(told) {
  const head = ["accuracy", "idle", "waiting", "wait", "service", "a point's price"];
  const balance = told.balance_before === null || told.accuracy_target === null ? ""
    : ` The balance went from ${signed(told.balance_before)} to ${signed(told.balance_after)}.`;
  const chosen = told.candidates.find((one) => one.chosen);
  return [
    html("h3", {}, `Why request ${told.id} was ${told.outcome}`),
    html("p", {}, `${begun(told.reason || "no reason is known")}.${balance}`),
    html("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Candidates" },
      html("table", {},
        html("caption", { class: "soft" }, "Candidates as the policy saw them, with predicted times"),
        html("thead", {}, html("tr", {}, html("th", { scope: "col" }, "variant"),
          ...head.map((one) => html("th", { scope: "col" }, one)),
          html("th", { scope: "col", class: "words" }, "what would have chosen it"))),
        html("tbody", {}, ...told.candidates.map((one) => row(one, chosen, told))))),
    html("p", { class: "note" }, "A point's price is what the time between a variant and the chosen "
      + "one comes to for each point (0.01) of accuracy between them, at the predicted times."),
  ];
}

function row(one, chosen, told) {
  const price = priceOf(one, chosen);
  return html("tr", { class: one.chosen ? "chosen" : "" },
    html("th", { scope: "row" }, one.chosen ? `${one.variant} (chosen)` : one.variant),
    html("td", {}, digits(one.accuracy, 3)),
    html("td", {}, `${one.idle} of ${one.instances}`),
    html("td", {}, String(one.queue.reduce((a, b) => a + b, 0))),
    html("td", {}, milliseconds(one.predicted_wait_ms)),
    html("td", {}, milliseconds(one.predicted_service_ms)),
    html("td", {}, milliseconds(price)),
    html("td", { class: "words" }, one.chosen
      ? one.in_time ? "" : "chosen, though it would be late" : changed(one, chosen, price, told)));
}

// Milliseconds for a point of accuracy; null where one of the two is better in both, or unknown.
function priceOf(one, chosen) {
  if (!chosen || one === chosen || one.accuracy === null || chosen.accuracy === null) return null;
  const points = (one.accuracy - chosen.accuracy) * 100;
  const price = (total(one) - total(chosen)) / points;
  return points && price > 0 ? price : null;
}

// What would have had to be otherwise, as far as the candidates tell.
function changed(one, chosen, price, told) {
  if (!one.healthy) return "a healthy instance";
  if (told.pinned) return `a request that is pinned to ${one.variant}`;
  if (!one.allowed) {
    return told.accuracy_floor > (one.accuracy ?? 0)
      ? `an accuracy floor of ${digits(one.accuracy, 3)} at most` : "a request that allows it";
  }
  if (!one.in_time) return `a deadline of more than ${milliseconds(total(one))}`;
  if (one.full === one.instances) return "a free place in its queue";
  if (chance(one) !== null) return `another draw: its probability was ${percent(chance(one))}`;
  if (!chosen) return "room at the time";
  if (price !== null) {
    const more = one.accuracy > chosen.accuracy ? "more" : "less";
    return `a point of accuracy worth ${more} than ${milliseconds(price)}`;
  }
  if (total(one) > total(chosen)) {
    return `an answer sooner by ${milliseconds(total(one) - total(chosen))}`;
  }
  return "a policy that goes by these times alone";
}
