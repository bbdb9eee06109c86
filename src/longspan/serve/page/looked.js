// What the heads looked at: counts by part of the text. Places are characters (code points) from the start of the text.

export const LEVELS = 5;

/**
 * The server's passages, small enough to keep: each part of the text once, and for each token of the answer
 * its text and [part, times, share, part, times, share, ...].
 */
export function compact(passages) {
  const parts = [];
  const numbers = new Map();
  const numberOf = ({ start, end }) => {
    const name = `${start}-${end}`;
    if (!numbers.has(name)) numbers.set(name, parts.push([start, end]) - 1);
    return numbers.get(name);
  };
  const answer = passages.answer.map((p) => ({
    part: numberOf(p),
    count: p.count,
    share: p.share,
    text: [...(p.text ?? "").slice(0, 400)].slice(0, 180).join(""),
  }));
  const tokens = passages.tokens.map((token) => [token.text, token.passages.flatMap((p) => [numberOf(p), p.count, Number(p.share.toFixed(4))])]);
  return { parts, answer, tokens };
}

/** Parts that were looked at for the token `n`, or for the whole answer: {start, end, count, share}, most often first. */
export function partsOf(looked, n = -1) {
  const part = ([start, end], count, share) => ({ start, end, count, share });
  if (n < 0) return looked.answer.map((p) => part(looked.parts[p.part], p.count, p.share));
  const flat = looked.tokens[n]?.[1] ?? [];
  const found = [];
  for (let k = 0; k < flat.length; k += 3) found.push(part(looked.parts[flat[k]], flat[k + 1], flat[k + 2]));
  return found.sort((a, b) => b.count - a.count || a.start - b.start);
}

/** The tokens of the answer for which something of [start, end) was looked at. */
export function tokensAt(looked, start, end) {
  const parts = new Set(looked.parts.flatMap(([a, b], n) => (a < end && b > start ? [n] : [])));
  return looked.tokens.flatMap(([, flat], n) => (flat.some((x, k) => k % 3 === 0 && parts.has(x)) ? [n] : []));
}

/** How strongly to colour: 0 to LEVELS. */
export const level = (count, most) => (count > 0 ? Math.max(1, Math.ceil((LEVELS * count) / most)) : 0);

/**
 * [start, stop) cut where parts begin and end: {start, end, count}, the count 0 between parts and the sum if they overlap.
 */
export function cut(parts, start, stop) {
  const changes = new Map([[start, 0], [stop, 0]]);
  for (const part of parts) {
    const a = Math.max(part.start, start), b = Math.min(part.end, stop);
    if (a >= b) continue;
    changes.set(a, (changes.get(a) ?? 0) + part.count);
    changes.set(b, (changes.get(b) ?? 0) - part.count);
  }
  const places = [...changes.keys()].sort((a, b) => a - b);
  let count = 0;
  return places.slice(0, -1).map((place, n) => {
    count += changes.get(place);
    return { start: place, end: places[n + 1], count };
  });
}

/** How often something was looked at in each of `bins` equal pieces of a text of `characters`. */
export function histogram(parts, characters, bins) {
  const counts = new Array(bins).fill(0);
  for (const { start, end, count } of parts) {
    const first = Math.min(bins - 1, Math.floor((start * bins) / characters));
    const last = Math.min(bins - 1, Math.floor((Math.max(start, end - 1) * bins) / characters));
    for (let bin = first; bin <= last; bin++) counts[bin] += count;
  }
  return counts;
}
