// What comes from the page's server, and who draws it.

import { drawAccuracy } from "./accuracy.js";
import { drawAnswers } from "./answers.js";
import { drawDecisions } from "./decisions.js";
import { clock } from "./draw.js";
import { drawLatency } from "./latency.js";
import { drawMap } from "./map.js";
import { drawPromises } from "./promise.js";
import { drawTrial } from "./trial.js";
import { drawWhatIf } from "./what-if.js";

const SAMPLES = 900;
const SHORT = 3;
const WORST = ["gone", "missed", "at-risk", "unknown", "kept", "none"];

const QUIET_MS = 5000;

const tasks = new Map();
let sources = [];
let selected = named(location.hash.slice(1));
let chosen = selected !== null;
let doing = "";
let twin = { state: "off" };
let quiet = null;
let drawn = null;

function named(hash) {
  try {
    return decodeURIComponent(hash) || null;
  } catch {
    return null; // somebody has written it by hand
  }
}

function take(message) {
  ({ sources, doing, twin } = message);
  const there = new Set(message.tasks.map(({ key }) => key));
  for (const key of tasks.keys()) if (!there.has(key)) tasks.delete(key);
  for (const { key, series, ...view } of message.tasks) {
    const before = tasks.get(key);
    const whole = message.whole || !before;
    tasks.delete(key); // so that they stand as the message has them
    tasks.set(key, { view, series: whole ? series : joined(before.series, series) });
  }
  if (!tasks.has(selected)) [selected, chosen] = [tasks.keys().next().value ?? null, false];
  if (!chosen && !asked(selected)) selected = [...tasks.keys()].find(asked) ?? selected;
  say("live", `live, ${clock(message.now_s)}`);
  clearTimeout(quiet);
  quiet = setTimeout(() => say("lost", "nothing new from the page's server"), QUIET_MS);
  schedule();
}

// Whether somebody asks a task at present: where nobody has chosen one, that is what is shown.
function asked(key) {
  const task = tasks.get(key);
  return Boolean(task && !task.view.ended && task.series.arrivals.slice(-SHORT).some(Boolean));
}

function joined(before, more) {
  const begin = more.times.findIndex((moment) => moment > (before.times.at(-1) ?? 0));
  if (begin < 0) return before;
  const fresh = more.times.length - begin;
  const appended = (old, key, source) =>
    [...(old ?? Array(before.times.length).fill(null)),
      ...(source ?? Array(more.times.length).fill(null)).slice(begin)].slice(-SAMPLES);
  const series = { variants: {} };
  for (const key of Object.keys(more)) {
    if (key !== "variants") series[key] = appended(before[key], key, more[key]);
  }
  for (const name of new Set([...Object.keys(before.variants), ...Object.keys(more.variants)])) {
    series.variants[name] = appended(before.variants[name], name, more.variants[name]);
  }
  return fresh ? series : before;
}

function say(state, words) {
  const link = document.getElementById("link");
  link.dataset.state = state;
  link.textContent = words;
}

function schedule() {
  drawn ??= requestAnimationFrame(() => {
    drawn = null;
    draw();
  });
}

function draw() {
  drawPromises(document.getElementById("strips"), tasks, selected, select, doing);
  drawMap(document.getElementById("nodes"), sources);
  const views = [...tasks.values()].map(({ view }) => view);
  const running = views.filter(({ ended }) => !ended);
  const states = (running.length ? running : views).map(({ promise }) => promise);
  const worst = WORST.map((state) => states.find((one) => one.state === state)).find(Boolean);
  const gone = sources.filter(({ state }) => state === "gone").length;
  const words = [
    doing,
    worst && (tasks.size > 1 ? `${tasks.size} tasks; the worst: ${worst.verdict}` : worst.verdict),
    gone ? `${gone} of ${sources.length} servers gone`
      : sources.length && `${sources.length} server${sources.length > 1 ? "s" : ""}`,
  ].filter(Boolean).join("; ");
  const overall = document.getElementById("overall");
  if (overall.textContent !== words) overall.textContent = words;
  document.title = worst ? `${worst.verdict} – Inferway` : "Inferway";
  const task = tasks.get(selected);
  if (!task || !task.series.times.length) return;
  drawLatency(document.getElementById("latency"), task);
  drawAnswers(document.getElementById("answers"), task);
  drawAccuracy(document.getElementById("accuracy"), task);
  drawDecisions(document.getElementById("decisions"), task);
  // A server that has ended can be asked nothing.
  const ended = task.view.ended;
  for (const id of ["trial", "what-if"]) document.getElementById(id).hidden = ended;
  if (ended) return;
  drawTrial(document.getElementById("trial"), task);
  drawWhatIf(document.getElementById("what-if"), task, twin);
}

function select(key) {
  [selected, chosen] = [key, true];
  history.replaceState(null, "", `#${encodeURIComponent(key)}`);
  schedule();
}

const events = new EventSource("/events");
events.onmessage = ({ data }) => take(JSON.parse(data));
events.onerror = () => say("lost", "no connection to the page's server; trying again");
new ResizeObserver(schedule).observe(document.querySelector("main"));
