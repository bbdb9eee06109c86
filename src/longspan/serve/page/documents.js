// The documents of the server: sent, read, chosen, renamed and deleted.

import * as api from "./api.js";
import { announce, ask, byId, confirmed, el, reachable, roving } from "./dom.js";
import { bytes, count, duration, number, percent } from "./words.js";

const AGAIN = 2000; // milliseconds before the server is asked again if it does not answer
const QUEUED = 500; // and while documents wait for their turn

/** What stands for no document. */
export const CHAT = { id: "chat", name: "Chat without a text", status: "ready", own: false, characters: 0 };

const unfinished = (one) => one.status === "queued" || one.status === "reading";
const pause = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));

export class Documents {
  /** `on`: chosen(document), changed(document), gone(id, deleted), failed(error, asked), answered(). */
  constructor(on) {
    Object.assign(this, { on, all: [], sending: [], items: new Map(), chosen: null, following: false });
    this.list = byId("list");
    roving(this.list, ".doc");
    this.list.addEventListener("keydown", (event) => this.#key(event));
    this.#receive();
  }

  get(id) {
    return id === CHAT.id ? CHAT : this.all.find((one) => one.id === id);
  }

  async refresh() {
    const before = this.all;
    this.all = (await api.documents()).sort((a, b) => b.created_at - a.created_at);
    this.on.answered();
    this.#show();
    for (const one of this.all) {
      const old = before.find(({ id }) => id === one.id);
      if (old && old.status !== one.status) this.#changed(one);
    }
    if (this.chosen && !this.get(this.chosen)) this.on.gone(this.chosen, false);
    this.#follow();
  }

  #changed(one) {
    if (one.status === "ready") announce(`${one.name} is read.`);
    if (one.status === "failed") announce(`${one.name} could not be read: ${one.error}`);
    this.on.changed(one);
  }

  choose(id) {
    this.chosen = id;
    this.#show();
    this.on.chosen(this.get(id));
  }

  /** Look on while something is being read: at one document's stream, since a browser has few connections to a server. */
  async #follow() {
    if (this.following) return;
    this.following = true;
    while (this.all.some(unfinished)) {
      try {
        const reading = this.all.find((one) => one.status === "reading");
        if (reading) for await (const one of api.changes(reading.id)) this.#put(one);
        else await pause(QUEUED);
        await this.refresh();
      } catch (error) {
        if (error.status !== 404) this.on.failed(error); // 404: it was deleted meanwhile
        await pause(AGAIN);
        await this.refresh().catch((failed) => this.on.failed(failed));
      }
    }
    this.following = false;
  }

  #put(one) {
    const at = this.all.findIndex(({ id }) => id === one.id);
    if (at < 0) return;
    const old = this.all[at];
    this.all[at] = one;
    this.#show();
    if (old.status !== one.status) this.#changed(one);
    else if (one.id === this.chosen) this.on.changed(one);
  }

  // Sending

  #receive() {
    const file = byId("file");
    byId("chat-alone").addEventListener("click", () => this.choose(CHAT.id));
    for (const id of ["add", "choose"]) byId(id).addEventListener("click", () => file.click());
    file.addEventListener("change", () => {
      this.send([...file.files]);
      file.value = "";
    });
    const has = (event) => [...(event.dataTransfer?.types ?? [])].includes("Files");
    addEventListener("dragover", (event) => {
      if (!has(event)) return;
      event.preventDefault();
      document.documentElement.classList.add("dropping");
    });
    addEventListener("dragleave", (event) => {
      if (!event.relatedTarget) document.documentElement.classList.remove("dropping");
    });
    addEventListener("drop", (event) => {
      document.documentElement.classList.remove("dropping");
      if (!has(event)) return;
      event.preventDefault();
      this.send([...event.dataTransfer.files]);
    });
  }

  async send(files) {
    for (const file of files) {
      const one = { name: file.name, share: 0 };
      this.sending.push(one);
      this.#show();
      try {
        const sent = await api.upload(file, (share) => {
          one.share = share;
          this.#show();
        });
        this.sending = this.sending.filter((x) => x !== one);
        await this.refresh();
        announce(`${sent.name} was sent and is being read.`);
        if (this.get(sent.id)) this.choose(sent.id);
      } catch (error) {
        this.sending = this.sending.filter((x) => x !== one);
        this.#show();
        this.on.failed(error, true);
      }
    }
  }

  // The list

  /** Elements stay while their documents do: what is focused or read aloud is not taken away by news of the reading. */
  #show() {
    const wanted = [...this.sending.map((one) => this.#sendingItem(one)), ...this.all.map((one) => this.#item(one))];
    const there = [...this.list.children];
    if (wanted.length !== there.length || wanted.some((item, n) => item !== there[n])) this.list.replaceChildren(...wanted);
    byId("documents").classList.toggle("empty", !wanted.length);
    byId("chat-alone").setAttribute("aria-current", String(this.chosen === CHAT.id));
    reachable(this.list, ".doc", this.#button(this.chosen));
  }

  #button(id) {
    return [...this.list.querySelectorAll(".doc")].find((one) => one.dataset.id === id);
  }

  #sendingItem(one) {
    one.element ??= el("li", { class: "sending" });
    one.element.replaceChildren(...sendingLines(one));
    return one.element;
  }

  #item(one) {
    const item = this.items.get(one.id) ?? this.#newItem(one.id);
    const [button, actions] = item.children;
    button.dataset.status = one.status;
    button.replaceChildren(el("span", { class: "name", dir: "auto", text: one.name }), ...statusLines(one));
    const current = one.id === this.chosen;
    if (current) button.setAttribute("aria-current", "true");
    else button.removeAttribute("aria-current");
    actions.hidden = !current || one.own === false; // what longspan read wrote is not the server's to change
    for (const action of actions.children) action.setAttribute("aria-label", `${action.textContent} ${one.name}`);
    return item;
  }

  #newItem(id) {
    const action = (name, text, click) => el("button", { type: "button", class: "link", "data-do": name, text, click });
    const item = el(
      "li",
      {},
      el("button", { type: "button", class: "doc", "data-id": id, click: () => this.choose(id) }),
      el(
        "div",
        { class: "actions" },
        action("rename", "Rename", () => this.rename(this.get(id))),
        action("delete", "Delete", () => this.remove(this.get(id))),
      ),
    );
    this.items.set(id, item);
    return item;
  }

  #key(event) {
    const one = event.target.closest(".doc") && this.get(event.target.dataset.id);
    if (!one || one.own === false || event.altKey || event.ctrlKey || event.metaKey) return;
    if (event.key === "F2") this.rename(one);
    else if (event.key === "Delete") this.remove(one);
    else return;
    event.preventDefault();
  }

  async rename(one) {
    const field = byId("name");
    field.value = one.name;
    const agreed = ask(byId("rename-dialog"));
    field.select();
    const name = (await agreed) && field.value.trim();
    if (!name || name === one.name) return;
    try {
      this.#put(await api.rename(one.id, name));
      this.on.changed(this.get(one.id));
      announce(`Renamed to ${name}.`);
    } catch (error) {
      this.on.failed(error, true);
    }
  }

  async remove(one) {
    const what = `“${one.name}” and all that was read of it are deleted from the server, and the conversation about it from this browser.`;
    if (!(await confirmed("document", what))) return;
    try {
      await api.remove(one.id);
      this.all = this.all.filter(({ id }) => id !== one.id);
      this.items.delete(one.id);
      this.#show();
      this.on.gone(one.id, true);
      announce(`${one.name} was deleted.`);
      (this.list.querySelector(".doc[tabindex='0']") ?? byId("choose")).focus();
    } catch (error) {
      this.on.failed(error, true);
    }
  }
}

/** How far the reading is: 0 to 1. */
export const shareRead = (one) => (one.tokens ? one.tokens_read / one.tokens : 0);

/** The progress of a reading, in words. */
export function progressOf(one) {
  if (one.status === "queued") return "waits for its turn";
  const said = [one.tokens ? `${percent(shareRead(one))} read` : `${number(one.tokens_read)} tokens read`];
  if (one.tokens_per_second) said.push(`${number(one.tokens_per_second)} tokens/s`);
  if (one.seconds_left !== null && one.seconds_left !== undefined) said.push(`${duration(one.seconds_left)} left`);
  return said.join(" · ");
}

function statusLines(one) {
  if (one.status === "ready") {
    const said = one.tokens === null ? bytes(one.bytes) : `${count(one.tokens, "token")} · ${bytes(one.bytes)}`;
    return [el("span", { class: "dim", text: said })];
  }
  if (one.status === "failed") return [el("span", { class: "error", text: one.error || "could not be read" })];
  const progress = el("progress", { max: 100, value: Math.round(100 * shareRead(one)), "aria-label": `${one.name}, reading` });
  return [progress, el("span", { class: "dim", text: progressOf(one) })];
}

function sendingLines(one) {
  const progress = el("progress", { max: 100, value: Math.round(100 * one.share), "aria-label": `${one.name}, sending` });
  return [el("span", { class: "name", dir: "auto", text: one.name }), progress, el("span", { class: "dim", text: `${percent(one.share)} sent` })];
}
