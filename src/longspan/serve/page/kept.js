// What this browser keeps: conversations by document, and settings. Nothing of it goes to the server.

const CONVERSATION = "longspan:conversation:";

/** A setting; `otherwise` if there is none, or if the browser keeps nothing. */
export function setting(name, otherwise) {
  try {
    return localStorage.getItem(`longspan:${name}`) ?? otherwise;
  } catch {
    return otherwise;
  }
}

export function set(name, value) {
  try {
    localStorage.setItem(`longspan:${name}`, value);
  } catch {
    // Without storage a setting holds until the page is closed.
  }
}

const keyOf = (id, n) => CONVERSATION + id + (n ? `:${n}` : "");

/** The numbers of a document's conversations, the first is 0. */
export function conversations(id) {
  try {
    const numbers = Object.keys(localStorage).map((key) => (key === keyOf(id, 0) ? 0 : Number(key.split(`${keyOf(id, 0)}:`)[1])));
    return numbers.filter((n) => n >= 0).sort((a, b) => a - b);
  } catch {
    return [];
  }
}

/** The turns of a document's conversation. */
export function conversation(id, n) {
  try {
    const turns = JSON.parse(localStorage.getItem(keyOf(id, n)) ?? "[]");
    // What an earlier page kept of passages says how often, and not how many times as much.
    return Array.isArray(turns) ? turns.map((turn) => (turn.looked?.answer?.every((p) => p.lift !== undefined) ? turn : { ...turn, looked: undefined })) : [];
  } catch {
    return [];
  }
}

/**
 * Keep a conversation. If the browser has no room, the passages by token of its oldest answers go first, then all passages.
 * Returns "" or what was not kept, in words.
 */
export function keep(id, n, turns) {
  const kept = turns.map((turn) => ({ ...turn }));
  const tries = [
    ...kept.map((turn) => () => turn.looked && (turn.looked = { ...turn.looked, tokens: [] })),
    ...kept.map((turn) => () => delete turn.looked),
  ];
  for (let dropped = 0; dropped <= tries.length; dropped++) {
    try {
      localStorage.setItem(keyOf(id, n), JSON.stringify(kept));
      return dropped ? "The browser's storage is full: passages of older answers are gone after a reload." : "";
    } catch {
      tries[dropped]?.();
    }
  }
  return "The browser keeps no data for this page: the conversation is gone after a reload.";
}

export function forget(id, n) {
  try {
    localStorage.removeItem(keyOf(id, n));
  } catch {
    // Nothing was kept.
  }
}
