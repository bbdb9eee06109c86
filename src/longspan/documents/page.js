"use strict";
const steps = JSON.parse(document.getElementById("data").textContent); // the last one is of the whole answer
const tokens = [...document.querySelectorAll("#answer span")];
const parts = [...document.querySelectorAll("main p")];
let fixed = -1;

function show(n) {
  const step = n < 0 ? steps.at(-1) : steps[n];
  const lifts = new Map();
  for (let k = 0; k < step.length; k += 2) lifts.set(step[k], step[k + 1]);
  const most = Math.max(1, ...lifts.values());
  for (const [p, part] of parts.entries()) {
    const lift = lifts.get(p) || 0;
    part.hidden = !lift;
    part.title = lift ? `${lift.toFixed(1)} times as much as under a neutral question` : "";
    part.lastElementChild.style.background = `rgb(var(--mark) / ${(0.08 + (0.6 * lift) / most).toFixed(3)})`;
  }
  tokens.forEach((x, k) => x.classList.toggle("on", k === n));
}

tokens.forEach((x, n) => {
  x.addEventListener("mouseenter", () => show(n));
  x.addEventListener("mouseleave", () => show(fixed));
  x.addEventListener("focus", () => show((fixed = n)));
  x.addEventListener("click", () => show((fixed = n)));
});
document.addEventListener("keydown", (event) => {
  const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (!step || !tokens.length) return;
  fixed = Math.min(Math.max(fixed + step, 0), tokens.length - 1);
  tokens[fixed].focus();
  event.preventDefault();
});
show(fixed);
