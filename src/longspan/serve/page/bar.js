// The whole document in one line: what the answer attended to is lit, what is in view is framed. It is clicked, or moved by keys.

import { el } from "./dom.js";
import { histogram, level } from "./looked.js";
import { number, percent } from "./words.js";

const BINS = 200;

export class Bar {
  /** `go(character, end)` is called with the place that the reader wants to go to. */
  constructor(element, go) {
    Object.assign(this, { element, go, characters: 0, parts: [], first: 0, last: 0 });
    this.bins = Array.from({ length: BINS }, () => el("i"));
    this.frame = el("b");
    element.append(...this.bins, this.frame);
    element.addEventListener("click", (event) => this.#clicked(event));
    element.addEventListener("keydown", (event) => this.#key(event));
  }

  open(characters) {
    this.characters = characters;
    this.element.hidden = !characters;
    this.element.setAttribute("aria-valuemax", characters);
    this.show([]);
    this.moved(0, 0);
  }

  show(parts) {
    this.parts = parts;
    if (!this.characters) return;
    const lifts = histogram(parts, this.characters, BINS);
    const most = Math.max(...lifts);
    this.bins.forEach((bin, n) => (bin.dataset.level = level(lifts[n], most)));
  }

  moved(first, last) {
    Object.assign(this, { first, last });
    const { style } = this.frame;
    style.left = `${(100 * first) / Math.max(1, this.characters)}%`;
    style.width = `${(100 * (last - first)) / Math.max(1, this.characters)}%`;
    const inView = this.parts.filter((part) => part.start < last && part.end > first).length;
    const said = `character ${number(first)} of ${number(this.characters)}, ${percent(first / Math.max(1, this.characters))}`;
    this.element.setAttribute("aria-valuenow", first);
    this.element.setAttribute("aria-valuetext", inView ? `${said}, ${number(inView)} lit here` : said);
  }

  #clicked(event) {
    const { left, width } = this.element.getBoundingClientRect();
    const share = Math.min(Math.max((event.clientX - left) / width, 0), 0.999999);
    const bin = Math.floor(share * BINS);
    const [from, to] = [(bin * this.characters) / BINS, ((bin + 1) * this.characters) / BINS];
    // Of what is lit here, the part with the highest lift: it may be much shorter than what the bin stands for.
    const here = this.parts.filter((part) => part.start < to && part.end > from).sort((a, b) => b.lift - a.lift)[0];
    if (here) this.go(here.start, here.end);
    else this.go(Math.floor(share * this.characters));
  }

  #key(event) {
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    const step = Math.max(1, Math.floor(this.characters / 100));
    const moves = { ArrowLeft: -step, ArrowDown: -step, ArrowRight: step, ArrowUp: step };
    Object.assign(moves, { PageDown: -10 * step, PageUp: 10 * step, Home: -this.characters, End: this.characters });
    if (!(event.key in moves)) return;
    event.preventDefault();
    // From the place that is a third down, where go() puts its target.
    const at = this.first + (this.last - this.first) / 3 + moves[event.key];
    this.go(Math.round(Math.min(Math.max(at, 0), this.characters - 1)));
  }
}
