// An answer's Markdown as elements that hold text alone: nothing in it becomes HTML, loads an image or runs.
// Each piece of text is named by its place in the source, so that what an answer's tokens are stays known.

import { copier, el } from "./dom.js";

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([^\s`]*)/;
const HEADING = /^ {0,3}#{1,6}\s+(?=\S)/;
const RULE = /^ {0,3}([-*_])(?:\s*\1){2,}\s*$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^(\s*)([-*+]|(\d{1,9})[.)])\s+(?=\S)/;
const DASHES = /^\s*\|?\s*:?-+:?\s*(?:\|\s*:?-+:?\s*)*\|?\s*$/;
const DEEPEST = 12; // of lists and quotes in one another
const BLOCKS = [FENCE, HEADING, RULE, QUOTE, ITEM];
// A mark's end is looked for in so many characters: no answer takes quadratic time.
const INLINE = new RegExp(
  [
    String.raw`(?<ticks>(?<!\x60)\x60{1,3}(?!\x60))(?<code>[^]{0,1000}?[^\x60])\k<ticks>(?!\x60)`,
    String.raw`(?<mark>\*\*|~~|(?<!\w)(?:\*|__?))(?=\S)(?<marked>[^]{0,1000}?[^\s*\\])\k<mark>(?![*\w])`,
    String.raw`\[(?<label>[^\]\n]{1,200})\]\((?<to>https?:\/\/[^\s()<>]{1,1000})\)`,
    String.raw`(?<address>https?:\/\/[^\s<>()"'\x60*]{1,1000}[\w\/])`,
    String.raw`\\(?<escaped>[!-\/:-@[-\x60{-~])`,
  ].join("|"),
  "g",
);
const TAGS = { "**": "strong", __: "strong", "*": "em", _: "em", "~~": "s" };

/** `source` as elements; `leaf(start, end)` gives the nodes of a piece of it. */
export function markdown(source, leaf) {
  const begin = source.length - source.trimStart().length;
  const lines = [];
  for (let at = begin; at < source.length; ) {
    const end = source.indexOf("\n", at);
    lines.push([at, end < 0 ? source.length : end]);
    at = end < 0 ? source.length : end + 1;
  }
  return blocks(source, lines, leaf);
}

/** Blocks of lines, [start, end) without the line break: those of a list or a quote begin behind its mark. */
function blocks(source, lines, leaf, depth = 0) {
  const text = (n) => (n < lines.length ? source.slice(...lines[n]) : "");
  const blank = (n) => !text(n).trim();
  const inside = (n, mark) => [Math.min(lines[n][0] + mark, lines[n][1]), lines[n][1]];
  const tabular = (n) => text(n).includes("|") && text(n + 1).includes("-") && DASHES.test(text(n + 1));
  const found = [];
  for (let n = 0; n < lines.length; ) {
    const line = text(n), first = n;
    const [fence, heading, item] = [FENCE, HEADING, depth < DEEPEST && ITEM].map((kind) => kind && kind.exec(line));
    if (blank(n)) n++;
    else if (fence) {
      for (n++; n < lines.length && !text(n).trim().startsWith(fence[1]); ) n++;
      found.push(code(source, fence[2], lines.slice(first + 1, n), leaf));
      n++;
    } else if (heading) found.push(el("h4", {}, ...inline(source, ...inside(n++, heading[0].length), leaf)));
    else if (RULE.test(line)) (found.push(el("hr")), n++);
    else if (depth < DEEPEST && QUOTE.test(line)) {
      while (QUOTE.test(text(n))) n++;
      const quoted = lines.slice(first, n).map((_, k) => inside(first + k, QUOTE.exec(text(first + k))[0].length));
      found.push(el("blockquote", {}, ...blocks(source, quoted, leaf, depth + 1)));
    } else if (item) {
      const list = el(item[3] ? "ol" : "ul", item[3] ? { start: item[3] } : {});
      for (let next = item; next && Boolean(next[3]) === Boolean(item[3]) && next[1].length <= item[1].length + 1; next = ITEM.exec(text(n))) {
        const width = next[0].length;
        const own = [inside(n++, width)];
        const deeper = (k) => text(k).search(/\S/) >= Math.min(width, next[1].length + 2);
        while (n < lines.length && (deeper(n) || (blank(n) && deeper(n + 1)))) own.push(inside(n, Math.min(width, text(n++).search(/\S|$/))));
        const parts = blocks(source, own, leaf, depth + 1);
        list.append(el("li", {}, ...parts.flatMap((part) => (part.tagName === "P" ? [...part.childNodes] : [part]))));
        if (blank(n) && ITEM.test(text(n + 1))) n++;
      }
      found.push(list);
    } else if (tabular(n)) {
      const row = (k, tag) => el("tr", {}, ...cells(source, ...lines[k]).map((cell) => el(tag, {}, ...inline(source, ...cell, leaf))));
      const table = el("table", {}, el("thead", {}, row(first, "th"))), body = el("tbody");
      for (n += 2; n < lines.length && text(n).includes("|"); n++) body.append(row(n, "td"));
      table.append(body);
      found.push(el("div", { class: "table" }, table));
    } else {
      for (n++; !blank(n) && !tabular(n) && !BLOCKS.some((kind) => kind.test(text(n))); ) n++;
      found.push(el("p", {}, ...joined(source, lines.slice(first, n)).flatMap(([a, b]) => inline(source, a, b, leaf))));
    }
  }
  return found;
}

/** Lines that follow one another in the source as one, with the line breaks between and behind them. */
function joined(source, lines) {
  const found = [];
  for (const [start, end] of lines) {
    const last = found.at(-1), stop = Math.min(end + 1, source.length);
    if (last?.[1] === start) last[1] = stop;
    else found.push([start, stop]);
  }
  return found;
}

function code(source, language, lines, leaf) {
  const own = lines.map(([start, end]) => source.slice(start, end)).join("\n");
  const shown = el("code", {}, ...joined(source, lines).flatMap(([start, end]) => leaf(start, end)));
  const head = el("div", { class: "code-head" }, el("span", { text: language }), copier("Copy code", () => own));
  return el("div", { class: "code" }, head, el("pre", { tabindex: 0, "aria-label": `Code ${language}`.trim(), role: "group" }, shown));
}

/** The places of a row's cells. */
function cells(source, start, end) {
  const line = source.slice(start, end);
  let at = start + /^\s*\|?/.exec(line)[0].length;
  return line.replace(/^\s*\|?/, "").replace(/\|?\s*$/, "").split("|").map((cell) => {
    const place = [at + cell.length - cell.trimStart().length, at + cell.trimEnd().length];
    at += cell.length + 1;
    return [place[0], Math.max(...place)];
  });
}

function inline(source, start, end, leaf) {
  const found = [], text = source.slice(start, end);
  let at = 0;
  for (const match of text.matchAll(INLINE)) {
    const { ticks, code: quoted, mark, marked, label, to, address, escaped } = match.groups;
    const [from, stop] = [start + match.index, start + match.index + match[0].length];
    if (match.index > at) found.push(...leaf(start + at, from));
    at = match.index + match[0].length;
    if (ticks) found.push(el("code", {}, ...leaf(from + ticks.length, from + ticks.length + quoted.length)));
    else if (mark) found.push(el(TAGS[mark], {}, ...inline(source, from + mark.length, from + mark.length + marked.length, leaf)));
    else if (escaped) found.push(...leaf(from + 1, stop));
    else {
      const nodes = label ? leaf(from + 1, from + 1 + label.length) : leaf(from, stop);
      found.push(el("a", { href: to ?? address, target: "_blank", rel: "noopener noreferrer", title: to ?? address }, ...nodes));
    }
  }
  if (at < text.length) found.push(...leaf(start + at, end));
  return found;
}
