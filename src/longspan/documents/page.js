"use strict";
const steps = JSON.parse(document.getElementById("data").textContent);
const tokens = [...document.querySelectorAll("#answer span")];
const parts = new Map([...document.querySelectorAll("main span")].map((x) => [Number(x.dataset.p), x]));
let fixed = -1;

function counts(n) {
  const found = new Map();
  for (const step of n < 0 ? steps : [steps[n] || []])
    for (let k = 0; k < step.length; k += 2) found.set(step[k], (found.get(step[k]) || 0) + step[k + 1]);
  return found;
}

function show(n) {
  const found = counts(n), most = Math.max(1, ...found.values());
  for (const [p, part] of parts) {
    const share = (found.get(p) || 0) / most;
    part.style.background = share ? `rgb(var(--mark) / ${(0.08 + 0.6 * share).toFixed(3)})` : "";
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
