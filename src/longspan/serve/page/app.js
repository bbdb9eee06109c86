// The page: documents at the left, the conversation in the middle, the text with what the answer attended to to the right.

import * as api from "./api.js";
import { Conversation } from "./conversation.js";
import { Documents, progressOf, shareRead } from "./documents.js";
import { announce, ask, byId, el } from "./dom.js";
import { forget, set, setting } from "./kept.js";
import { listen } from "./keys.js";
import { Reading } from "./reading.js";
import { bytes, count, number } from "./words.js";

const root = document.documentElement;
const question = byId("question");
const most = byId("most");
const conversations = new Map();
const reading = new Reading((error) => banner(error.message));
let served = null; // the model, as /v1/models tells of it
let one = null; // the document that is chosen
let shown = null; // its conversation

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
    if (deleted) conversations.get(id)?.clear(); // an answer that is only stopped is kept with its conversation
    else conversations.get(id)?.stop();
    if (deleted) forget(id);
    conversations.delete(id);
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
  if (chosen && !conversations.has(chosen.id)) conversations.set(chosen.id, new Conversation(chosen.id, on));
  shown = chosen ? conversations.get(chosen.id) : null;
  if (chosen?.status !== "ready") {
    reading.close(chosen ? "The text is shown when it has been read." : "The text is shown here, with the sentences that an answer attended to.");
    changed();
    return;
  }
  if (!chosen.characters) {
    reading.close("The text of this document was not kept.");
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
  model: () => served?.id ?? "",
  point: (view, token) => reading.point(view, token),
  go: (start, end, view) => {
    if (reading.view !== view) reading.point(view, view.pinned, false);
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
  byId("new").disabled = !shown?.turns.length;
  const state = el("div", { class: "empty-state" });
  const inside = ready && shown.turns.length ? shown.root : state;
  if (inside.parentElement !== byId("turns")) byId("turns").replaceChildren(inside);
  if (!one && !documents.all.length)
    state.append(
      el("h3", { text: "Nothing is read yet" }),
      el("p", { text: "Drop a text on this page: a book, a report, a log. The model reads it once, and then answers from it as often as you ask." }),
      el("p", {}, el("button", { type: "button", text: "Add a text", click: () => byId("file").click() })),
    );
  else if (!one) state.append(el("h3", { text: "Choose a document" }), el("p", { text: "Each has a conversation of its own." }));
  else if (one.status === "failed")
    state.append(el("h3", { text: "It could not be read" }), el("p", { class: "error", text: one.error || "The server did not say why." }));
  else if (!ready)
    state.append(
      el("h3", { text: one.status === "queued" ? "Waiting to be read" : "Being read" }),
      el("progress", { max: 1, value: shareRead(one), "aria-label": "Reading" }),
      el("p", { text: progressOf(one) }),
      el("p", { class: "dim", text: "Questions can be asked once it has been read. You may close this page meanwhile." }),
    );
  else
    state.append(
      el("h3", { text: "Ask about this text" }),
      el("p", { text: `${count(one.tokens ?? 0, "token")}, ${bytes(one.bytes)}, read and kept.` }),
      el("p", {
        class: "dim",
        text: "Beside each answer you see the sentences that it attended to most. They show where to check, and are not proof.",
      }),
    );
}

function send() {
  if (one?.status !== "ready" || shown.busy) return;
  const asked = question.value.trim();
  if (!asked) return question.focus();
  if (!most.reportValidity()) return;
  question.value = "";
  shown.ask(asked, Number(most.value));
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
  shown.clear();
  reading.open(one);
  question.focus();
}

byId("new").addEventListener("click", anew);
most.value = setting("most", most.value);
most.addEventListener("change", () => most.validity.valid && set("most", most.value));

// Keys

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
  ["[", "the passage that was attended to more", () => reading.step(-1)],
  ["]", "the passage that was attended to less", () => reading.step(1)],
  ["u", "add a document", () => byId("file").click()],
  ["n", "a new conversation", anew],
  ["Esc", "stop the answer; back from a token to the whole answer", () => (shown?.busy ? shown.stop() : reading.view?.release())],
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

async function begin() {
  served = await api.model();
  const { method, window: size } = served.longspan ?? {};
  byId("model").textContent = [served.id, method, size && `window of ${number(size)}`].filter(Boolean).join(" · ");
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
