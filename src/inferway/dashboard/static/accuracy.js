// What feedback and shadows say of each variant's accuracy, and what becomes of a canary.

import { digits, html, linear, percent, picture, svg } from "./draw.js";

const WIDTH = 150;
const HEIGHT = 18;
const STATES = { trying: "is tried", promoted: "is promoted", "taken-back": "is taken back" };

export function drawAccuracy(section, { view }) {
  const told = view.accuracy;
  section.hidden = told === null || !told.variants.length;
  if (section.hidden) return;
  section.querySelector(".of").textContent = `${view.task} at ${view.source}, by labels and `
    + "shadows since the last drift alarm of each variant";
  section.querySelector(".table").replaceChildren(table(told));
  section.querySelector(".canary").replaceChildren(...canary(told.canary));
}

function table({ variants, shadow }) {
  const head = ["variant", "by profile", "labels", "by labels", "95 % limits", "",
    ...(shadow ? ["compared", "agree", "by both", "95 % limits"] : []), "estimate", "drift"];
  const known = variants.filter(({ labels, mean }) => labels && mean !== null);
  const least = Math.min(1, ...known.map(({ low, profile }) => Math.min(low, profile ?? 1)));
  const x = linear([Math.min(least, 0.99), 1], [4, WIDTH - 4]);
  return html("table", {},
    html("caption", { class: "soft" }, "Variants, the fastest first; the mark is the profile"),
    html("thead", {}, html("tr", {}, ...head.map((one) => html("th", { scope: "col" }, one)))),
    html("tbody", {}, ...variants.map((one) => html("tr", {},
      html("th", { scope: "row" }, one.name),
      html("td", {}, digits(one.profile, 3)),
      html("td", {}, one.labels.toLocaleString("en")),
      html("td", { class: apart(one) ? "wrong" : "" }, digits(one.mean, 3)),
      html("td", {}, limits(one.mean, one.low, one.high)),
      html("td", {}, one.mean === null ? "" : interval(one, x)),
      ...(shadow ? [
        html("td", {}, one.compared.toLocaleString("en")),
        html("td", {}, one.agreement === null ? "–" : percent(one.agreement)),
        html("td", {}, one.compared ? digits(one.joint, 3) : "–"),
        html("td", {}, one.compared ? limits(one.joint, one.joint_low, one.joint_high) : "–"),
      ] : []),
      html("td", {}, digits(one.estimate, 3)),
      html("td", { class: one.alarm === null ? "words" : "words wrong" }, drift(one))))));
}

// Whether the profile lies outside of what labels allow.
function apart({ profile, mean, low, high }) {
  return mean !== null && profile !== null && (profile < low || profile > high);
}

function limits(mean, low, high) {
  return mean === null ? "–" : `${digits(low, 3)} to ${digits(high, 3)}`;
}

function drift({ alarms, alarm }) {
  if (alarm === null) return "–";
  const moment = new Date(alarm.at * 1000).toLocaleString("en-GB");
  const more = alarms > 1 ? `, alarm ${alarms}` : "";
  return `${digits(alarm.before, 3)} to ${digits(alarm.after, 3)} (${moment}${more})`;
}

// The interval by labels, their mean, and the profile as a mark across.
function interval({ name, profile, mean, low, high }, x) {
  const middle = HEIGHT / 2;
  const words = `${name}: ${digits(mean, 3)} by labels, ${limits(mean, low, high)}; by profile `
    + digits(profile, 3);
  return picture(WIDTH, HEIGHT, words,
    svg("line", { class: "axis", x1: x(low), x2: x(high), y1: middle, y2: middle }),
    svg("circle", { class: "dot", cx: x(mean), cy: middle, r: 4 }),
    profile === null ? null
      : svg("line", { class: "tick", x1: x(profile), x2: x(profile), y1: 2, y2: HEIGHT - 2 }));
}

function canary(told) {
  if (!told) return [];
  const { variant, share, labels, at_least: least, state, reason, requests } = told;
  const terms = `it gets ${percent(share)} of the requests until ${labels.toLocaleString("en")} `
    + `labels say whether it is right in ${digits(least, 3)} of its answers or more`;
  return [html("strong", {}, `${variant} ${STATES[state] ?? state}`),
    state === "trying" ? ` as a canary: ${terms}; ` : `: ${reason}; as a canary it was given `,
    `${requests.toLocaleString("en")} ${requests === 1 ? "request" : "requests"}`,
    state === "trying" ? " so far." : "."];
}
