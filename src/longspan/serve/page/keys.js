// Keyboard shortcuts, and the dialog that lists them. Letters work outside of fields and can be turned off.

import { ask, byId, el } from "./dom.js";
import { set, setting } from "./kept.js";

const MOVES = [
  ["Enter", "in the question: ask (Shift + Enter: a new line)"],
  ["← → Home End", "in an answer: its tokens; in the bar: the place"],
  ["↑ ↓", "in a list: the next one"],
  ["F2, Delete", "on a document: rename it, delete it"],
];

/** `shortcuts`: [key, what it does, () => ...]. */
export function listen(shortcuts) {
  const letters = byId("letters");
  letters.checked = setting("letters", "on") === "on";
  letters.addEventListener("change", () => set("letters", letters.checked ? "on" : "off"));
  const all = [...shortcuts, ["?", "these keys", help]];
  const named = (key) => key.split(/[ ,]+/).flatMap((name, n) => [...(n ? [" "] : []), el("kbd", { text: name })]);
  for (const [key, says] of [...all, ...MOVES])
    byId("keys").append(el("div", {}, el("dt", {}, ...named(key)), el("dd", { text: says })));
  byId("help").addEventListener("click", help);

  document.addEventListener("keydown", (event) => {
    if (event.altKey || event.ctrlKey || event.metaKey || document.querySelector("dialog[open]")) return;
    if (event.key !== "Escape" && (!letters.checked || event.target.matches("input, textarea"))) return;
    const found = all.find(([key]) => key === (event.key === "Escape" ? "Esc" : event.key));
    if (!found) return;
    event.preventDefault();
    found[2]();
  });
}

function help() {
  ask(byId("help-dialog"));
}
