/** Measures the page: long frames, and the time from an event to its paint. Sends it to the host. */

import { request } from "./api.js";
import { onPainted } from "./dom.js";

const PERIOD_MS = 10_000;
const VALUES_MAX = 200;
const TIME_MS_MAX = 600_000;

let frames = 0;
let blockingMs = 0;
/** @type {number[]} */
let paints = [];
/** @type {number[]} Times of events that are not painted yet. */
let pending = [];
/** The difference of the clocks, with the shortest delay that was seen: local time minus that of events. */
let offset = Infinity;

/** Notes an event that came. @param {number | undefined} timestamp The host's time. */
export function noteEvent(timestamp) {
  if (timestamp === undefined) return;
  const now = Date.now();
  // Old events come again after a break; their age is no delay.
  if (Number.isFinite(offset) && now - timestamp - offset > 30_000) return;
  offset = Math.min(offset, now - timestamp);
  if (pending.length < VALUES_MAX && document.visibilityState === "visible") pending.push(timestamp);
}

/** Returns the measurements since the last report. */
function measured() {
  return { frames, blocking_ms: Math.round(blockingMs), paint_ms: [...paints] };
}

async function report() {
  if (frames === 0 && paints.length === 0) return;
  const { frames: count, blocking_ms, paint_ms } = measured();
  [frames, blockingMs, paints] = [0, 0, []];
  try {
    const body = {
      frames: Math.min(count, VALUES_MAX),
      blocking_ms: Math.min(blocking_ms, TIME_MS_MAX),
      paint_ms,
    };
    await request("v1/ui/vitals", { method: "POST", body });
  } catch {
    // Measurements are not worth a message.
  }
}

/** Begins to measure. */
export function startVitals() {
  onPainted(() => {
    const now = Date.now();
    for (const timestamp of pending) {
      if (paints.length >= VALUES_MAX) break;
      paints.push(Math.min(TIME_MS_MAX, Math.max(0, now - timestamp - offset)));
    }
    pending = [];
  });
  if (PerformanceObserver.supportedEntryTypes.includes("long-animation-frame")) {
    new PerformanceObserver((list) => {
      for (const entry of list.getEntries()) {
        frames += 1;
        blockingMs += /** @type {any} */ (entry).blockingDuration ?? 0;
      }
    }).observe({ type: "long-animation-frame", buffered: true });
  }
  setInterval(() => void report(), PERIOD_MS);
  document.addEventListener("visibilitychange", () => {
    if (document.visibilityState === "hidden") pending = [];
  });
}
