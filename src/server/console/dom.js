/** Elements, made without markup, and one flush per animation frame. */

import { visible } from "./text.js";

/** @typedef {Node | string | number | false | null | undefined} Child */

/**
 * Makes an element. Texts and attributes are shown with `visible`; `on...` adds a listener.
 * @template {keyof HTMLElementTagNameMap} K
 * @param {K} tag
 * @param {Record<string, any>} [properties]
 * @param {...Child} children
 * @returns {HTMLElementTagNameMap[K]}
 */
export function el(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "text") element.textContent = visible(value);
    else if (name === "value") /** @type {any} */ (element).value = value;
    else element.setAttribute(name, value === true ? "" : visible(value));
  }
  append(element, ...children);
  return element;
}

/** @param {Element} element @param {...Child} children */
export function append(element, ...children) {
  for (const child of children) {
    if (child === false || child === null || child === undefined) continue;
    element.append(child instanceof Node ? child : visible(child));
  }
}

/** @param {Element} element @param {...Child} children */
export function fill(element, ...children) {
  element.replaceChildren();
  append(element, ...children);
}

/** Sets the text of an element, if it is another one. @param {Element} element @param {unknown} text */
export function setText(element, text) {
  const shown = visible(text);
  if (element.textContent !== shown) element.textContent = shown;
}

/**
 * A button. @param {string} text @param {(event: MouseEvent) => unknown} onclick
 * @param {Record<string, any>} [properties]
 */
export function button(text, onclick, properties = {}) {
  return el("button", { type: "button", text, onclick, ...properties });
}

/** @type {Set<() => void>} */
let tasks = new Set();
let isScheduled = false;
/** @type {((now: number) => void) | undefined} */
let painted;

/** Performs a task before the next paint, once, however often it is asked for. @param {() => void} task */
export function beforePaint(task) {
  tasks.add(task);
  if (isScheduled) return;
  isScheduled = true;
  requestAnimationFrame(flush);
}

/** Calls back in the frame after each flush. @param {(now: number) => void} callback */
export function onPainted(callback) {
  painted = callback;
}

function flush() {
  isScheduled = false;
  const due = tasks;
  tasks = new Set();
  for (const task of due) {
    try {
      task();
    } catch (error) {
      reportError(error);
    }
  }
  if (painted) requestAnimationFrame(painted);
}

/** Tells screen readers. @param {string} text */
export function announce(text) {
  const region = document.getElementById("announcements");
  if (region) setText(region, text);
}

let toastTimer = 0;

/** Shows a short message. @param {string} text @param {boolean} [isError] */
export function toast(text, isError = false) {
  const region = document.getElementById("toast");
  if (!region) return;
  setText(region, text);
  region.className = isError ? "toast error" : "toast";
  region.hidden = false;
  clearTimeout(toastTimer);
  toastTimer = setTimeout(
    () => {
      region.hidden = true;
    },
    isError ? 9000 : 4000,
  );
}

/** Shows the fault of an action. @param {unknown} error */
export function fault(error) {
  toast(error instanceof Error ? error.message : String(error), true);
}

/**
 * Asks in a dialog. Returns the form's values, or null if it was cancelled.
 * @param {{title: string, body?: Child[], confirm: string, danger?: boolean, signal?: AbortSignal, isNeeded?: boolean}} options
 * `isNeeded`: it cannot be cancelled.
 * @returns {Promise<Record<string, string> | null>}
 */
export function ask({ title, body = [], confirm, danger = false, signal, isNeeded = false }) {
  return new Promise((resolve) => {
    const form = el(
      "form",
      { method: "dialog" },
      el("h2", { id: "dialog-title", text: title }),
      ...body,
      el(
        "div",
        { class: "actions" },
        !isNeeded && el("button", { type: "button", text: "Cancel", onclick: () => dialog.close("") }),
        el("button", { type: "submit", class: danger ? "danger" : "primary", text: confirm, value: "yes" }),
      ),
    );
    const dialog = el("dialog", { "aria-labelledby": "dialog-title" }, form);
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      dialog.close("yes");
    });
    dialog.addEventListener("close", () => {
      const values = Object.fromEntries(
        [...new FormData(form)].map(([name, value]) => [name, String(value)]),
      );
      dialog.remove();
      resolve(dialog.returnValue === "yes" ? values : null);
    });
    if (isNeeded) dialog.addEventListener("cancel", (event) => event.preventDefault());
    signal?.addEventListener("abort", () => dialog.close(""));
    document.body.append(dialog);
    dialog.showModal();
  });
}
