// The conversation about one document: its turns, the answer that is being written, and what the browser keeps of them.

import * as api from "./api.js";
import { Turn } from "./answer.js";
import { byId, el } from "./dom.js";
import * as kept from "./kept.js";
import { compact } from "./looked.js";

const OFTEN = 1000; // milliseconds between savings of an answer that is being written

export class Conversation {
  /** `on`: as Turn's, with changed(conversation) and told(words). */
  constructor(id, on) {
    Object.assign(this, { id, on, aborting: null });
    this.root = el("div", { class: "conversation" });
    this.turns = kept.conversation(id).map((turn) => this.#view(turn.state === "writing" ? { ...turn, state: "stopped" } : turn));
    this.root.append(...this.turns.map((turn) => turn.element));
  }

  get busy() {
    return this.aborting !== null;
  }

  #view(turn) {
    return new Turn(this.id, turn, { ...this.on, again: (view) => this.#again(view) });
  }

  #keep() {
    const said = kept.keep(this.id, this.turns.map((view) => view.turn));
    if (said && said !== this.told) this.on.told(said);
    this.told = said;
  }

  /** Forget all turns. */
  clear() {
    this.stop();
    this.turns = [];
    this.root.replaceChildren();
    kept.forget(this.id);
    this.on.changed(this);
  }

  stop() {
    this.aborting?.abort();
  }

  #again(view) {
    if (this.busy) return;
    this.turns = this.turns.filter((one) => one !== view);
    view.element.remove();
    byId("question").focus();
    this.ask(view.turn.question, view.turn.most);
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

  /** Ask, and show the answer as it is written. `most`: tokens of the answer. */
  async ask(question, most) {
    const messages = this.#messages(question);
    const turn = { question, answer: "", state: "writing", most };
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
    view.settle();
    this.on.changed(this, view);
  }

  async #write(view, messages) {
    const { turn } = view;
    const body = { model: this.on.model(), messages, document: this.id, temperature: 0, max_completion_tokens: turn.most, passages: true };
    body.stream_options = { include_usage: true };
    const begun = performance.now();
    const aloud = new Aloud();
    let saved = begun;
    for await (const chunk of api.chat(body, this.aborting.signal)) {
      const choice = chunk.choices?.[0];
      const text = choice?.delta?.content;
      if (text) {
        if (!turn.answer) view.foot.replaceChildren();
        const box = byId("turns");
        const atEnd = this.root.isConnected && box.scrollHeight - box.scrollTop - box.clientHeight < 60;
        view.add(text);
        if (atEnd) box.scrollTop = box.scrollHeight;
        if (this.root.isConnected) aloud.add(text);
      }
      if (choice?.finish_reason) turn.finish = choice.finish_reason;
      if (choice?.passages) turn.looked = compact(choice.passages);
      if (chunk.usage) turn.usage = chunk.usage;
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
