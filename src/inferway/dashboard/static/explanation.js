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
    ...settled(told.settle),
    html("p", { class: "note" }, "A point's price is what the time between a variant and the chosen "
      + "one comes to for each point (0.01) of accuracy between them, at the predicted times."),
  ];
}

// The second decision, on the first answer: it is accepted, or another variant is asked.
function settled(made) {
  if (!made) return [];
  const points = (gain) => gain * 100;
  const worth = (gain) => (made.price_ms === null ? null : points(gain) * made.price_ms);
  const gains = Object.entries(made.gains).sort(([, a], [, b]) => b - a);
  const asked = made.asked !== null && made.asked in made.gains ? made.gains[made.asked] : null;
  const best = gains.length ? gains[0] : null;
  const sure = made.confidence === null ? "" : ` with a confidence of ${digits(made.confidence, 4)}`;
  const priced = made.price_ms === null ? "" : ` A point of accuracy cost ${milliseconds(made.price_ms)} then.`;
  const sentence = made.accepted
    ? `It was accepted${best && best[1] > 0 ? `: ${best[0]}, which was to gain most, was to gain `
      + `${plain(points(best[1]))} points` : ""}.`
    : `${made.asked} was asked as well${asked === null ? "" : `, which was to gain ${plain(points(asked))} `
      + "points"}, in ${milliseconds(made.predicted_ms)}.`
      + `${made.sent === made.asked ? "" : ` The answer of ${made.first} was sent, as the second was not there in time.`}`;
  const head = ["gain, points", "worth", "decision"];
  return [
    html("h3", {}, "Then: accept the answer, or ask again"),
    html("p", {}, `${made.first} answered${sure}, and was expected to be right with `
      + `${digits(made.expected_accuracy, 4)}. ${sentence}${priced}`),
    ...(gains.length ? [html("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Second variants" },
      html("table", {},
        html("caption", { class: "soft" }, "What a second answer was expected to gain, and was worth"),
        html("thead", {}, html("tr", {}, html("th", { scope: "col" }, "variant"),
          ...head.map((one) => html("th", { scope: "col" }, one)))),
        html("tbody", {}, ...gains.map(([name, gain]) =>
          html("tr", { class: name === made.asked ? "chosen" : "" },
            html("th", { scope: "row" }, name),
            html("td", {}, gain > 0 ? plain(points(gain)) : "none"),
            html("td", {}, gain > 0 ? milliseconds(worth(gain)) : "–"),
            html("td", {}, name === made.asked ? "asked" : ""))))))] : []),
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
