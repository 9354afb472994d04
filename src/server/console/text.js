/** Texts of models and tools as they may be shown, and numbers as people read them. */

/**
 * Characters that are invisible or that change the order or look of other characters: controls, marks and
 * overrides of direction, invisible operators, tags, fillers.
 */
const HIDDEN =
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\u3164\ufe00-\ufe0e\ufeff\uffa0\ufff0-\ufffb\u{1bca0}-\u{1bca3}\u{1d173}-\u{1d17a}\u{e0000}-\u{e0fff}]/gu;

/** Joiners are needed in scripts and emoji, but not behind plain ASCII. */
const STRAY_JOINER = /(^|[\u0000-\u007f])([\u200c\u200d]+)/gu;

/** @param {string} character */
function escaped(character) {
  const code = character.codePointAt(0) ?? 0;
  if (code < 0x20) return String.fromCodePoint(0x2400 + code);
  if (code === 0x7f) return "\u2421";
  return `[U+${code.toString(16).toUpperCase().padStart(4, "0")}]`;
}

/**
 * Returns the text with every hidden character as a visible one: controls as their pictures, others as
 * `[U+202E]`.
 * @param {unknown} text
 * @returns {string}
 */
export function visible(text) {
  return String(text)
    .replaceAll("\r\n", "\n")
    .replace(HIDDEN, escaped)
    .replace(STRAY_JOINER, (_, before, joiners) => before + [...joiners].map(escaped).join(""));
}

/**
 * Returns a value as JSON, with hidden characters as JSON escapes: exactly the value, and nothing hidden.
 * @param {unknown} value
 * @param {number} [indent]
 * @returns {string}
 */
export function json(value, indent = 2) {
  const units = (/** @type {string} */ text) =>
    [...text]
      .flatMap((character) => character.split(""))
      .map((unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, "0")}`)
      .join("");
  const text = JSON.stringify(value, null, indent) ?? "null";
  return text.replace(HIDDEN, units).replace(STRAY_JOINER, (_, before, joiners) => before + units(joiners));
}

/** @param {string} text @param {number} length */
export function excerpt(text, length) {
  return text.length > length ? `${text.slice(0, length).toWellFormed?.() ?? text.slice(0, length)}…` : text;
}

/** @param {number | null | undefined} ms */
export function duration(ms) {
  if (ms === null || ms === undefined || !Number.isFinite(ms)) return "";
  if (ms < 0) return "0 ms";
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 60_000) return `${(ms / 1000).toFixed(ms < 10_000 ? 2 : 1)} s`;
  const seconds = Math.round(ms / 1000);
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${seconds % 60} s`;
  return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
}

/** @param {number} bytes */
export function size(bytes) {
  if (bytes < 1024) return `${bytes} B`;
  if (bytes < 1024 * 1024) return `${(bytes / 1024).toFixed(1)} KiB`;
  return `${(bytes / 1024 / 1024).toFixed(1)} MiB`;
}

const NUMBERS = new Intl.NumberFormat("en");

/** @param {number | null | undefined} value */
export function count(value) {
  return value === null || value === undefined ? "" : NUMBERS.format(value);
}

/** @param {number} value @param {string} noun @param {string} [plural] */
export function counted(value, noun, plural = `${noun}s`) {
  return `${count(value)} ${value === 1 ? noun : plural}`;
}

/** @param {number} time */
export function clock(time) {
  const date = new Date(time);
  const two = (/** @type {number} */ value) => String(value).padStart(2, "0");
  const hours = `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
  const day = `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
  return Date.now() - time < 12 * 3600_000 && time < Date.now() + 60_000 ? hours : `${day} ${hours}`;
}

/** @param {number} time */
export function ago(time) {
  const seconds = Math.max(0, Math.round((Date.now() - time) / 1000));
  if (seconds < 5) return "now";
  if (seconds < 60) return `${seconds} s ago`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ago`;
  if (seconds < 86_400) return `${Math.floor(seconds / 3600)} h ago`;
  return `${Math.floor(seconds / 86_400)} d ago`;
}

/**
 * The text of an input or of a message's content: a string, or a list of parts.
 * @param {any} content
 * @returns {{text: string, images: string[]}}
 */
export function contentOf(content) {
  if (typeof content === "string") return { text: content, images: [] };
  const parts = Array.isArray(content) ? content : [];
  const text = parts
    .map((part) => part?.text ?? "")
    .filter(Boolean)
    .join("\n");
  const images = parts
    .map((part) => part?.image_url?.url ?? part?.image_url)
    .filter((url) => typeof url === "string");
  return { text, images };
}
