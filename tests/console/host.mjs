/** Starts a host of the binary with the configuration of the tests. */
import { spawn } from "node:child_process";
import { createServer } from "node:net";
import { cp, mkdtemp, rename, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";

/** The binary under test. */
export const BINARY = process.env.CALLSHEET_BINARY ?? "";

/** Returns the configuration: a scripted model, and tools that ask the same service. */
export function configuration(
  /** @type {number} */ modelPort,
  /** @type {{token?: boolean}} */ { token = false } = {},
) {
  const http = (/** @type {string} */ name, /** @type {string} */ description, more = "") => `
[tools.${name}]
kind = "http"
description = "${description}"
url = "http://127.0.0.1:${modelPort}/tool/${name}"
input = { text = { type = "string" }, wait = { type = "integer", default = 0 }, status = { type = "integer", default = 200 } }
query = { text = "{text}", wait = "{wait}", status = "{status}" }
body = "none"
${more}`;
  return `
[host]
${token ? 'token_env = "CONSOLE_TEST_TOKEN"' : ""}
[models.main]
wire = "openai-chat"
base_url = "http://127.0.0.1:${modelPort}/v1"
model = "scripted"
context_window = 32000
max_attempts = 3
[console]
requests = true
[agents.default]
model = "main"
system = "You are a careful assistant."
tools = ["clock", "calculator", "set_variable", "search", "deploy", "refund", "rail__*"]
execution = { parallel = 64 }
allow_overrides = true
[mcp.rail]
command = ["${process.execPath}", "${new URL("asks.mjs", import.meta.url).pathname}"]
[agents.sequential]
model = "main"
tools = ["clock", "search"]
[agents.lead]
model = "main"
tools = ["researcher"]
execution = { parallel = 8 }
[agents.researcher]
model = "main"
tools = ["search", "deploy"]
execution = { parallel = 8 }
[tools.researcher]
kind = "agent"
description = "Researches a question."
agent = "researcher"
agent_events = "all"
[agents.hostile]
model = "main"
tools = ["search"]
execution = { parallel = 64 }
[agents.hostile.limits]
max_failed_turns = 0
max_turns = 3
${http("search", "Searches the documents.", 'effect = "none"')}
${http("deploy", "Deploys a version of a service.", 'effect = "some"\napproval = "before"')}
${http("refund", "Refunds an order.", 'effect = "some"\napproval = "after"')}
`;
}

async function freePort() {
  const server = createServer();
  await new Promise((done) => server.listen(0, "127.0.0.1", () => done(undefined)));
  const { port } = /** @type {import("node:net").AddressInfo} */ (server.address());
  await new Promise((done) => server.close(done));
  return port;
}

/**
 * A host of its own folder. `kill` ends it without notice, `start` starts it again with the same data and
 * address.
 */
export async function startHost(/** @type {string} */ toml, /** @type {Record<string, string>} */ env = {}) {
  const folder = await mkdtemp(join(tmpdir(), "callsheet-console-"));
  const file = join(folder, "callsheet.toml");
  await writeFile(file, toml);
  const port = await freePort();
  const base = `http://127.0.0.1:${port}`;
  /** @type {import("node:child_process").ChildProcess | undefined} */
  let child;
  let log = "";
  const start = async () => {
    const options = [
      "serve",
      "--config",
      file,
      "--listen",
      `127.0.0.1:${port}`,
      "--data-dir",
      join(folder, "data"),
    ];
    child = spawn(BINARY, options, { env: { ...process.env, ...env }, stdio: ["ignore", "pipe", "pipe"] });
    child.stdout?.on("data", (text) => {
      log += text;
    });
    child.stderr?.on("data", (text) => {
      log += text;
    });
    for (let attempt = 0; attempt < 400; attempt += 1) {
      if (child.exitCode !== null) throw new Error(`the host ended: ${log}`);
      const ready = await fetch(`${base}/readyz`).catch(() => undefined);
      if (ready?.ok) return;
      await new Promise((done) => setTimeout(done, 25));
    }
    throw new Error(`the host is not ready: ${log}`);
  };
  const end = async (/** @type {NodeJS.Signals} */ signal) => {
    if (!child || child.exitCode !== null || child.signalCode !== null) return;
    const ended = new Promise((done) => child?.once("exit", done));
    child.kill(signal);
    await ended;
  };
  await start();
  return {
    base,
    folder,
    log: () => log,
    start,
    kill: () => end("SIGKILL"),
    /** Keeps a copy of the data of a host that does not run, and brings it back. */
    backup: () => cp(join(folder, "data"), join(folder, "backup"), { recursive: true }),
    restore: async () => {
      await rm(join(folder, "data"), { recursive: true });
      await rename(join(folder, "backup"), join(folder, "data"));
    },
    stop: async () => {
      await end("SIGKILL");
      await rm(folder, { recursive: true, force: true });
    },
  };
}
