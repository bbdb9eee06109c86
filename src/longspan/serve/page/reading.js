// What is pointed at, in the text and in the bar: the passages of an answer or of one token of it, or what is searched for.

import * as api from "./api.js";
import { announce, byId } from "./dom.js";
import { Bar } from "./bar.js";
import { partsOf, tokensAt } from "./looked.js";
import { TextView } from "./text.js";
import { count, number, SAW, times } from "./words.js";

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
    byId("search").addEventListener("submit", (event) => {
      event.preventDefault();
      this.search(byId("words").value.trim()).catch(told);
    });
    byId("words").addEventListener("input", () => byId("words").value || this.searched === null || this.search(""));
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
    byId("legend").hidden = byId("search").hidden = true;
    this.#show([]);
  }

  open(one) {
    this.#forget();
    this.bar.open(one.characters);
    byId("legend").hidden = byId("search").hidden = false;
    this.#show([]);
    return this.text.open(one.id, one.characters);
  }

  #forget() {
    this.view = this.searched = null;
    byId("words").value = "";
    byId("about").textContent = ABOUT;
    clearTimeout(this.resting);
  }

  /** Colour the places of some words and go to the first; to the next, if they are those of before; "" ends the search. */
  async search(words) {
    if (words && words === this.searched) return this.step(this.at + 1 < this.parts.length ? 1 : -this.at);
    const id = this.text.id;
    this.searched = words || null;
    byId("about").textContent = ABOUT;
    if (!words) return this.view ? this.point(this.view, this.view.pinned) : this.#show([]);
    const { found, places } = await api.search(id, words);
    if (id !== this.text.id || words !== this.searched) return;
    this.view?.mark(this.view.pinned);
    this.#show(places.map((place) => ({ ...place, lift: 1 })));
    const all = found > places.length ? `, of which the first ${number(places.length)} are shown` : "";
    const said = `${count(found, "place")} with “${words}”${all}.`;
    byId("about").textContent = said;
    announce(said);
    if (found) await this.visit(places[0].start, places[0].end);
  }

  #moved(first, last) {
    if (!this.text.characters) return;
    Object.assign(this, { first, last });
    this.bar.moved(first, last);
    byId("place").textContent = `${number(first)} of ${number(this.text.characters)}`;
  }

  /** Colour what a token of `view`'s answer (-1: all of it) attended to, and scroll there if `scroll`. */
  point(view, token, scroll = true) {
    clearTimeout(this.resting);
    if (this.view !== view) this.view?.mark(-1);
    this.view = view;
    view.mark(token);
    this.searched = null;
    byId("about").textContent = view.turn.saw === "whole" ? `${SAW.whole} ${ABOUT}` : ABOUT;
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
    const said = (lift) => (this.searched ? undefined : `${times(lift)} as much as under a neutral question`);
    this.text.show(parts, said);
    this.bar.show(parts);
    this.#stepped();
  }

  /** Scroll to a passage, and mark the tokens of the answer that attended to it. */
  visit(start, end) {
    clearTimeout(this.resting);
    this.at = Math.max(0, this.parts.findIndex((part) => part.start < end && part.end > start));
    this.#stepped();
    const looked = this.searched ? null : this.view?.turn.looked;
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
    byId("attended-more").setAttribute("aria-label", this.searched ? "Place before" : "Passage attended to more");
    byId("attended-less").setAttribute("aria-label", this.searched ? "Next place" : "Passage attended to less");
    byId("attended-more").disabled = this.at === 0;
    byId("attended-less").disabled = this.at === many - 1;
  }
}
