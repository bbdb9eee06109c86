// What an answer attended to: parts of the text, and how many times as much each as under a neutral question (its lift).
// Places are characters (code points) from the start of the text.

export const LEVELS = 5;

/**
 * The server's passages, small enough to keep: each part of the text once, and for each token of the answer
 * its text and [part, lift, part, lift, ...].
 */
export function compact(passages, { question, answer: written }) {
  const parts = [];
  const numbers = new Map();
  const numberOf = ({ start, end }) => {
    const name = `${start}-${end}`;
    if (!numbers.has(name)) numbers.set(name, parts.push([start, end]) - 1);
    return numbers.get(name);
  };
  const own = ownWords(question, written);
  const first = passages.answer.map((p) => [own(p.text ?? ""), p]).sort(([a], [b]) => b - a);
  const answer = first.map(([, p]) => ({
    part: numberOf(p),
    lift: p.lift,
    text: [...(p.text ?? "").slice(0, 400)].slice(0, 180).join(""),
  }));
  const tokens = passages.tokens.map((token) => [token.text, token.passages.flatMap((p) => [numberOf(p), p.lift])]);
  return { parts, answer, tokens, error: passages.error };
}

const wordsOf = (text) => text.toLowerCase().match(/[\p{L}\p{N}]+/gu) ?? [];

/**
 * How much of an answer stands in a text word for word: the characters of the longest run of words in both. A run that
 * says little, with neither a number nor 10 characters that the question has not, counts as 0.
 */
function ownWords(question, answer) {
  const asked = new Set(wordsOf(question)), words = wordsOf(answer);
  return (text) => {
    const padded = ` ${wordsOf(text).join(" ")} `;
    let most = 0;
    for (let from = 0; from < words.length; from++)
      for (let to = from + 1; to <= words.length && padded.includes(` ${words.slice(from, to).join(" ")} `); to++) {
        const news = words.slice(from, to).filter((word) => !asked.has(word));
        const says = news.some((word) => /\p{N}/u.test(word)) || news.join("").length >= 10;
        if (says) most = Math.max(most, words.slice(from, to).join(" ").length);
      }
    return most;
  };
}

/** Parts that the token `n`, or the whole answer, attended to: {start, end, lift}, the highest lift first, but what the answer says word for word. */
export function partsOf(looked, n = -1) {
  const part = ([start, end], lift) => ({ start, end, lift });
  if (n < 0) return looked.answer.map((p) => part(looked.parts[p.part], p.lift));
  const flat = looked.tokens[n]?.[1] ?? [];
  const found = [];
  for (let k = 0; k < flat.length; k += 2) found.push(part(looked.parts[flat[k]], flat[k + 1]));
  return found;
}

/** The tokens of the answer that attended to something of [start, end). */
export function tokensAt(looked, start, end) {
  const parts = new Set(looked.parts.flatMap(([a, b], n) => (a < end && b > start ? [n] : [])));
  return looked.tokens.flatMap(([, flat], n) => (flat.some((x, k) => k % 2 === 0 && parts.has(x)) ? [n] : []));
}

/** How strongly to colour: 0 to LEVELS. */
export const level = (lift, most) => (lift > 0 ? Math.max(1, Math.ceil((LEVELS * lift) / most)) : 0);

/** [start, stop) cut where parts, which do not overlap, begin and end: {start, end, lift}, the lift 0 between parts. */
export function cut(parts, start, stop) {
  const found = [];
  let at = start;
  for (const part of parts.toSorted((a, b) => a.start - b.start)) {
    const [a, b] = [Math.max(part.start, at), Math.min(part.end, stop)];
    if (a >= b) continue;
    if (a > at) found.push({ start: at, end: a, lift: 0 });
    found.push({ start: a, end: b, lift: part.lift });
    at = b;
  }
  if (at < stop) found.push({ start: at, end: stop, lift: 0 });
  return found;
}

/** The highest lift in each of `bins` equal pieces of a text of `characters`. */
export function histogram(parts, characters, bins) {
  const lifts = new Array(bins).fill(0);
  for (const { start, end, lift } of parts) {
    const first = Math.min(bins - 1, Math.floor((start * bins) / characters));
    const last = Math.min(bins - 1, Math.floor((Math.max(start, end - 1) * bins) / characters));
    for (let bin = first; bin <= last; bin++) lifts[bin] = Math.max(lifts[bin], lift);
  }
  return lifts;
}
