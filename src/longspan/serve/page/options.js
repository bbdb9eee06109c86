// How answers are written: the fields below the question, kept in this browser.

import { byId } from "./dom.js";
import { set, setting } from "./kept.js";

const NAMES = ["most", "temperature", "top-p", "seed", "stops", "system"];
const number = (name) => (byId(name).value === "" ? undefined : Number(byId(name).value));

/** Fill the fields: what was kept, else what suits the model. `chat`: it has a chat template, and so ends its answers. */
export function fill({ chat }) {
  for (const name of NAMES) {
    const field = byId(name);
    field.value = setting(name, name === "stops" && chat === false ? "\\n\\n" : field.defaultValue);
    field.addEventListener("change", () => field.validity.valid && set(name, field.value));
  }
}

/** Whether all fields can be used; if not, the browser says why not. */
export function valid() {
  const wrong = NAMES.map(byId).find((field) => !field.validity.valid);
  if (wrong && wrong.id !== "most") byId("options").open = true;
  return wrong ? wrong.reportValidity() : true;
}

/** The fields of a request; without a limit of tokens the server's own holds, which fits the model. */
export function options() {
  const stop = byId("stops").value.split(/\r?\n/).filter(Boolean).map((text) => text.replaceAll("\\n", "\n").replaceAll("\\t", "\t"));
  return {
    max_completion_tokens: number("most"),
    temperature: number("temperature"),
    top_p: number("top-p"),
    seed: number("seed"),
    stop: stop.length ? stop : undefined,
  };
}

/** The system message, for a chat without a text. */
export const system = () => byId("system").value.trim();
