// What is pointed at, in the text and in the bar: the passages of an answer or of one token of it.

import { announce, byId } from "./dom.js";
import { Bar } from "./bar.js";
import { partsOf, tokensAt } from "./looked.js";
import { TextView } from "./text.js";
import { count, number } from "./words.js";

const REST = 120; // milliseconds that the mouse rests on a token before the text moves
const ABOUT = "What the answer attended to, not proof.";

export class Reading {
  /** `told(error)` is called if more of the text cannot be had; if none can, the page says so instead of the text. */
  constructor(told) {
    this.bar = new Bar(byId("bar"), (start, end) => (end === undefined ? this.text.go(start) : this.visit(start, end)));
    this.text = new TextView(byId("page"), {
      moved: (first, last) => this.#moved(first, last),
      chosen: (start, end) => this.visit(start, end),
      failed: (error) => (this.text.pieces.length ? told(error) : this.close(error.message)),
    });
    byId("attended-more").addEventListener("click", () => this.step(-1));
    byId("attended-less").addEventListener("click", () => this.step(1));
    this.close("");
  }

  /** Show no text but some words. */
  close(words) {
    this.#forget();
    const said = document.createElement("p");
    said.className = "empty-state";
    said.textContent = words;
    this.text.close(said);
    this.bar.open(0);
    byId("place").textContent = "";
    byId("legend").hidden = true;
    this.#show([]);
  }

  open(one) {
    this.#forget();
    this.bar.open(one.characters);
    byId("legend").hidden = false;
    this.#show([]);
    return this.text.open(one.id, one.characters);
  }

  #forget() {
    this.view = null;
    clearTimeout(this.resting);
  }

  #moved(first, last) {
    if (!this.text.characters) return;
    Object.assign(this, { first, last });
    this.bar.moved(first, last);
    byId("place").textContent = `${number(first)} of ${number(this.text.characters)} characters`;
  }

  /** Colour what a token of `view`'s answer (-1: all of it) attended to, and scroll there if `scroll`. */
  point(view, token, scroll = true) {
    clearTimeout(this.resting);
    if (this.view !== view) this.view?.mark(-1);
    this.view = view;
    view.mark(token);
    byId("about").textContent = ABOUT;
    const looked = view.turn.looked;
    const parts = looked ? partsOf(looked, token) : [];
    this.#show(parts);
    const top = parts[0];
    if (!scroll || !top) return;
    this.text.point(top.start, top.end);
    if (top.start < this.first || top.end > this.last) this.resting = setTimeout(() => this.text.go(top.start), REST);
  }

  #show(parts) {
    this.parts = parts; // the highest lift first
    this.at = 0;
    this.text.show(parts);
    this.bar.show(parts);
    this.#stepped();
  }

  /** Scroll to a passage, and mark the tokens of the answer that attended to it. */
  visit(start, end) {
    clearTimeout(this.resting);
    this.at = Math.max(0, this.parts.findIndex((part) => part.start < end && part.end > start));
    this.#stepped();
    const looked = this.view?.turn.looked;
    const lit = looked ? tokensAt(looked, start, end) : [];
    this.view?.mark(this.view.pinned, lit);
    if (lit.length) {
      const said = `Attended to by ${number(lit.length)} of the answer's ${count(looked.tokens.length, "token")}`;
      byId("about").textContent = `${said}, underlined there. It is not proof.`;
      announce(`${said}.`);
    }
    this.text.point(start, end);
    return this.text.go(start);
  }

  /** To the passage that was attended to less, or more. */
  step(by) {
    const part = this.parts[this.at + by];
    if (part) this.visit(part.start, part.end);
  }

  #stepped() {
    const many = this.parts.length;
    document.querySelector(".steps").hidden = !many;
    byId("which").textContent = `${number(this.at + 1)} of ${number(many)}`;
    byId("attended-more").disabled = this.at === 0;
    byId("attended-less").disabled = this.at === many - 1;
  }
}
