// One question with its answer: the tokens that can be pointed at, and the passages that it attended to most.

import { announce, copier, el, reachable, roving } from "./dom.js";
import { partsOf } from "./looked.js";
import { markdown } from "./markdown.js";
import { characters } from "./pieces.js";
import { count, duration, number, SAW, times } from "./words.js";

export class Turn {
  /**
   * `turn`: {question, answer, state: "writing" | "done" | "stopped" | "failed", error, finish, usage, seconds, saw, looked}.
   * `on`: point(turn, token) colours what was attended to, hover(turn, token) does for a moment, go(start, end) scrolls to it, again(turn) asks once more,
   * edit(turn) lets its question be written anew.
   */
  constructor(id, turn, on) {
    Object.assign(this, { id, turn, on, pinned: -1 });
    this.answer = el("div", { class: "answer", dir: "auto" });
    this.foot = el("div", { class: "foot" });
    this.list = el("ol", { class: "passages" });
    this.looked = el("div", { class: "looked", hidden: true });
    this.element = el(
      "article",
      { class: "turn", "aria-label": `Question: ${turn.question}` },
      el("h3", { class: "question", dir: "auto", text: turn.question }),
      this.answer,
      this.foot,
      this.looked,
    );
    this.#write();
    roving(this.answer, "[data-token]", { along: "x" });
    roving(this.list, "button");
    this.answer.addEventListener("mouseover", (event) => this.#over(event));
    this.answer.addEventListener("mouseleave", () => this.on.hover(this, this.pinned));
    this.answer.addEventListener("focusin", (event) => this.#pin(event.target.closest("[data-token]"), false));
    this.answer.addEventListener("click", (event) => this.#pin(event.target.closest("[data-token]"), true));
    this.settle();
  }

  /** How far the server is with reading, in whole percent. */
  heard(said) {
    const share = /^reading (\d+)%$/.exec(said);
    if (share && !this.turn.answer) this.foot.firstElementChild.textContent = `Reading … ${share[1]}%`;
  }

  /** More of the answer. */
  add(text) {
    this.turn.answer += text;
    this.#write();
  }

  /** The answer as elements; `ends` of its tokens in it make each token one that can be pointed at. */
  #write(ends = null) {
    const { answer } = this.turn;
    const leaf = (start, end) => {
      if (!ends) return [answer.slice(start, end)];
      const spans = [];
      for (let n = ends.findIndex((one) => one > start); start < end; start = ends[n++]) {
        const text = answer.slice(start, Math.min(end, ends[n]));
        if (text) spans.push(el("span", { "data-token": n, text }));
      }
      return spans;
    };
    this.answer.replaceChildren(...markdown(answer, leaf));
  }

  /** Show what the turn has become. */
  settle() {
    const { turn } = this;
    this.element.dataset.state = turn.state;
    this.answer.setAttribute("aria-busy", String(turn.state === "writing"));
    this.foot.replaceChildren(...this.#said());
    const looked = turn.looked;
    if (!looked) return;
    this.words = new Map(looked.answer.map(({ part, text }) => [looked.parts[part][0], text]));
    const written = looked.tokens.map(([text]) => text).join("");
    if (looked.tokens.length && written === turn.answer) {
      this.answer.setAttribute("role", "group");
      this.answer.setAttribute("aria-label", "Answer by token; arrow keys move");
      // A character of several tokens stands at the last of them, and the others have no text.
      let end = 0;
      this.#write(looked.tokens.map(([text]) => (end += text.length)));
      reachable(this.answer, "[data-token]");
    }
    this.looked.hidden = false;
    this.#list();
  }

  #said() {
    const { turn } = this;
    const button = (name, text, click) => el("button", { type: "button", class: "link", "data-do": name, text, click });
    const again = () => button("again", "Ask again", () => this.on.again(this));
    const edit = () => button("edit", "Edit", () => this.on.edit(this));
    if (turn.state === "writing") return [el("p", { class: "dim", text: "Reading the question …" })];
    if (turn.state === "failed") return [el("p", { class: "error", role: "alert", text: turn.error }), again(), edit()];
    if (turn.state === "stopped")
      return [el("p", { class: "dim", text: "Stopped. Passages come with a whole answer." }), again(), edit()];
    const said = [];
    if (turn.usage) {
      const { completion_tokens: written, prompt_tokens: asked, prompt_tokens_details: of } = turn.usage;
      said.push(count(written, "token"));
      if (turn.seconds !== undefined) said.push(duration(turn.seconds));
      if (of?.cached_tokens) said.push(`${number(of.cached_tokens)} of ${number(asked)} tokens of the prompt were read before`);
    }
    if (turn.finish === "length") said.push("ended at its limit of tokens");
    if (turn.saw) said.push(SAW[turn.saw].replace(".", ""));
    if (!turn.answer) said.unshift("The model wrote nothing.");
    return [el("p", { class: "dim", text: said.join(" · ") }), copier("Copy", () => turn.answer.trim()), again(), edit()];
  }

  // Passages

  #list() {
    const { looked } = this.turn;
    const parts = partsOf(looked, this.pinned);
    const most = Math.max(...parts.map((part) => part.lift));
    this.list.replaceChildren(...parts.map((part) => el("li", {}, this.#passage(part, most))));
    reachable(this.list, "button");
    const whole = el("button", { type: "button", class: "link", text: "back to the whole answer", click: () => this.#back() });
    const of = this.pinned < 0 ? ["by the whole answer"] : [`by “${this.token()}” · `, whole];
    this.looked.replaceChildren(
      el("h4", {}, "Attended to most ", ...of),
      parts.length ? this.list : el("p", { class: "dim", text: looked.error ?? "No sentence stands out against a neutral question." }),
      ...(parts.length && most <= 1 ? [el("p", { class: "dim", text: "No more than under a neutral question." })] : []),
    );
  }

  #passage({ start, end, lift }, most) {
    const known = this.words.get(start);
    const words = el("span", { class: "words", dir: "auto", text: known ? oneLine(known) : "…" });
    const place = `characters ${number(start)} to ${number(end)}`;
    if (!known)
      characters(this.id, start, Math.min(end, start + 180)).then(
        (text) => (words.textContent = oneLine(text) || place),
        () => (words.textContent = place),
      );
    const weight = el("meter", { min: 0, max: most, value: lift, "aria-hidden": "true" });
    const said = "as much as under a neutral question";
    return el(
      "button",
      { type: "button", class: "passage", click: () => this.on.go(start, end, this), "data-start": start },
      weight,
      words,
      el("span", { class: "share", title: `${times(lift)} ${said}` }, times(lift), el("span", { class: "hidden", text: ` ${said}` })),
    );
  }

  // Tokens

  token(n = this.pinned) {
    return (this.turn.looked?.tokens[n]?.[0] ?? "").trim() || "␣";
  }

  #over(event) {
    const token = event.target.closest("[data-token]");
    if (token) this.on.hover(this, Number(token.dataset.token));
  }

  #pin(token, clicked) {
    if (!token) return;
    const n = Number(token.dataset.token);
    if (n === this.pinned) return clicked || this.on.point(this, n);
    this.pinned = n;
    this.#list();
    this.on.point(this, n);
    const parts = partsOf(this.turn.looked, n);
    const most = parts.length ? `, the first ${times(parts[0].lift)} as much as under a neutral question` : "";
    announce(`Token ${n + 1} of ${this.turn.looked.tokens.length}: ${count(parts.length, "passage")}${most}.`);
  }

  /** Back to the whole answer. */
  release() {
    this.pinned = -1;
    if (this.turn.looked) this.#list();
    this.on.point(this, -1);
  }

  #back() {
    this.release();
    this.list.querySelector("button")?.focus();
  }

  /** Mark tokens: `at` is pointed at, `lit` attended to the part of the text that was clicked. */
  mark(at, lit = []) {
    for (const token of this.answer.querySelectorAll("[data-token]")) {
      const n = Number(token.dataset.token);
      token.classList.toggle("on", n === at);
      token.classList.toggle("lit", lit.includes(n));
    }
  }
}

const oneLine = (text) => text.replace(/\s+/g, " ").trim();
