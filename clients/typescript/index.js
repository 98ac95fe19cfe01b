// Client of the Penstock HTTP API, without dependencies: for Node 18 or newer, Deno, Bun and browsers.

const RECONNECT_MS = 2000;
const MAX_PAUSE_MS = 20_000;
const MAX_FAILED_STREAMS = 5;
const BUSY = new Set([429, 502, 503, 504]);

export class PenstockError extends Error {
  constructor(status, body, retryAfter) {
    super(body.detail ?? body.message ?? body.title ?? `the server answered ${status}`);
    this.name = "PenstockError";
    this.status = status;
    this.code = body.code ?? "unknown";
    this.details = body;
    this.retryAfter = retryAfter;
  }
}

export class Penstock {
  #url;
  #key;
  #retries;
  #timeout;
  #fetch;

  constructor({ url, key, retries = 5, timeout = 30_000, fetch = globalThis.fetch }) {
    const address = new URL(url);
    if (!["http:", "https:"].includes(address.protocol) || address.username || address.search || address.hash) {
      throw new TypeError("url must be the server's address, such as https://jobs.example.org");
    }
    this.#url = address.href.replace(/\/+$/, "");
    this.#key = key;
    this.#retries = retries;
    this.#timeout = timeout;
    this.#fetch = fetch;
  }

  async request(operation, { path, query, body, idempotencyKey, signal } = {}) {
    const [method, template] = operation.split(" ", 2);
    const headers = { Accept: "application/json" };
    // The same key for every try: the server answers a repeated request with the first response.
    if (method !== "GET") headers["Idempotency-Key"] = idempotencyKey ?? crypto.randomUUID();
    let content;
    if (body !== undefined) {
      const isRaw = typeof body === "string" || body instanceof Uint8Array;
      content = isRaw ? body : JSON.stringify(body);
      headers["Content-Type"] = isRaw ? "application/octet-stream" : "application/json";
    }
    const address = this.#url + filled(template, path) + search(query);
    for (let tries = 0; ; tries++) {
      let error;
      try {
        const limit = AbortSignal.timeout(this.#timeout);
        const response = await this.#send(address, { method, headers, body: content }, signal ? either(signal, limit) : limit);
        if (response.ok) return await answerOf(response);
        error = await errorOf(response);
        if (!BUSY.has(error.status)) throw error;
      } catch (caught) {
        if (caught instanceof PenstockError && !BUSY.has(caught.status)) throw caught;
        if (signal?.aborted) throw signal.reason;
        error = caught;
      }
      if (tries >= this.#retries) throw error;
      await pause(delay(tries, error), signal);
    }
  }

  async *events(path, { lastEventId, signal } = {}) {
    let last = lastEventId;
    let failed = 0;
    for (;;) {
      let wait = 0;
      try {
        const headers = { Accept: "text/event-stream", "Cache-Control": "no-store" };
        if (last !== undefined) headers["Last-Event-ID"] = last;
        const response = await this.#send(this.#url + path, { headers }, signal);
        if (!response.ok) throw await errorOf(response);
        for await (const event of parsed(response.body)) {
          failed = 0;
          if (event === null) continue;
          last = event.id ?? last;
          yield event;
          if (event.event === "end") return;
        }
      } catch (error) {
        if (signal?.aborted) throw signal.reason;
        if (error instanceof PenstockError && !BUSY.has(error.status)) throw error;
        if (++failed >= MAX_FAILED_STREAMS) throw error;
        wait = (error.retryAfter ?? 0) * 1000;
      }
      await pause(wait + Math.random() * RECONNECT_MS, signal);
    }
  }

  async *jobEvents(jobId, options = {}) {
    const path = filled("/api/jobs/{job_id}/events", { job_id: jobId });
    for await (const { event, data } of this.events(path, options)) if (event === "progress") yield data;
  }

  async *taskStream(jobId, taskId, options = {}) {
    const path = filled("/api/jobs/{job_id}/tasks/{task_id}/stream", { job_id: jobId, task_id: taskId });
    for await (const { event, data } of this.events(path, options)) if (event === "chunk") yield data;
  }

  async #send(address, options, signal) {
    const key = typeof this.#key === "function" ? await this.#key() : this.#key;
    const headers = key ? { ...options.headers, Authorization: `Bearer ${key}` } : options.headers;
    // A redirect would carry the key to another host.
    return this.#fetch(address, { ...options, headers, signal, redirect: "error" });
  }
}

/** The path with its parts escaped, so that no part changes it. */
function filled(template, parts = {}) {
  return template.replace(/\{(\w+)\}/g, (_, name) => {
    if (parts[name] === undefined || parts[name] === null) throw new TypeError(`path.${name} is missing`);
    return encodeURIComponent(String(parts[name])).replaceAll(".", "%2E");
  });
}

function search(query = {}) {
  const found = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    for (const each of Array.isArray(value) ? value : [value]) {
      if (each !== undefined && each !== null) found.append(name, String(each));
    }
  }
  return found.size ? `?${found}` : "";
}

async function answerOf(response) {
  if (response.status === 204) return undefined;
  const type = response.headers.get("content-type") ?? "";
  if (type.startsWith("application/json")) return response.json();
  return type.startsWith("text/") ? response.text() : new Uint8Array(await response.arrayBuffer());
}

async function errorOf(response) {
  const seconds = Number.parseFloat(response.headers.get("retry-after") ?? "");
  const body = await response.json().catch(() => ({}));
  return new PenstockError(response.status, body ?? {}, Number.isFinite(seconds) ? seconds : null);
}

function delay(tries, error) {
  const least = (error?.retryAfter ?? 0) * 1000;
  return Math.min(MAX_PAUSE_MS, Math.max(least, 200 * 2 ** tries * (0.5 + Math.random() / 2)));
}

function pause(milliseconds, signal) {
  return new Promise((resolve, reject) => {
    if (signal?.aborted) return reject(signal.reason);
    const stop = () => { clearTimeout(timer); reject(signal.reason); };
    const timer = setTimeout(() => { signal?.removeEventListener("abort", stop); resolve(); }, milliseconds);
    signal?.addEventListener("abort", stop, { once: true });
  });
}

/** A signal that follows both: AbortSignal.any is missing in Node 18. */
function either(one, other) {
  const both = new AbortController();
  for (const each of [one, other]) {
    if (each.aborted) both.abort(each.reason);
    else each.addEventListener("abort", () => both.abort(each.reason), { once: true, signal: both.signal });
  }
  return both.signal;
}

/** Server-sent events of a body; null for a keep-alive. */
async function* parsed(body) {
  const decoder = new TextDecoder();
  let rest = "";
  let found = { id: null, event: "message", data: [] };
  for await (const bytes of body) {
    const lines = (rest + decoder.decode(bytes, { stream: true })).split("\n");
    rest = lines.pop();
    for (const line of lines.map((each) => each.replace(/\r$/, ""))) {
      if (line === "") {
        if (found.data.length) yield { ...found, data: JSON.parse(found.data.join("\n")) };
        found = { id: found.id, event: "message", data: [] };
        continue;
      }
      const at = line.indexOf(":");
      const name = at < 0 ? line : line.slice(0, at);
      const value = at < 0 ? "" : line.slice(at + 1).replace(/^ /, "");
      if (name === "") yield null;
      else if (name === "data") found.data.push(value);
      else if (name === "id" || name === "event") found[name] = value;
    }
  }
}
