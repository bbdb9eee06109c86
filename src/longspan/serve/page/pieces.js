// Pieces of a document's text, fetched as they are needed. Places are characters (code points), as the server counts them.

import * as api from "./api.js";

export const PIECE = 6000;
const HELD = 40; // pieces of the last documents that are held, of 6,000 characters each

const held = new Map();

/** The piece `n`: {start, end, text, characters}; fetched once, and held for a while. */
export function piece(id, n) {
  const name = `${id}/${n}`;
  const found = held.get(name) ?? api.text(id, n * PIECE, (n + 1) * PIECE);
  held.delete(name);
  held.set(name, found);
  found.catch(() => held.delete(name));
  if (held.size > HELD) held.delete(held.keys().next().value);
  return found;
}

/** Some characters of a text. */
export async function characters(id, start, end) {
  const first = Math.floor(start / PIECE), last = Math.floor(Math.max(start, end - 1) / PIECE);
  const numbers = Array.from({ length: last - first + 1 }, (_, k) => first + k);
  const pieces = await Promise.all(numbers.map((n) => piece(id, n)));
  return slicer(pieces.map((p) => p.text).join(""), first * PIECE)(start, end);
}

/** `slice(start, end)` by characters of the document, of a text that begins at `from`; JavaScript counts UTF-16 units. */
export function slicer(text, from) {
  const points = /[\ud800-\udfff]/.test(text) ? [...text] : null;
  return (start, end) =>
    points ? points.slice(start - from, end - from).join("") : text.slice(start - from, end - from);
}
