// Elements. Text goes in as text and never as HTML, whatever a document or an answer holds.

export const byId = (id) => document.getElementById(id);

/** An element; `props` are attributes, save `text` (its text) and functions (listeners by the event's name). */
export function el(tag, props = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (name === "text") made.textContent = value;
    else if (typeof value === "function") made.addEventListener(name, value);
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children);
  return made;
}

/** Say something to those who listen instead of looking. */
export function announce(text) {
  byId("announce").textContent = text;
}

/**
 * One item of a list takes part in the order of Tab, and arrow keys move between them.
 * `options.along` is "x" or "y"; "x" moves with up and down as well.
 */
export function roving(list, selector, options = {}) {
  const back = options.along === "x" ? ["ArrowLeft", "ArrowUp"] : ["ArrowUp"];
  const forth = options.along === "x" ? ["ArrowRight", "ArrowDown"] : ["ArrowDown"];
  list.addEventListener("keydown", (event) => {
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    const items = [...list.querySelectorAll(selector)];
    const at = items.indexOf(event.target);
    if (at < 0) return;
    let to = -1;
    if (back.includes(event.key)) to = Math.max(at - 1, 0);
    else if (forth.includes(event.key)) to = Math.min(at + 1, items.length - 1);
    else if (event.key === "Home") to = 0;
    else if (event.key === "End") to = items.length - 1;
    if (to < 0) return;
    event.preventDefault();
    items[to].focus();
  });
  list.addEventListener("focusin", (event) => {
    const item = event.target.closest(selector);
    if (item) reachable(list, selector, item);
  });
}

/** Make `item`, else the first, the one that Tab reaches. */
export function reachable(list, selector, item = null) {
  const items = [...list.querySelectorAll(selector)];
  const chosen = items.includes(item) ? item : items[0];
  for (const one of items) one.tabIndex = one === chosen ? 0 : -1;
}

/** Show a dialog; resolves to whether it was agreed to. */
export function ask(dialog) {
  return new Promise((resolve) => {
    dialog.returnValue = "";
    // Not a submit button: Enter in a field presses the first one of those.
    for (const no of dialog.querySelectorAll("[data-no]")) no.onclick = () => dialog.close();
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true });
    dialog.showModal();
  });
}

/** Whether somebody wants to delete a thing, of which `what` says what goes with it. */
export function confirmed(thing, what) {
  byId("delete-title").textContent = `Delete this ${thing}?`;
  byId("delete-what").textContent = `${what} There is no way back.`;
  return ask(byId("delete-dialog"));
}

/** A button that copies what `text()` gives. Without the clipboard, as on a page without TLS, the text is selected and copied. */
export function copier(name, text) {
  const button = el("button", { type: "button", class: "link", "data-do": "copy", text: name });
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text());
    } catch {
      const field = el("textarea", { class: "hidden" });
      field.value = text();
      button.after(field);
      field.select();
      document.execCommand("copy");
      field.remove();
      button.focus();
    }
    button.textContent = "Copied";
    announce("Copied.");
    setTimeout(() => (button.textContent = name), 1500);
  });
  return button;
}

/** Give the browser a file to keep. */
export function download(name, text) {
  const address = URL.createObjectURL(new Blob([text], { type: "text/markdown" }));
  el("a", { href: address, download: name }).click();
  URL.revokeObjectURL(address);
}
