// A change of what is in force: shown as a difference first, and made only when that is confirmed.

import { posted } from "./ask.js";
import { html } from "./draw.js";

const WORDS = ["target", "policy"];

export function offerChange(section, view, question, done) {
  const dialog = section.querySelector("dialog");
  const change = Object.fromEntries(WORDS.filter((word) => word in question)
    .map((word) => [word, question[word]]));
  const others = ["rate", "instances", "lost"].some((word) => word in question);
  const close = html("button", { type: "button" }, "Cancel");
  close.addEventListener("click", () => dialog.close());
  const title = html("h3", { id: "change-title" }, `Change ${view.task} at ${view.source}`);
  if (!Object.keys(change).length) {
    close.textContent = "Close";
    dialog.replaceChildren(title, html("p", {},
      "Only another target or policy can be applied from here, and neither is chosen."), close);
    dialog.showModal();
    return;
  }
  const key = html("input", { type: "password", autocomplete: "off", required: "", name: "key" });
  const show = html("button", { type: "submit" }, "Show what would change");
  const said = html("p", { role: "status" });
  const box = html("div", { class: "difference" });
  const confirm = html("button", { type: "button", class: "strong", hidden: "" }, "Apply this");
  const form = html("form", {},
    html("label", {}, "A key of the server with the role admin, for this change alone", key), show);
  const send = (dry) => posted("/apply", { server: view.url, with: change, dry_run: dry },
    { headers: { Authorization: `Bearer ${key.value.trim()}` } });
  const say = (words, wrong) => {
    said.classList.toggle("wrong", Boolean(wrong));
    said.textContent = words;
  };
  const busy = (is) => {
    for (const one of [show, confirm]) one.disabled = is;
  };
  key.addEventListener("input", () => {
    confirm.hidden = true; // another key has to be shown to be one
  });
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    busy(true);
    say("Asking the server.");
    const { told, wrong } = await send(true);
    busy(false);
    box.replaceChildren();
    confirm.hidden = true;
    if (wrong) {
      say(`${wrong}.`, true);
      return;
    }
    box.replaceChildren(difference(told.difference));
    confirm.hidden = !told.difference.length;
    say(told.difference.length ? "Nothing is changed yet." : "Nothing would change.");
    if (told.difference.length) confirm.focus();
  });
  confirm.addEventListener("click", async () => {
    busy(true);
    say("The server loads what is new.");
    const { wrong } = await send(false);
    busy(false);
    if (wrong) {
      say(`${wrong}.`, true);
      return;
    }
    confirm.hidden = true;
    form.hidden = true;
    key.value = "";
    close.textContent = "Close";
    say("It is in force now.");
    close.focus();
    done();
  });
  dialog.onclose = () => {
    key.value = "";
    dialog.replaceChildren();
  };
  dialog.replaceChildren(title,
    ...(others ? [html("p", { class: "note" },
      "Rate, instances and a lost node are for the twin alone: of the setting, target and policy are applied.")] : []),
    form, box, said, html("div", { class: "buttons" }, confirm, close));
  dialog.showModal();
  key.focus();
}

function difference(fields) {
  const shown = (one, when) => (one.hidden ? "hidden"
    : one[when] === null ? "nothing" : typeof one[when] === "string" ? one[when] : JSON.stringify(one[when]));
  return html("table", {},
    html("caption", { class: "soft" }, "What would change, for every task of the server"),
    html("thead", {}, html("tr", {},
      ...["field", "in force", "then"].map((one) => html("th", { scope: "col" }, one)))),
    html("tbody", {}, ...fields.map((one) => html("tr", {},
      html("th", { scope: "row" }, one.field),
      html("td", {}, shown(one, "before")),
      html("td", {}, shown(one, "after"))))));
}
