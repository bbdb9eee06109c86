// The server's HTTP interface. Whatever goes wrong becomes a ServerError, in plain words.

const KEY = "longspan:key";
let keyAsked = null;
let askForKey = async () => {};

export class ServerError extends Error {
  constructor(message, status = 0) {
    super(message);
    this.status = status;
  }
}

/** `ask(again)` resolves when `setKey` was called. */
export function whenKeyIsNeeded(ask) {
  askForKey = ask;
}

export function setKey(key) {
  sessionStorage.setItem(KEY, key);
}

function authorization() {
  const key = sessionStorage.getItem(KEY);
  return key ? { Authorization: `Bearer ${key}` } : {};
}

/** Ask for the key once, however many requests were refused; `used` is the header that they were sent with. */
async function newKey(used) {
  if (authorization().Authorization !== used) return;
  keyAsked ??= askForKey(used !== undefined).finally(() => (keyAsked = null));
  await keyAsked;
}

const ACCEPTED = "Texts in UTF-8, PDF and HTML files are accepted.";
const GONE = "The server does not answer. Is it still running?";

/** An error's answer in words. */
function inWords(status, body, retryAfter) {
  let said = "";
  try {
    said = JSON.parse(body).error.message;
  } catch {
    said = body.length < 200 && !body.includes("<") ? body : "";
  }
  if (status === 429) {
    const wait = Number(retryAfter) > 0 ? `in ${retryAfter} s` : "in a moment";
    return new ServerError(`The server is busy. Try again ${wait}.`, status);
  }
  if (status === 413) return new ServerError(said || "That is more than the server takes at once.", status);
  if (status >= 500) return new ServerError(`The server failed${said ? `: ${said}` : ` (${status}).`}`, status);
  return new ServerError(said || `The server refused this (${status}).`, status);
}

async function request(method, path, { json, signal } = {}) {
  for (;;) {
    const key = authorization();
    const headers = json === undefined ? key : { ...key, "Content-Type": "application/json" };
    let response;
    try {
      response = await fetch(path, { method, headers, body: json === undefined ? undefined : JSON.stringify(json), signal, cache: "no-store" });
    } catch (error) {
      throw error.name === "AbortError" ? error : new ServerError(GONE);
    }
    if (response.ok) return response;
    const body = await response.text();
    if (response.status !== 401) throw inWords(response.status, body, response.headers.get("Retry-After"));
    await newKey(key.Authorization);
  }
}

const call = async (method, path, options) => (await request(method, path, options)).json();

const path = (id, more = "") => `v1/documents/${encodeURIComponent(id)}${more}`;

export const model = async () => (await call("GET", "v1/models")).data[0];
export const documents = async () => (await call("GET", "v1/documents")).data;
export const rename = (id, name) => call("PATCH", path(id), { json: { name } });
export const remove = (id) => call("DELETE", path(id));
export const search = (id, words) => call("GET", path(id, `/search?words=${encodeURIComponent(words)}`));
export const text = (id, start, end) => call("GET", path(id, `/text?start=${start}&end=${end}`));

/** The document, each time that it changes, until it is read. */
export async function* changes(id) {
  for await (const data of events(await request("GET", path(id, "/events")))) yield JSON.parse(data);
}

/** The chunks of an answer; `heard` is called with each comment, such as "reading 42%". */
export async function* chat(body, signal, heard) {
  const response = await request("POST", "v1/chat/completions", { json: { ...body, stream: true }, signal });
  for await (const data of events(response, heard)) {
    if (data === "[DONE]") return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new ServerError(chunk.error.message, 500);
    yield chunk;
  }
  throw new ServerError("The connection ended before the answer did.");
}

/** The data of each server-sent event; `heard` is called with each comment. */
async function* events(response, heard = () => {}) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let left = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const blocks = (left + value).replaceAll("\r\n", "\n").split("\n\n");
      left = blocks.pop();
      for (const block of blocks) {
        const lines = block.split("\n").filter((line) => line.startsWith("data:"));
        for (const line of block.split("\n")) if (line.startsWith(": ")) heard(line.slice(2));
        if (lines.length) yield lines.map((line) => line.slice(5).replace(/^ /, "")).join("\n");
      }
    }
  } catch (error) {
    throw error.name === "AbortError" || error instanceof ServerError ? error : new ServerError(GONE);
  } finally {
    reader.cancel().catch(() => {});
  }
}

/** Send a file; `progress(share)` is called as it goes. fetch() does not tell how far a body is sent. */
export async function upload(file, progress) {
  for (;;) {
    const key = authorization();
    const { status, body, retryAfter } = await new Promise((resolve, reject) => {
      const sending = new XMLHttpRequest();
      sending.open("POST", "v1/documents");
      if (key.Authorization) sending.setRequestHeader("Authorization", key.Authorization);
      sending.upload.onprogress = (event) => event.lengthComputable && progress(event.loaded / event.total);
      sending.onload = () =>
        resolve({ status: sending.status, body: sending.responseText, retryAfter: sending.getResponseHeader("Retry-After") });
      sending.onerror = () => reject(new ServerError(`${file.name} could not be sent: the server ended the connection.`));
      const form = new FormData();
      form.append("file", file, file.name);
      sending.send(form);
    });
    if (status >= 200 && status < 300) return JSON.parse(body);
    if (status !== 401) {
      const { message } = inWords(status, body, retryAfter);
      throw new ServerError(`${file.name}: ${message}${status === 400 ? ` ${ACCEPTED}` : ""}`, status);
    }
    await newKey(key.Authorization);
  }
}
