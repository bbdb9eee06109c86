// One conversation about a document, or about none: its turns, the answer that is being written, and what the browser keeps of them.

import * as api from "./api.js";
import { Turn } from "./answer.js";
import { byId, el } from "./dom.js";
import * as kept from "./kept.js";
import { compact } from "./looked.js";

const OFTEN = 1000; // milliseconds between savings of an answer that is being written

export class Conversation {
  /** The `n`-th about the document `id`. `on`: as Turn's, with changed(conversation), told(words) and more. */
  constructor(id, n, on) {
    Object.assign(this, { id, n, on, aborting: null });
    this.root = el("div", { class: "conversation" });
    this.turns = kept.conversation(id, n).map((turn) => this.#view(turn.state === "writing" ? { ...turn, state: "stopped" } : turn));
    this.root.append(...this.turns.map((turn) => turn.element));
  }

  get title() {
    const questions = [this.turns.at(0), this.turns.at(-1)].map((view) => view?.turn.question ?? "New conversation");
    return [...new Set(questions)].join(" … ");
  }

  get busy() {
    return this.aborting !== null;
  }

  #view(turn) {
    return new Turn(this.id, turn, { ...this.on, again: (view) => this.#again(view) });
  }

  #keep() {
    const said = kept.keep(this.id, this.n, this.turns.map((view) => view.turn));
    if (said && said !== this.told) this.on.told(said);
    this.told = said;
  }

  /** Forget all turns; an answer that is only stopped would be kept. */
  clear() {
    this.stop();
    this.turns = [];
    this.root.replaceChildren();
    kept.forget(this.id, this.n);
  }

  /** Begin with turns of another conversation. */
  begin(turns) {
    this.turns = turns.map((turn) => this.#view(structuredClone(turn)));
    this.root.replaceChildren(...this.turns.map((turn) => turn.element));
    this.#keep();
  }

  stop() {
    this.aborting?.abort();
  }

  #again(view) {
    if (this.busy) return;
    if (view.turn.state === "done") return this.on.edit(view, true);
    this.turns = this.turns.filter((one) => one !== view);
    view.element.remove();
    byId("question").focus();
    this.ask(view.turn.question);
  }

  /** The messages of what was asked and answered so far, with the new question. */
  #messages(question) {
    const past = this.turns.filter(({ turn }) => turn.state !== "failed" && turn.answer);
    const messages = past.flatMap(({ turn }) => [
      { role: "user", content: turn.question },
      { role: "assistant", content: turn.answer },
    ]);
    return [...messages, { role: "user", content: question }];
  }

  /** Ask, and show the answer as it is written. */
  async ask(question) {
    const messages = this.#messages(question);
    const turn = { question, answer: "", state: "writing" };
    const view = this.#view(turn);
    this.turns.push(view);
    this.root.append(view.element);
    this.aborting = new AbortController();
    this.on.changed(this);
    view.element.scrollIntoView({ block: "end" });
    this.#keep();
    try {
      await this.#write(view, messages);
      turn.state = "done";
    } catch (error) {
      turn.state = error.name === "AbortError" ? "stopped" : "failed";
      if (turn.state === "failed") turn.error = error.message;
    }
    this.aborting = null;
    if (this.turns.includes(view)) this.#keep();
    this.#following(() => view.settle());
    this.on.changed(this, view);
  }

  /** Change what is shown; who is at its end stays there. */
  #following(change) {
    const box = byId("turns");
    const atEnd = this.root.isConnected && box.scrollHeight - box.scrollTop - box.clientHeight < 60;
    change();
    if (atEnd) box.scrollTop = box.scrollHeight;
  }

  async #write(view, messages) {
    const { turn } = view;
    const body = this.on.body(this.id, messages);
    const begun = performance.now();
    const aloud = new Aloud();
    let saved = begun;
    for await (const chunk of api.chat(body, this.aborting.signal, (said) => view.heard(said))) {
      const choice = chunk.choices?.[0];
      const text = choice?.delta?.content;
      if (text) {
        if (!turn.answer) view.foot.replaceChildren();
        this.#following(() => view.add(text));
        if (this.root.isConnected) aloud.add(text);
      }
      if (choice?.finish_reason) turn.finish = choice.finish_reason;
      if (choice?.passages) turn.looked = compact(choice.passages, turn);
      if (chunk.usage) {
        turn.usage = chunk.usage;
        turn.saw = this.on.saw(this.id, chunk.usage);
      }
      if (performance.now() - saved > OFTEN) {
        this.#keep();
        saved = performance.now();
      }
    }
    turn.seconds = (performance.now() - begun) / 1000;
    aloud.end();
  }
}

/** The answer for those who hear it: sentence by sentence, since a word at a time would be cut off by the next one. */
class Aloud {
  constructor() {
    this.region = byId("answering");
    this.region.replaceChildren();
    this.left = "";
  }

  add(text) {
    this.left += text;
    const end = Math.max(...[". ", "! ", "? ", "\n", "。"].map((mark) => this.left.lastIndexOf(mark)));
    if (end > 0) this.#say(end + 1);
  }

  end() {
    this.#say(this.left.length);
  }

  #say(length) {
    const text = this.left.slice(0, length).trim();
    this.left = this.left.slice(length);
    if (text) this.region.append(el("span", { text: `${text} ` }));
  }
}
