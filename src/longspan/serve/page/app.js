// The page: documents at the left, the conversation in the middle, the text with what the answer attended to to the right.

import * as api from "./api.js";
import { CHAT, Documents } from "./documents.js";
import { announce, ask, byId, confirmed, el } from "./dom.js";
import { emptyState } from "./empty.js";
import { set, setting } from "./kept.js";
import { listen } from "./keys.js";
import * as options from "./options.js";
import { Reading } from "./reading.js";
import { save, Talks } from "./talks.js";
import { number } from "./words.js";

const root = document.documentElement;
const question = byId("question");
const reading = new Reading((error) => banner(error.message));
let served = null; // the model, as /v1/models tells of it
let one = null; // the document that is chosen
let shown = null; // its conversation that is shown
let edited = -1; // the turn of it whose question is written anew

// Appearance

const prefersDark = matchMedia("(prefers-color-scheme: dark)");

function theme(chosen) {
  if (chosen) root.dataset.theme = chosen;
  byId("theme").setAttribute("aria-pressed", String(chosen ? chosen === "dark" : prefersDark.matches));
}

theme(setting("theme", ""));
prefersDark.addEventListener("change", () => theme(setting("theme", "")));
byId("theme").addEventListener("click", () => {
  const other = byId("theme").getAttribute("aria-pressed") === "true" ? "light" : "dark";
  set("theme", other);
  theme(other);
});

/** If there is no room for all three parts: which of them is seen. */
function panel(name) {
  if (name === "text" && one === CHAT) return;
  root.dataset.panel = name;
  for (const button of document.querySelectorAll(".panels button"))
    button.setAttribute("aria-current", String(button.dataset.goto === name));
}

for (const button of document.querySelectorAll(".panels button"))
  button.addEventListener("click", () => panel(button.dataset.goto));

let unanswered = false; // the banner says that the server does not answer

function banner(words, ofTheServer = false) {
  unanswered = ofTheServer && Boolean(words);
  byId("banner").hidden = !words;
  byId("banner-words").textContent = words;
}

byId("dismiss").addEventListener("click", () => {
  banner("");
  question.focus();
});

// Documents

const documents = new Documents({
  chosen: (chosen) => {
    open(chosen);
    panel("conversation");
  },
  changed: (changed) => changed.id === one?.id && (changed.status === one.status ? progressed(changed) : open(changed)),
  gone: (id, deleted) => {
    talks.gone(id, deleted);
    if (one?.id === id) open(null);
  },
  failed: (error, asked = false) => banner(error.message, !asked),
  answered: () => unanswered && banner(""),
});

function open(chosen) {
  one = chosen;
  documents.chosen = chosen?.id ?? null;
  history.replaceState(null, "", chosen ? `#${chosen.id}` : location.pathname + location.search);
  byId("text-title").textContent = chosen?.name ?? "Text";
  document.title = chosen ? `${chosen.name} · longspan` : "longspan";
  const chat = chosen === CHAT;
  root.classList.toggle("without-text", chat);
  byId("question").placeholder = chat ? "Say something" : "Ask about the text";
  document.querySelector("label[for=question]").textContent = chat ? "Message" : "Question about the document";
  byId("system-field").hidden = !chat;
  byId("no-system").hidden = chat;
  shown = chosen ? talks.of(chosen.id) : null;
  edit(-1);
  if (chosen?.status !== "ready") {
    reading.close(chosen ? "The text is shown when it has been read." : "The text is shown here, with the sentences that an answer attended to.");
    changed();
    return;
  }
  if (!chosen.characters) {
    reading.close(chat ? "" : "The text of this document was not kept.");
    changed();
    return;
  }
  const last = shown.turns.at(-1);
  reading.open(chosen).then(() => last?.turn.looked && shown?.turns.includes(last) && reading.point(last, -1));
  changed();
  byId("turns").scrollTop = byId("turns").scrollHeight;
}

function progressed(news) {
  one = news;
  byId("text-title").textContent = news.name;
  if (news.status !== "ready") changed();
}

// The conversation

const on = {
  body: (id, messages) => {
    const body = { model: served?.id ?? "", messages, ...options.options(), stream_options: { include_usage: true } };
    if (id !== CHAT.id) return { ...body, document: id, passages: true };
    if (options.system()) messages.unshift({ role: "system", content: options.system() });
    return body;
  },
  saw: (id, usage) => {
    const { whole, chooses } = served?.longspan ?? {};
    if (id === CHAT.id || whole === undefined) return "";
    if (whole === null || usage.total_tokens <= whole) return "whole";
    return chooses ? "chosen" : "recent";
  },
  edit: (view, now = false) => {
    edit(shown.turns.indexOf(view));
    if (now) send();
  },
  point: (view, token) => reading.point(view, token),
  hover: (view, token) => reading.searched || reading.point(view, token),
  go: (start, end, view) => {
    if (reading.view !== view || reading.searched) reading.point(view, view.pinned, false);
    panel("text");
    reading.visit(start, end);
  },
  told: banner,
  changed: (conversation, view) => {
    if (conversation !== shown) return;
    changed();
    if (view?.turn.looked) reading.point(view, -1);
    if (view) announce({ done: "Answered.", stopped: "Stopped.", failed: view.turn.error }[view.turn.state]);
  },
};

const talks = new Talks(on);

/** Write a question anew: that of a turn, or -1 for none. */
function edit(turn) {
  if (edited >= 0 && turn < 0) question.value = "";
  edited = turn;
  byId("editing").hidden = turn < 0;
  if (turn < 0) return;
  question.value = shown.turns[turn].turn.question;
  question.focus();
}

byId("not-edit").addEventListener("click", () => edit(-1));

/** Show what there is to be done with the document that is chosen. */
function changed() {
  const ready = one?.status === "ready";
  const busy = Boolean(shown?.busy);
  const at = document.activeElement;
  byId("send").disabled = !ready;
  byId("send").hidden = busy;
  byId("stop").hidden = !busy;
  if (at === byId("send") && busy) byId("stop").focus();
  if (at === byId("stop") && !busy) byId("send").focus();
  for (const name of ["new", "export", "drop-talk"]) byId(name).disabled = !shown?.turns.length;
  const all = one ? talks.all(one.id) : [];
  byId("talks").hidden = all.length < 2;
  byId("talks").replaceChildren(...all.map(({ n, title }) => el("option", { value: n, selected: n === shown.n, text: title.slice(0, 80) })));
  const inside = ready && shown.turns.length ? shown.root : emptyState(one, documents.all.length > 0, send);
  if (inside.parentElement !== byId("turns")) byId("turns").replaceChildren(inside);
}

function send(asked = question.value.trim()) {
  if (one?.status !== "ready" || shown.busy) return;
  if (!asked) return question.focus();
  if (!options.valid()) return;
  if (edited >= 0) shown = talks.anew(one.id, shown.turns.slice(0, edited).map((view) => view.turn));
  edit(-1);
  question.value = "";
  shown.ask(asked);
  if (document.activeElement === document.body) byId("stop").focus(); // a suggested question is gone
}

byId("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  send();
});
question.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  send();
});
byId("stop").addEventListener("click", () => {
  shown?.stop();
  question.focus();
});
function anew() {
  if (!shown?.turns.length) return;
  talks.anew(one.id);
  open(one);
  question.focus();
}

byId("new").addEventListener("click", anew);
byId("export").addEventListener("click", () => save(shown, one.name, nameOf(served.id)));
byId("talks").addEventListener("change", () => {
  talks.choose(one.id, Number(byId("talks").value));
  open(one);
});
byId("drop-talk").addEventListener("click", async () => {
  if (!(await confirmed("conversation", `“${shown.title}” and what follows it are deleted from this browser.`))) return;
  talks.drop(shown);
  open(one);
  question.focus();
});

// Keys

function back() {
  if (shown?.busy) shown.stop();
  else if (edited >= 0) edit(-1);
  else if (reading.searched) reading.search((byId("words").value = ""));
  else reading.view?.release();
}

function focus(name, selector) {
  panel(name);
  const found = document.querySelectorAll(`#${name} ${selector}`);
  [...found].at(-1)?.focus();
}

listen([
  ["/", "the question", () => focus("conversation", "#question")],
  ["d", "the documents", () => focus("documents", ".doc[tabindex='0']")],
  ["a", "the tokens of the last answer", () => focus("conversation", "[data-token][tabindex='0']")],
  ["p", "the passages of the last answer", () => focus("conversation", ".passage[tabindex='0']")],
  ["b", "the bar of the whole document", () => focus("text", "#bar")],
  ["t", "the text", () => focus("text", "#page")],
  ["f", "search in the text", () => focus("text", "#words")],
  ["[", "the passage that was attended to more", () => reading.step(-1)],
  ["]", "the passage that was attended to less", () => reading.step(1)],
  ["u", "add a document", () => byId("file").click()],
  ["n", "a new conversation", anew],
  ["Esc", "stop the answer; back from a token to the whole answer", back],
]);

// Begin

api.whenKeyIsNeeded(async (again) => {
  byId("key-wrong").hidden = !again;
  byId("key").value = "";
  // Without the key there is nothing to go back to: Escape asks again.
  do await ask(byId("key-dialog"));
  while (!byId("key").value);
  api.setKey(byId("key").value);
});

/** A model's name without the folders that it lies in. */
const nameOf = (id) => id.split(/[\\/]/).filter(Boolean).at(-1) ?? id;

async function begin() {
  served = await api.model();
  options.fill(served.longspan ?? {});
  const { method, window: size } = served.longspan ?? {};
  byId("model").textContent = [nameOf(served.id), method, size && `window of ${number(size)}`].filter(Boolean).join(" · ");
  await documents.refresh();
  const wanted = documents.get(location.hash.slice(1)) ?? (documents.all.length === 1 ? documents.all[0] : null);
  if (wanted) documents.choose(wanted.id);
  else open(null);
}

for (;;) {
  try {
    await begin();
    break;
  } catch (error) {
    banner(error.message, true);
    await new Promise((resolve) => setTimeout(resolve, 2000));
  }
}
addEventListener("hashchange", () => {
  const wanted = documents.get(location.hash.slice(1));
  if (wanted && wanted.id !== one?.id) documents.choose(wanted.id);
});
