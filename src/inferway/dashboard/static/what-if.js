// What another setting would have done to the last minutes: sliders, and the twin's answer.

import { answered, posted } from "./ask.js";
import { offerChange } from "./change.js";
import { digits, html, plain } from "./draw.js";
import { drawReplay, sentence } from "./replay.js";

const PAUSE_MS = 300;
const STEPS = 4; // of the rate's slider to a doubling
const PAGE = `${Math.random()}${performance.now()}`;

let shown = null;
let choices = null;
let controls = [];
let last = null;
let width = 0;
let waiting = null;
let asking = null;

const keyOf = ({ url, task }) => `${url} ${task}`;

export function drawWhatIf(section, { view }, twin) {
  tellTwin(section, twin);
  if (last && section.clientWidth !== width) redraw(section);
  if (shown === keyOf(view)) {
    for (const one of controls) one.renew?.(view);
    return;
  }
  shown = keyOf(view);
  last = null;
  asking?.abort();
  section.querySelector(".of").textContent = `${view.task} at ${view.source}`;
  section.querySelector(".result").replaceChildren();
  section.querySelector(".summary").textContent = "";
  prepare(section, view);
}

function tellTwin(section, { state, words, done, of, for_s: seconds }) {
  const line = section.querySelector(".twin");
  const text = {
    off: "The twin is not running.",
    starting: `The twin is getting ready: ${done} of ${of} tasks.`,
    compiling: `The twin is ${words}, ${Math.round(seconds)} s so far.`,
    busy: `The twin is ${words}.`,
    ready: asking ? "Asking the twin." : "The twin is ready.",
  }[state] ?? "";
  line.dataset.state = state;
  const bar = line.querySelector("progress");
  bar.hidden = state === "ready" || state === "off";
  if (of > 1 && done < of) {
    bar.max = of;
    bar.value = done;
  } else bar.removeAttribute("value");
  // Seconds that pass are not said aloud each time.
  const heard = line.querySelector("[role=status]");
  const short = { ready: "ready", off: "off" }[state] ?? "getting ready";
  if (heard.dataset.said !== short) {
    heard.dataset.said = short;
    heard.textContent = `The twin is ${short}.`;
  }
  line.querySelector(".words").textContent = text;
}

async function prepare(section, view) {
  const form = section.querySelector("form");
  form.replaceChildren(html("p", { class: "note" }, "Asking what is in force."));
  controls = [];
  const asked = new URLSearchParams({ server: view.url, task: view.task });
  const { told, wrong } = await answered(`/what-if?${asked}`);
  if (shown !== keyOf(view)) return;
  if (wrong) {
    const again = html("button", { type: "button" }, "Ask again");
    again.addEventListener("click", () => prepare(section, view));
    form.replaceChildren(html("p", { class: "note" }, `${wrong}.`), again);
    return;
  }
  choices = told;
  controls = made(view, told);
  const replay = html("button", { type: "submit" }, "Replay the last minutes");
  const back = html("button", { type: "button" }, "As it is");
  const copy = html("button", { type: "button" }, "Copy as deployment file");
  const change = html("button", { type: "button" }, "Apply\u2026");
  back.addEventListener("click", () => {
    for (const one of controls) one.reset();
    ask(section, view);
  });
  copy.addEventListener("click", () => copyFile(section, view));
  change.addEventListener("click", () => offerChange(section, view, question(view), () => prepare(section, view)));
  change.hidden = Boolean(told.node); // a node runs what its file says
  form.replaceChildren(...controls.map(({ field }) => field),
    html("div", { class: "buttons" }, replay, back, copy, change));
  form.oninput = () => {
    for (const one of controls) one.tell();
    clearTimeout(waiting);
    waiting = setTimeout(() => ask(section, view), PAUSE_MS);
  };
  form.onsubmit = (event) => {
    event.preventDefault();
    clearTimeout(waiting);
    ask(section, view);
  };
}

function made(view, told) {
  const found = [slider({
    key: "rate",
    label: "Rate",
    range: [-2 * STEPS, 2 * STEPS, 1],
    begin: 0,
    words: (value, now) => {
      const factor = 2 ** (value / STEPS);
      const rate = `${plain(factor * now.rate_per_s)} a second`;
      return factor === 1 ? `as it is, ${rate}` : `${digits(factor, 3)} times, ${rate}`;
    },
    value: (number) => 2 ** (number / STEPS),
  }, view)];
  if (told.target !== null && told.most_accuracy > told.least_accuracy) {
    const step = 0.0005;
    found.push(slider({
      key: "target",
      label: "Target",
      range: [Math.ceil(told.least_accuracy / step) * step,
        Math.floor(told.most_accuracy / step) * step, step],
      begin: told.target,
      words: (value) => digits(value, 4),
      value: (number) => Number(number.toFixed(4)),
    }, view));
  }
  found.push(select("policy", "Policy", told.policies, told.policy));
  const own = told.classes.filter(({ here }) => here);
  for (const { name, instances } of told.node ? [] : own) {
    found.push(slider({
      key: name,
      of: "instances",
      label: `Instances of ${name}`,
      range: [0, Math.max(4, 2 * instances), 1],
      begin: instances,
      words: (value) => String(value),
      value: (number) => number,
    }, view));
  }
  if (told.nodes.length) found.push(select("lost", "A lost node", ["", ...told.nodes], ""));
  return found;
}

function slider({ key, of, label, range: [min, max, step], begin, words, value }, view) {
  const id = `what-if-${of ?? ""}${key}`;
  const input = html("input", { type: "range", id, min, max, step, value: begin });
  const output = html("output", { for: id, "aria-hidden": "true" });
  let now = view;
  const tell = () => {
    const text = words(Number(input.value), now);
    if (output.textContent === text) return;
    output.textContent = text;
    input.setAttribute("aria-valuetext", text);
  };
  tell();
  // A target that is no step of the slider is not a change.
  const start = input.value;
  return {
    key,
    of,
    field: html("div", { class: "field" }, html("label", { for: id }, label), output, input),
    changed: () => input.value !== start,
    value: () => value(Number(input.value)),
    reset: () => {
      input.value = start;
      tell();
    },
    renew: (view) => {
      now = view;
      tell();
    },
    tell,
  };
}

function select(key, label, names, begin) {
  const options = names.map((name) => html("option", { value: name }, name || "none"));
  const id = `what-if-${key}`;
  const input = html("select", { id }, ...options);
  input.value = begin;
  return {
    key,
    field: html("div", { class: "field" }, html("label", { for: id }, label), input),
    changed: () => input.value !== begin,
    value: () => input.value,
    reset: () => {
      input.value = begin;
    },
    tell: () => {},
  };
}

function question(view) {
  const found = { server: view.url, task: view.task };
  for (const one of controls.filter((one) => one.changed())) {
    if (one.of) found[one.of] = { ...found[one.of], [one.key]: one.value() };
    else found[one.key] = one.value();
  }
  return found;
}

async function ask(section, view) {
  asking?.abort();
  const mine = new AbortController();
  asking = mine;
  const box = section.querySelector(".result");
  box.setAttribute("aria-busy", "true");
  const { told, wrong, aborted } = await posted("/what-if", question(view),
    { signal: mine.signal, headers: { "Inferway-Page": PAGE } });
  if (aborted || asking !== mine || shown !== keyOf(view)) return;
  asking = null;
  box.removeAttribute("aria-busy");
  const summary = section.querySelector(".summary");
  summary.classList.toggle("wrong", Boolean(wrong));
  if (wrong) {
    summary.textContent = `${wrong}.`;
    return;
  }
  last = told;
  summary.textContent = sentence(told);
  redraw(section);
}

function redraw(section) {
  width = section.clientWidth;
  drawReplay(section.querySelector(".result"), last);
}

async function copyFile(section, view) {
  const { told, wrong } = await posted("/what-if/file", question(view));
  if (shown !== keyOf(view)) return;
  const summary = section.querySelector(".summary");
  summary.classList.toggle("wrong", Boolean(wrong));
  if (wrong) {
    summary.textContent = `${wrong}.`;
    return;
  }
  const text = html("textarea", { readonly: "", rows: 14, spellcheck: "false",
    "aria-label": "Deployment file" });
  text.value = told.text;
  const box = section.querySelector(".file");
  box.replaceChildren(text);
  let copied = true;
  try {
    await navigator.clipboard.writeText(told.text);
  } catch { // browsers give it to pages of this machine, or with TLS
    copied = false;
    text.focus();
    text.select();
  }
  summary.textContent = copied ? "The file below is copied." : "Copy the file below, which is selected.";
}
