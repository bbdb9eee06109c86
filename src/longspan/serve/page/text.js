// The text itself, a few pieces of it around the place that is read, coloured by how much the answer attended to it.

import { el } from "./dom.js";
import { cut, level } from "./looked.js";
import { PIECE, piece, slicer } from "./pieces.js";

const SHOWN = 9; // pieces that are on the page at once
const NEAR = 800; // pixels from an end of the shown text at which the next piece is fetched

export class TextView {
  /** `moved(first, last)` is told which characters are in view, `chosen(start, end)` which coloured part was clicked. */
  constructor(box, { moved, chosen, failed }) {
    Object.assign(this, { box, moved, failed });
    this.close();
    box.addEventListener("scroll", () => this.#scrolled(), { passive: true });
    box.addEventListener("click", (event) => {
      const mark = event.target.closest("mark");
      if (mark) chosen(Number(mark.dataset.start), Number(mark.dataset.end));
    });
    // In one column the text is not seen at first, and nothing in it has a place.
    new ResizeObserver(() => (this.unseen === null ? this.#scrolled() : this.go(this.unseen))).observe(box);
  }

  close(...instead) {
    this.id = null;
    this.characters = 0;
    this.pieces = []; // {n, start, end, slice, element}, in order and without gaps
    this.parts = [];
    this.here = [0, 0]; // the characters that are pointed at
    this.unseen = null; // where to scroll to once the box is seen
    this.aim ??= 0; // counts jumps: what was fetched for an earlier one is dropped
    this.box.replaceChildren(...instead);
    this.box.setAttribute("aria-busy", "false");
  }

  async open(id, characters, at = 0) {
    this.close();
    Object.assign(this, { id, characters });
    await this.go(at);
  }

  /** Colour these parts: [{start, end, lift}]; `said(lift)` is what the mouse is told. */
  show(parts, said) {
    Object.assign(this, { parts, said });
    this.here = [0, 0];
    for (const one of this.pieces) this.#fill(one);
  }

  /** Point at a coloured part. */
  point(start, end) {
    this.here = [start, end];
    for (const mark of this.box.querySelectorAll("mark")) this.#point(mark);
  }

  #point(mark) {
    mark.classList.toggle("here", Number(mark.dataset.start) < this.here[1] && Number(mark.dataset.end) > this.here[0]);
  }

  /** Scroll to a character, a third of the way down. */
  async go(at) {
    const aim = ++this.aim;
    this.unseen = this.box.clientHeight ? null : at;
    const last = Math.max(0, Math.ceil(this.characters / PIECE) - 1);
    const n = Math.min(Math.floor(at / PIECE), last);
    if (!this.pieces.some((one) => one.n === n)) {
      this.box.setAttribute("aria-busy", "true");
      const around = [n - 1, n, n + 1].filter((x) => x >= 0 && x <= last);
      const fetched = await this.#fetch(around);
      if (!fetched || aim !== this.aim) return;
      this.pieces = fetched;
      this.box.replaceChildren(...fetched.map((one) => one.element));
      this.box.setAttribute("aria-busy", "false");
    }
    this.box.scrollTop += this.#top(at) - this.box.clientHeight / 3;
    await this.#scrolled();
  }

  async #fetch(numbers) {
    const id = this.id;
    try {
      const answers = await Promise.all(numbers.map((n) => piece(id, n)));
      if (id !== this.id) return null;
      return answers.map((answer, k) => {
        const { start, end } = answer;
        const one = { n: numbers[k], start, end, slice: slicer(answer.text, start), element: el("span", { class: "piece" }) };
        this.#fill(one);
        return one;
      });
    } catch (error) {
      if (id === this.id) this.failed(error);
      return null;
    }
  }

  #fill(one) {
    const most = Math.max(...this.parts.map((part) => part.lift));
    one.element.replaceChildren(
      ...cut(this.parts, one.start, one.end).map(({ start, end, lift }) => {
        const text = one.slice(start, end);
        if (!lift) return text;
        const title = this.said?.(lift);
        const mark = el("mark", { "data-level": level(lift, most), "data-start": start, "data-end": end, title, text });
        this.#point(mark);
        return mark;
      }),
    );
  }

  /** Where a character is, in pixels from the top of the box. */
  #top(at) {
    const one = this.pieces.find((x) => at >= x.start && at < x.end) ?? this.pieces.at(-1);
    if (!one) return 0;
    const range = document.createRange();
    let left = one.slice(one.start, at).length;
    const walk = document.createTreeWalker(one.element, NodeFilter.SHOW_TEXT);
    for (let node = walk.nextNode(); node; node = walk.nextNode()) {
      if (left < node.length) {
        range.setStart(node, left);
        range.setEnd(node, left + 1);
        break;
      }
      left -= node.length;
    }
    const place = range.collapsed ? one.element.getBoundingClientRect() : range.getBoundingClientRect();
    return place.top - this.box.getBoundingClientRect().top;
  }

  async #scrolled() {
    if (!this.pieces.length) return;
    this.moved(...this.#inView());
    if (this.growing) return;
    this.growing = true;
    while (await this.#grow());
    this.growing = false;
    if (this.pieces.length) this.moved(...this.#inView());
  }

  /** Add a piece at an end that is near, and take one away at the other; whether there may be more to do. */
  async #grow() {
    const { box, pieces, aim } = this;
    if (!pieces.length || !box.clientHeight) return false;
    const last = Math.ceil(this.characters / PIECE) - 1;
    const above = box.scrollTop < NEAR && pieces[0].n > 0;
    const below = box.scrollHeight - box.scrollTop - box.clientHeight < NEAR && pieces.at(-1).n < last;
    if (!above && !below) return false;
    const fetched = await this.#fetch([below ? pieces.at(-1).n + 1 : pieces[0].n - 1]);
    if (!fetched) return false;
    if (aim !== this.aim || pieces !== this.pieces) return true;
    const [one] = fetched;
    if (below) {
      pieces.push(one);
      box.append(one.element);
      if (pieces.length > SHOWN) this.#hold(pieces[1], () => pieces.shift().element.remove());
    } else {
      this.#hold(pieces[0], () => {
        pieces.unshift(one);
        box.prepend(one.element);
      });
      if (pieces.length > SHOWN) pieces.pop().element.remove();
    }
    return true;
  }

  /** Change what stands above a piece while its end stays where it is on the screen. */
  #hold(stays, change) {
    const end = () => stays.element.getBoundingClientRect().bottom;
    const before = end();
    change();
    this.box.scrollTop += end() - before;
  }

  /** The first and the last character in view, to a line or so. */
  #inView() {
    const box = this.box.getBoundingClientRect();
    const at = (y) => {
      for (const { start, end, element } of this.pieces) {
        const { top, bottom } = element.getBoundingClientRect();
        if (y < bottom) return Math.round(start + (end - start) * Math.max(0, (y - top) / (bottom - top)));
      }
      return this.pieces.at(-1).end;
    };
    return [at(box.top), at(box.bottom)];
  }
}
