"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const spans = [...document.querySelectorAll("#text span")];
const map = document.getElementById("map"), about = document.getElementById("about");
const COLOURS = ["#f1f1ee", "#b9c8d3", "#17736b"], MARGIN = 58;
const rows = data.rows.length, columns = data.spans.length;
const wide = Math.max(2, Math.min(22, Math.floor(760 / columns)));
const high = Math.max(4, Math.min(16, Math.floor(520 / rows)));
map.width = MARGIN + columns * wide + 2;
map.height = rows * high + 2;
const answers = new Set(data.answers);
let at = -1;

function startsLayer(row) {
  return row === 0 || data.rows[row][0] !== data.rows[row - 1][0];
}

function draw() {
  const pen = map.getContext("2d"), gap = wide > 4 ? 1 : 0;
  pen.clearRect(0, 0, map.width, map.height);
  for (let row = 0; row < rows; row++) {
    for (let c = 0; c < columns; c++) {
      pen.fillStyle = COLOURS[data.kept[row][c]];
      pen.fillRect(MARGIN + c * wide, 1 + row * high, wide - gap, high - (high > 4 ? 1 : 0));
    }
    if (startsLayer(row)) {
      pen.fillStyle = "#4b565b";
      pen.font = "11px system-ui, sans-serif";
      pen.textBaseline = "top";
      pen.fillText("layer " + data.rows[row][0], 0, 1 + row * high);
    }
  }
  pen.strokeStyle = "#d1432b";
  pen.lineWidth = 2;
  for (const c of answers) pen.strokeRect(MARGIN + c * wide, 1, wide, rows * high);
  if (at >= 0) {
    pen.strokeStyle = "#e0a800";
    pen.strokeRect(MARGIN + at * wide, 1, wide, rows * high);
  }
}

function element(name, text) {
  const node = document.createElement(name);
  node.textContent = text;
  return node;
}

// The heads for which chunk c has this state (2 chosen, 1 always kept), by layer.
function heads(c, state) {
  const layers = new Map();
  data.rows.forEach(([layer, head], row) => {
    if (Number(data.kept[row][c]) === state) layers.set(layer, [...(layers.get(layer) || []), head]);
  });
  if (!layers.size) return "";
  if (data.kind === "layer") return "layers " + [...layers.keys()].join(", ");
  const plural = data.kind + "s of ";
  return plural + [...layers].map(([layer, numbers]) => "layer " + layer + ": " + numbers.join(", ")).join("; ");
}

function show(c, scroll) {
  if (c === at || c < 0 || c >= columns) return;
  if (at >= 0) spans[at].classList.remove("on");
  at = c;
  spans[c].classList.add("on");
  if (scroll) spans[c].scrollIntoView({ block: "center" });
  const [first, stop] = data.spans[c];
  const chose = data.kept.filter((row) => row[c] === "2").length;
  const facts = element("p", "Chunk " + c + ", tokens " + first + " to " + (stop - 1) + (answers.has(c) ? ", contains the answer" : "") +
    ". Chosen by " + chose + " of " + rows + " " + data.kind + "s.");
  const parts = [facts];
  if (chose) parts.push(element("p", "Chosen by " + heads(c, 2) + "."));
  const forced = heads(c, 1);
  if (forced) parts.push(element("p", "Always kept by " + forced + "."));
  parts.push(element("blockquote", spans[c].textContent));
  about.replaceChildren(...parts);
  draw();
}

map.addEventListener("mousemove", (event) => {
  const box = map.getBoundingClientRect();
  show(Math.floor((event.clientX - box.left - MARGIN) / wide), true);
});
map.addEventListener("keydown", (event) => {
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (!step) return;
  event.preventDefault();
  show(Math.min(Math.max(at + step, 0), columns - 1), true);
});
spans.forEach((span, c) => span.addEventListener("mouseenter", () => show(c, false)));
for (const c of answers) show(c, true);
draw();
