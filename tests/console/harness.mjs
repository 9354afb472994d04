/** A browser, a host and a scripted model for the tests, and what every page must keep. */
import assert from "node:assert/strict";
import { mkdir, readFile } from "node:fs/promises";
import { createServer, request as httpRequest } from "node:http";
import { createRequire } from "node:module";
import { join } from "node:path";
import { chromium } from "playwright-core";

const require = createRequire(import.meta.url);

/** Where screenshots go. */
export const OUTPUT = process.env.CONSOLE_OUTPUT ?? "/tmp/callsheet-console";

const FLAGS = [
  "--headless",
  "--no-sandbox",
  "--disable-gpu",
  "--disable-quic",
  "--no-first-run",
  "--disable-background-networking",
  "--disable-component-update",
  "--disable-sync",
];

export async function launch() {
  await mkdir(OUTPUT, { recursive: true });
  return await chromium.launch({
    executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
    args: [...FLAGS, "--enable-precise-memory-info"],
  });
}

/**
 * Opens a page and records what must not happen: violations of the policy, errors, requests to elsewhere.
 */
export async function open(context, base) {
  const page = await context.newPage();
  const faults = [];
  page.on("pageerror", (error) => faults.push(`error: ${error.stack ?? error}`));
  page.on("console", (message) => {
    // A host that is killed, and answers with a fault, are logged by the browser.
    if (message.type() === "error" && !/Failed to load resource|ERR_/u.test(message.text()))
      faults.push(message.text());
  });
  page.on("request", (request) => {
    const url = request.url();
    if (!url.startsWith(base) && !url.startsWith("data:") && !url.startsWith("blob:"))
      faults.push(`request to ${url}`);
  });
  page.on("dialog", (dialog) => {
    faults.push(`dialog: ${dialog.message()}`);
    void dialog.dismiss();
  });
  await page.addInitScript(() => {
    globalThis.violations = [];
    document.addEventListener("securitypolicyviolation", (event) => {
      globalThis.violations.push(
        `${event.violatedDirective} ${event.blockedURI} ${event.sourceFile}:${event.lineNumber}`,
      );
    });
  });
  page.faults = faults;
  return page;
}

/** Asserts that nothing of what `open` records has happened. */
export async function assertClean(page) {
  assert.deepEqual(await page.evaluate(() => globalThis.violations), []);
  assert.deepEqual(page.faults, []);
}

const axeSource = await readFile(require.resolve("axe-core/axe.min.js"), "utf8");

/** Asserts that axe finds nothing. */
export async function assertAccessible(page, name) {
  await page.evaluate(axeSource);
  const found = await page.evaluate(async () => {
    const { violations } = await globalThis.axe.run(document, { resultTypes: ["violations"] });
    return violations.map(
      ({ id, nodes }) =>
        `${id}: ${nodes.map((node) => `${node.target} ${node.failureSummary}`).join("\n  ")}`,
    );
  });
  assert.deepEqual(found, [], name);
}

/** Saves what the page shows. */
export async function shoot(page, name) {
  await page.screenshot({ path: join(OUTPUT, `${name}.png`) });
}

/** Sends a request of the API. */
export async function api(base, path, body, method = body === undefined ? "GET" : "POST", headers = {}) {
  const response = await fetch(`${base}/v1/${path}`, {
    method,
    headers: { ...(body === undefined ? {} : { "content-type": "application/json" }), ...headers },
    body: body === undefined ? undefined : JSON.stringify(body),
  });
  const text = await response.text();
  assert.ok(response.ok, `${method} ${path}: ${response.status} ${text}`);
  return text ? JSON.parse(text) : null;
}

/** Starts a proxy that serves a host below a prefix, as an application that mounts the API does. */
export async function startProxy(base, prefix) {
  const { port } = new URL(base);
  const server = createServer((request, response) => {
    if (!request.url?.startsWith(prefix)) {
      response.writeHead(404).end();
      return;
    }
    const path = request.url.slice(prefix.length) || "/";
    const onward = httpRequest(
      { host: "127.0.0.1", port, path, method: request.method, headers: request.headers },
      (answer) => {
        response.writeHead(answer.statusCode ?? 502, answer.headers);
        response.flushHeaders();
        answer.pipe(response);
      },
    );
    onward.on("error", () => response.destroy());
    response.on("close", () => onward.destroy());
    request.pipe(onward);
  });
  await new Promise((done) => server.listen(0, "127.0.0.1", () => done(undefined)));
  return {
    base: `http://127.0.0.1:${server.address().port}${prefix}`,
    close: () =>
      new Promise((done) => {
        server.closeAllConnections();
        server.close(done);
      }),
  };
}

/** Waits until a condition holds; `what` is told if it does not. */
export async function until(condition, what, ms = 15_000) {
  const end = Date.now() + ms;
  for (;;) {
    const value = await condition();
    if (value) return value;
    assert.ok(Date.now() < end, `timed out: ${what}`);
    await new Promise((done) => setTimeout(done, 25));
  }
}
