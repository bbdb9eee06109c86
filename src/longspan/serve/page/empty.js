// What stands where a conversation will be: what there is to be done with the document that is chosen.

import { CHAT, progressOf, shareRead } from "./documents.js";
import { byId, el } from "./dom.js";
import { bytes, count } from "./words.js";

const QUESTIONS = ["What is this text about?", "Who or what is it mostly about?", "How does it end?"];

/** `one`: the document, or null; `any`: whether there are others; `send(question)` asks. */
export function emptyState(one, any, send) {
  return el("div", { class: "empty-state" }, ...parts(one, any, send));
}

function parts(one, any, send) {
  const title = (text) => el("h3", { text });
  const words = (text) => el("p", { text });
  const dim = (text) => el("p", { class: "dim", text });
  const button = (text, click) => el("button", { type: "button", text, click });
  if (one === CHAT) return [title(CHAT.name), words("The model answers from what it has learned. The options below take a system message.")];
  const chat = button(CHAT.name, () => byId("chat-alone").click());
  if (!one && any) return [title("Choose a document"), words("Each has conversations of its own."), el("p", {}, chat)];
  if (!one)
    return [
      title("Nothing is read yet"),
      words("Drop a text on this page: a book, a report, a log. The model reads it once, and then answers from it as often as you ask."),
      el("p", {}, button("Add a text", () => byId("file").click()), " ", chat),
    ];
  if (one.status === "failed") return [title("It could not be read"), el("p", { class: "error", text: one.error || "The server did not say why." })];
  if (one.status !== "ready")
    return [
      title(one.status === "queued" ? "Waiting to be read" : "Being read"),
      el("progress", { max: 100, value: Math.round(100 * shareRead(one)), "aria-label": "Reading" }),
      words(progressOf(one)),
      dim("Questions can be asked once it has been read. You may close this page meanwhile."),
    ];
  const questions = one.questions?.length ? one.questions : QUESTIONS;
  return [
    title("Ask about this text"),
    words(`${count(one.tokens ?? 0, "token")}, ${bytes(one.bytes)}, read and kept.`),
    dim("Beside each answer you see the sentences that it attended to most. They show where to check, and are not proof."),
    el("ul", { class: "suggested", "aria-label": "Questions to begin with" }, ...questions.map((text) => el("li", {}, button(text, () => send(text))))),
  ];
}
