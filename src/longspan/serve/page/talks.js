// The conversations about each document: which there are, the one that is shown, and its file.

import { Conversation } from "./conversation.js";
import { download } from "./dom.js";
import * as kept from "./kept.js";
import { partsOf } from "./looked.js";
import { number, SAW, times } from "./words.js";

export class Talks {
  /** `on`: of each conversation. */
  constructor(on) {
    Object.assign(this, { on, open: new Map(), shown: new Map() });
  }

  /** The `n`-th conversation about a document. */
  #of(id, n) {
    const name = `${id}:${n}`;
    if (!this.open.has(name)) this.open.set(name, new Conversation(id, n, this.on));
    return this.open.get(name);
  }

  /** All of a document, the last one first. */
  all(id) {
    const own = [...this.open.values()].filter((one) => one.id === id).map((one) => one.n);
    const numbers = new Set([...kept.conversations(id), ...own]);
    return [...numbers].sort((a, b) => b - a).map((n) => this.#of(id, n));
  }

  /** The one that is shown. */
  of(id) {
    const all = this.all(id);
    return all.find((one) => one.n === this.shown.get(id)) ?? all[0] ?? this.#of(id, 0);
  }

  choose(id, n) {
    this.shown.set(id, n);
  }

  /** A new one, which begins with the turns of an earlier one. */
  anew(id, turns = []) {
    const made = this.#of(id, (this.all(id)[0]?.n ?? -1) + 1);
    made.begin(turns);
    this.choose(id, made.n);
    return made;
  }

  drop(one) {
    one.clear();
    this.open.delete(`${one.id}:${one.n}`);
    this.shown.delete(one.id);
  }

  /** The document is gone: its conversations with it, if it was `deleted` here. */
  gone(id, deleted) {
    for (const one of this.all(id)) {
      if (deleted) this.drop(one);
      else one.stop();
      this.open.delete(`${id}:${one.n}`);
    }
    this.shown.delete(id);
  }
}

/** Give the browser the conversation as a file of Markdown, with the passages of each answer. */
export function save(one, document, model) {
  const said = [`# ${document}`, `Asked of ${model} by longspan.`];
  for (const { turn } of one.turns) {
    said.push(`## ${turn.question}`, turn.answer.trim() || `(${turn.error ?? "no answer"})`);
    if (turn.saw) said.push(`*${SAW[turn.saw]}*`);
    const texts = turn.looked ? partsOf(turn.looked).map((part, k) => [part, turn.looked.answer[k].text]) : [];
    for (const [{ start, end, lift }, text] of texts)
      said.push(`> ${text.replace(/\s+/g, " ").trim()}\n>\n> characters ${number(start)} to ${number(end)}, ${times(lift)} as much attention as under a neutral question`);
  }
  download(`${document.replace(/[^\p{L}\p{N}]+/gu, "-").slice(0, 60)}.md`, `${said.join("\n\n")}\n`);
}
