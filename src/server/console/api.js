/** Requests to the API, with the token that the user typed. */

import { ask, el } from "./dom.js";

/** The URL below which the API is: the console is at `console/` below it. */
export const BASE = new URL("../", document.baseURI);

const STORED = `callsheet-token ${BASE.pathname}`;

export class ApiError extends Error {
  /** @param {number} status @param {string} code @param {string} message */
  constructor(status, code, message) {
    super(message);
    this.name = "ApiError";
    this.status = status;
    this.code = code;
  }
}

let token = sessionStorage.getItem(STORED) ?? "";
/** @type {Promise<void> | undefined} */
let asking;
/** @type {(() => Promise<void>) | undefined} */
let otherTabs;
/** @type {((token: string) => void) | undefined} */
let onToken;

/** Sets how other tabs are asked for their token, and how they get a new one. */
export function shareToken(
  /** @type {() => Promise<void>} */ ask,
  /** @type {(token: string) => void} */ share,
) {
  otherTabs = ask;
  onToken = share;
}

/** @returns {string} */
export function currentToken() {
  return token;
}

/** @type {(() => void) | undefined} */
let onSetToken;

/** @param {string} value */
export function setToken(value) {
  token = value;
  onSetToken?.();
  sessionStorage.setItem(STORED, value);
}

/** Asks other tabs, then the user. One question at a time; a token from another tab answers it, too. */
function renewToken() {
  asking ??= (async () => {
    const before = token;
    await otherTabs?.();
    if (token !== before) return;
    const answered = new AbortController();
    onSetToken = () => answered.abort();
    const values = await ask({
      title: "This host asks for a token",
      isNeeded: true,
      body: [
        before !== "" &&
          el("p", { class: "note error", text: "The host does not accept the token that was used." }),
        el("label", { for: "token", text: "Token" }),
        el("input", { id: "token", name: "token", type: "password", autocomplete: "off", required: true }),
        el("p", {
          class: "hint",
          text: "It stays in this browser tab and is sent in a header, never in a URL.",
        }),
      ],
      confirm: "Use token",
      signal: answered.signal,
    });
    if (token !== before) return;
    if (!values?.token) throw new ApiError(401, "unauthorized", "this host asks for a token");
    setToken(values.token.trim());
    onToken?.(token);
  })().finally(() => {
    asking = undefined;
    onSetToken = undefined;
  });
  return asking;
}

/**
 * Sends a request and returns the response. Asks for a token if the host wants one.
 * @param {string} path Relative to the API, such as `v1/sessions`.
 * @param {{method?: string, body?: unknown, signal?: AbortSignal, headers?: Record<string, string>}} [options]
 * @returns {Promise<Response>}
 */
export async function request(path, { method = "GET", body, signal, headers = {} } = {}) {
  for (;;) {
    const used = token;
    /** @type {Record<string, string>} */
    const all = { ...headers };
    if (used) all.authorization = `Bearer ${used}`;
    if (body !== undefined) all["content-type"] = "application/json";
    const sent = fetch(new URL(path, BASE), {
      method,
      headers: all,
      body: body === undefined ? null : JSON.stringify(body),
      signal: signal ?? null,
      cache: "no-store",
      credentials: "same-origin",
      redirect: "error",
    });
    const response = await sent.catch((error) => {
      throw signal?.aborted ? error : new ApiError(0, "unreachable", "the host does not answer");
    });
    if (response.status === 401) {
      if (used === token) await renewToken();
      continue;
    }
    if (response.ok) return response;
    const text = await response.text();
    let { code, message } = { code: "http_error", message: `HTTP ${response.status}` };
    try {
      const { error } = JSON.parse(text);
      if (error) ({ code, message } = error);
    } catch {
      // Not of the API: a proxy answered.
    }
    throw new ApiError(response.status, code, message);
  }
}

/**
 * Sends a request and returns the JSON of the answer.
 * @param {string} path
 * @param {Parameters<typeof request>[1]} [options]
 * @returns {Promise<any>}
 */
export async function api(path, options) {
  const response = await request(path, options);
  return response.status === 204 ? null : await response.json();
}

/** @param {string} path @param {unknown} body @param {Record<string, string>} [headers] */
export function post(path, body, headers = {}) {
  return api(path, { method: "POST", body, headers });
}

/** The path of a session. @param {string} id @param {string} [rest] */
export function ofSession(id, rest = "") {
  return `v1/sessions/${encodeURIComponent(id)}${rest}`;
}

/** A key with which a repeated request has no second effect. */
export function idempotencyKey() {
  return [...crypto.getRandomValues(new Uint8Array(16))]
    .map((byte) => byte.toString(16).padStart(2, "0"))
    .join("");
}
