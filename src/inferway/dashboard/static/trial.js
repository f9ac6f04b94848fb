// Sends one request: an image of a digit, or the inputs as JSON, and shows what became of it.

import { answered, posted } from "./ask.js";
import { html, linear, numbers, percent, picture, room, svg } from "./draw.js";
import { explained, milliseconds } from "./explanation.js";

const CLASSES = 10;

let shown = null;

const keyOf = ({ url, task }) => `${url} ${task}`;

export function drawTrial(section, { view }) {
  if (shown === keyOf(view)) return;
  shown = keyOf(view);
  section.querySelector(".of").textContent = `${view.task} at ${view.source}`;
  section.querySelector(".result").replaceChildren();
  prepare(section, view);
}

async function prepare(section, view) {
  const form = section.querySelector("form");
  form.replaceChildren(html("p", { class: "note" }, "Asking what it takes."));
  const asked = new URLSearchParams({ server: view.url, task: view.task });
  const { told, wrong } = await answered(`/trial?${asked}`);
  if (shown !== keyOf(view)) return;
  if (wrong) {
    const again = html("button", { type: "button" }, "Ask again");
    again.addEventListener("click", () => prepare(section, view));
    form.replaceChildren(html("p", { class: "note" }, `${wrong}.`), again);
    return;
  }
  const { fields, inputs } = told.digits ? digitForm(told) : plainForm(told);
  const send = html("button", { type: "submit" }, "Send");
  form.replaceChildren(...fields, send);
  form.onsubmit = async (event) => {
    event.preventDefault();
    send.disabled = true;
    await deliver(section, view, inputs);
    send.disabled = false;
  };
}

async function deliver(section, view, inputs) {
  const box = section.querySelector(".result");
  const say = (sentence) => box.replaceChildren(html("p", { class: "wrong" }, sentence));
  let given;
  try {
    given = inputs();
  } catch (error) {
    say(`These inputs are no JSON: ${error.message}.`);
    return;
  }
  const { told, wrong } = await posted("/trial", { server: view.url, task: view.task, ...given });
  if (shown !== keyOf(view)) return;
  if (wrong) say(`${wrong}.`);
  else show(box, told);
}

function plainForm({ inputs }) {
  const takes = inputs.map(({ name, datatype, shape }) => `${name}: ${datatype} [${shape.join(", ")}]`);
  const text = html("textarea", { spellcheck: "false", placeholder: '{"NAME": [1, 2, 3]}' });
  return {
    fields: [
      html("p", { class: "note" }, `One row of ${takes.join("; ")}.`),
      html("label", { class: "wide" }, "Inputs as JSON; what is left out is zeros", text),
    ],
    inputs: () => ({ inputs: text.value.trim() ? JSON.parse(text.value) : {} }),
  };
}

function digitForm({ inputs, digits }) {
  const number = html("input", { type: "number", min: 0, max: digits - 1, step: 1, required: "" });
  const other = html("button", { type: "button" }, "Another");
  const clear = html("button", { type: "button" }, "Draw one");
  const what = html("p", { class: "note", role: "status" });
  const board = makeBoard(() => {
    what.textContent = "What you draw is sent.";
  });
  let taken = 0;
  const take = async () => {
    const turn = (taken += 1);
    const asked = number.value; // another may be typed before the answer
    const { told, wrong } = await answered(`/trial/digit?number=${asked}`);
    if (turn !== taken) return;
    if (wrong) {
      what.textContent = `${wrong}.`;
      return;
    }
    board.paint(told.pixels);
    board.canvas.setAttribute("aria-label", `Image ${asked} of the test set, a ${told.label}`);
    what.textContent = `Image ${asked} of the test set, a ${told.label}. Or draw over it.`;
  };
  const random = () => {
    number.value = Math.floor(Math.random() * digits);
    take();
  };
  number.addEventListener("change", take);
  other.addEventListener("click", random);
  clear.addEventListener("click", () => {
    taken += 1;
    board.clear();
  });
  random();
  return {
    fields: [
      board.canvas,
      html("label", {}, `Image, 0 to ${digits - 1}`, number),
      other,
      clear,
      what,
    ],
    inputs: () => (board.drawn() ? { inputs: { [inputs[0].name]: board.values() } }
      : { digit: Number(number.value) }),
  };
}

// A square of pixels that can be painted with the pointer, white on black.
function makeBoard(changed) {
  const side = 32;
  const canvas = html("canvas", { width: side, height: side, role: "img", "aria-label": "Image" });
  const context = canvas.getContext("2d", { willReadFrequently: true });
  const pixels = new Float32Array(side * side);
  let drawn = false;
  const draw = () => {
    const image = context.createImageData(side, side);
    pixels.forEach((value, i) => {
      image.data.set([value * 255, value * 255, value * 255, 255], i * 4);
    });
    context.putImageData(image, 0, 0);
  };
  const begun = () => {
    drawn = true;
    canvas.setAttribute("aria-label", "An image that is drawn");
    changed();
  };
  const stroke = (event) => {
    const box = canvas.getBoundingClientRect();
    const [x, y] = [((event.clientX - box.left) / box.width) * side,
      ((event.clientY - box.top) / box.height) * side];
    for (let i = 0; i < pixels.length; i += 1) {
      const away = Math.hypot((i % side) + 0.5 - x, Math.floor(i / side) + 0.5 - y);
      pixels[i] = Math.max(pixels[i], Math.min(1, 2.2 - away));
    }
    draw();
  };
  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    if (!drawn) begun();
    stroke(event);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (event.buttons) stroke(event);
  });
  draw();
  return {
    canvas,
    drawn: () => drawn,
    values: () => Array.from(pixels, (value) => Math.round(value * 1000) / 1000),
    paint: (bytes) => {
      drawn = false;
      bytes.forEach((value, i) => {
        pixels[i] = value / 255;
      });
      draw();
    },
    clear: () => {
      pixels.fill(0);
      draw();
      begun();
    },
  };
}

function show(box, told) {
  const list = html("dl", { class: "numbers" });
  const [first] = told.outputs;
  const scores = first && first.values > 1 && first.values === first.shape.at(-1)
    && first.data.every((value) => typeof value === "number") ? first.data.slice() : null;
  const best = scores ? scores.indexOf(Math.max(...scores)) : null;
  const right = told.label === null || best === null ? ""
    : best === told.label ? "right" : `wrong: it is a ${told.label}`;
  numbers(list, [
    ["answer", told.error ? "none" : best ?? "see below", right],
    ["decision", told.variant ?? "–"],
    ["response time", milliseconds(told.latency_ms)],
    ["predicted", milliseconds(told.predicted_latency_ms)],
    ["with the way there", milliseconds(told.round_trip_ms)],
  ]);
  box.replaceChildren(
    ...(told.error ? [html("p", { class: "wrong" }, `${told.error}.`)] : []), list,
    ...(scores && scores.length === CLASSES ? [bars(box, scores, best)] : told.outputs.map(output)),
    ...(told.explanation ? explained(told.explanation) : []));
}

function output(one) {
  const more = one.values > one.data.length ? `, the first ${one.data.length} of ${one.values}` : "";
  return html("div", {},
    html("h3", {}, `${one.name}: ${one.datatype} [${one.shape.join(", ")}]${more}`),
    html("pre", { tabindex: 0 }, JSON.stringify(one.data)));
}

function bars(box, scores, best) {
  const width = Math.min(480, room(box));
  const height = 110;
  const step = width / scores.length;
  const y = linear([0, Math.max(...scores, 1e-9)], [height - 22, 18]);
  const name = `The answer's scores: ${scores.map((one, i) => `${i} ${percent(one)}`).join(", ")}`;
  return html("figure", {}, picture(width, height, name, ...scores.flatMap((one, i) => [
    svg("rect", { class: i === best ? "top" : "other", x: i * step + 3, width: step - 6,
      y: y(Math.max(0, one)), height: height - 22 - y(Math.max(0, one)) }),
    svg("text", { class: i === best ? "strong" : "", x: (i + 0.5) * step, y: height - 5,
      "text-anchor": "middle" }, String(i)),
    i === best ? svg("text", { class: "strong", x: (i + 0.5) * step, y: y(one) - 5,
      "text-anchor": "middle" }, percent(one)) : null,
  ])));
}
