/**
 * Text that grows. The open block is plain text, to which characters are appended; a block that is closed
 * is formatted once. Only code, lists, headings and emphasis are known: links and images stay text.
 */

import { el } from "./dom.js";
import { visible } from "./text.js";

/** Longer blocks are cut, so that no block takes long to lay out. */
const BLOCK_MAX = 16 * 1024;

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([^`]*)$/u;
const HEADING = /^ {0,3}(#{1,6})\s+(.*)$/u;
const ITEM = /^(\s*)(?:([-*+])|(\d{1,9})[.)])\s+(.*)$/u;

export class GrowingText {
  /** @param {HTMLElement} container */
  constructor(container) {
    this.container = container;
    /** @type {string[]} Whole lines of the open block. */
    this.lines = [];
    this.length = 0;
    /** The last line, as far as it is known. */
    this.rest = "";
    /** @type {{marker: string, language: string} | undefined} */
    this.fence = undefined;
    /** @type {Text | undefined} */
    this.open = undefined;
    /** @type {HTMLElement | undefined} */
    this.block = undefined;
  }

  /** @param {string} text */
  append(text) {
    let from = 0;
    for (let end = text.indexOf("\n"); end >= 0; end = text.indexOf("\n", from)) {
      const piece = text.slice(from, end + 1);
      from = end + 1;
      this.#show(piece);
      const line = (this.rest + piece.slice(0, -1)).replace(/\r$/u, "");
      this.rest = "";
      this.#line(line);
    }
    let tail = text.slice(from);
    while (tail) {
      const piece = tail.slice(0, Math.max(1, BLOCK_MAX - this.rest.length));
      tail = tail.slice(piece.length);
      this.#show(piece);
      this.rest += piece;
      if (this.rest.length >= BLOCK_MAX) {
        this.lines.push(this.rest);
        this.rest = "";
        this.#close(true);
      }
    }
  }

  /** Closes the last block. */
  end() {
    if (this.rest) {
      const line = this.rest;
      this.rest = "";
      this.#line(line);
    }
    this.#close(false);
    this.fence = undefined;
  }

  /** Appends to the open block. @param {string} text */
  #show(text) {
    if (!this.open) {
      this.open = document.createTextNode("");
      this.block = this.fence
        ? el("pre", { tabindex: 0 }, el("code", {}, this.open))
        : el("p", { class: "open", dir: "auto" }, this.open);
      this.container.append(this.block);
    }
    this.open.appendData(visible(text));
  }

  /** Receives a whole line. @param {string} line */
  #line(line) {
    const fence = FENCE.exec(line);
    if (this.fence) {
      if (fence && fence[1]?.startsWith(this.fence.marker) && !fence[2]) {
        this.#close(false);
        this.fence = undefined;
        return;
      }
    } else if (fence) {
      this.#close(false);
      this.fence = { marker: fence[1] ?? "```", language: (fence[2] ?? "").trim() };
      return;
    } else if (!line.trim()) {
      this.#close(false);
      return;
    } else if (this.lines.length > 0 && HEADING.test(line)) {
      this.#close(false);
    }
    this.lines.push(line);
    this.length += line.length + 1;
    const isOneLine = !this.fence && HEADING.test(line);
    if (isOneLine || this.length >= BLOCK_MAX) this.#close(this.length >= BLOCK_MAX);
  }

  /** Replaces the open block by a formatted one. @param {boolean} isCut */
  #close(isCut) {
    const { lines, block } = this;
    this.lines = [];
    this.length = 0;
    this.open = undefined;
    this.block = undefined;
    if (this.fence && lines.length === 0) {
      block?.remove();
      return;
    }
    const closed = this.fence
      ? code(lines)
      : lines.length === 0
        ? undefined
        : isCut
          ? plain(lines)
          : blockOf(lines);
    if (closed && block) block.replaceWith(closed);
    else if (closed) this.container.append(closed);
    else block?.remove();
  }
}

/**
 * Formats a whole text. @param {string} text @param {string} [className]
 */
export function markdown(text, className = "prose") {
  const container = el("div", { class: className });
  const growing = new GrowingText(container);
  growing.append(text);
  growing.end();
  return container;
}

/** @param {string[]} lines */
function code(lines) {
  return el("pre", { tabindex: 0 }, el("code", { text: lines.join("\n") }));
}

/** @param {string[]} lines */
function plain(lines) {
  return el("p", { dir: "auto", text: lines.join("\n") });
}

/** @param {string[]} lines */
function blockOf(lines) {
  const first = lines[0] ?? "";
  const heading = HEADING.exec(first);
  if (heading && lines.length === 1) {
    const element = el("p", { class: "heading", dir: "auto" });
    inline(element, heading[2] ?? "");
    return element;
  }
  if (lines.every((line) => line.trimStart().startsWith("|"))) {
    return el("pre", { class: "table", tabindex: 0, text: lines.join("\n") });
  }
  const start = lines.findIndex((line) => ITEM.test(line));
  if (start === 0) return list(lines);
  if (start > 0) {
    const both = el("div", { class: "blocks" });
    both.append(paragraph(lines.slice(0, start)), list(lines.slice(start)));
    return both;
  }
  return paragraph(lines);
}

/** @param {string[]} lines */
function paragraph(lines) {
  const element = el("p", { dir: "auto" });
  inline(element, lines.join("\n"));
  return element;
}

/** A list. An indented item belongs to a list of its own below the item before. @param {string[]} lines */
function list(lines) {
  /** @type {{text: string[], indent: number, ordered: boolean, start: number}[]} */
  const items = [];
  for (const line of lines) {
    const item = ITEM.exec(line);
    if (item) {
      items.push({
        text: [item[4] ?? ""],
        indent: (item[1] ?? "").length,
        ordered: item[3] !== undefined,
        start: Number(item[3] ?? 1),
      });
    } else items.at(-1)?.text.push(line.trim());
  }
  const top = listElement(items[0]);
  /** @type {{list: HTMLElement, indent: number}[]} */
  const open = [{ list: top, indent: items[0]?.indent ?? 0 }];
  for (const item of items) {
    while (open.length > 1 && item.indent < (open.at(-1)?.indent ?? 0)) open.pop();
    let current = open.at(-1);
    if (current && item.indent >= current.indent + 2 && current.list.lastElementChild && open.length < 6) {
      const nested = listElement(item);
      current.list.lastElementChild.append(nested);
      current = { list: nested, indent: item.indent };
      open.push(current);
    }
    const element = el("li", { dir: "auto" });
    inline(element, item.text.join("\n"));
    current?.list.append(element);
  }
  return top;
}

/** @param {{ordered: boolean, start: number} | undefined} item */
function listElement(item) {
  return item?.ordered ? el("ol", { start: item.start }) : el("ul");
}

/**
 * Appends text with code and emphasis. Every kind of mark that is once found open is not searched again, so
 * that the time is linear.
 * @param {HTMLElement} parent @param {string} text
 */
function inline(parent, text) {
  const unclosed = new Set();
  let plainFrom = 0;
  let at = 0;
  const emit = (/** @type {number} */ to) => {
    if (to > plainFrom) parent.append(visible(text.slice(plainFrom, to)));
  };
  while (at < text.length) {
    const mark = markAt(text, at);
    if (!mark) {
      at += 1;
      continue;
    }
    const from = at + mark.length;
    const end = unclosed.has(mark) ? -1 : closing(text, mark, from);
    if (end < 0) {
      unclosed.add(mark);
      at = from;
      continue;
    }
    emit(at);
    const content = text.slice(from, end);
    if (mark.startsWith("`")) parent.append(el("code", { text: content.replace(/^ (.+) $/su, "$1") }));
    else {
      const element = el(mark.length === 2 ? "strong" : "em");
      if (mark.length === 2) inline(element, content);
      else element.textContent = visible(content);
      parent.append(element);
    }
    at = end + mark.length;
    plainFrom = at;
  }
  emit(text.length);
}

/** @param {string} text @param {number} at */
function markAt(text, at) {
  const character = text[at];
  if (character === "`") {
    let end = at;
    while (text[end] === "`") end += 1;
    return text.slice(at, end);
  }
  if (character !== "*" && character !== "_") return undefined;
  if (character === "_" && /\w/u.test(text[at - 1] ?? " ")) return undefined;
  const mark = text[at + 1] === character ? character + character : character;
  return /\S/u.test(text[at + mark.length] ?? " ") ? mark : undefined;
}

/** @param {string} text @param {string} mark @param {number} from */
function closing(text, mark, from) {
  for (let end = text.indexOf(mark, from); end >= 0; end = text.indexOf(mark, end + 1)) {
    if (end === from) continue;
    if (mark.startsWith("`")) {
      if (text[end + mark.length] !== "`" && text[end - 1] !== "`") return end;
      while (text[end + 1] === "`") end += 1;
      continue;
    }
    const isWord = mark.startsWith("_") && /\w/u.test(text[end + mark.length] ?? " ");
    if (/\S/u.test(text[end - 1] ?? " ") && !isWord) return end;
  }
  return -1;
}
