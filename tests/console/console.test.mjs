/** The console in a real browser, with a host of the binary and a scripted model. */
import assert from "node:assert/strict";
import { readdir, readFile } from "node:fs/promises";
import { after, before, test } from "node:test";
import { gzipSync } from "node:zlib";
import { api, assertAccessible, assertClean, launch, open, shoot, startProxy, until } from "./harness.mjs";
import { configuration, startHost } from "./host.mjs";
import { startModel } from "./model.mjs";
import { FORBIDDEN, PAYLOADS } from "./payloads.mjs";

const STORY = `The index has **three** parts that matter here:

1. \`seal\`: the point at which the arguments of a call are complete
2. \`ticket\`: the permission to start, in call order
3. release, in call order *after* the response has ended

\`\`\`rust
fn seal(call: &PartialCall) -> Option<Sealed> {
    call.arguments.parse().ok()
}
\`\`\`

Nothing starts before its own seal.`;

/** Gates that tests open. */
const gates = new Map();
function gate(name) {
  if (!gates.has(name)) {
    let open;
    const promise = new Promise((done) => {
      open = done;
    });
    gates.set(name, { promise, open });
  }
  return gates.get(name);
}

/** Requests, by their number of messages, that were answered by half a response. */
const broken = new Set();

const LONG = Array.from({ length: 400 }, (_, index) => `word${index} `).join("");

/** The scripted model: the prompt selects the answer. */
function answer(prompt, results, request) {
  const [kind, argument = ""] = prompt.split(": ");
  switch (kind) {
    case "Release 2.4 to staging": {
      if (results.length > 0) {
        const isFirst = !broken.has(request.messages.length);
        broken.add(request.messages.length);
        return isFirst ? { text: "The index has", pause: 10, breaks: true } : { text: STORY, pause: 2 };
      }
      return {
        thinking: "First the documents, then the deployment. The order has to be refunded, too.",
        text: "I look it up, and prepare the release.",
        pause: 25,
        calls: [
          { name: "search", arguments: { text: "release checklist: tests, notes, tag", wait: 260 } },
          { name: "clock", arguments: { zone: "Asia/Tokyo" } },
          { name: "deploy", arguments: { text: "search-index 2.4.0", wait: 120 } },
          { name: "search", arguments: { text: "no such page", status: 500 } },
          { name: "refund", arguments: { text: "order 7 is refunded" } },
          { name: "rollback", arguments: { to: "2.3.9" } },
        ],
      };
    }
    case "remember":
      if (results.length > 0) return { text: "Remembered." };
      return {
        calls: [
          {
            name: "set_variable",
            arguments: { name: "release", value: { version: "2.4.0", notes: ["faster", "smaller"] } },
          },
        ],
      };
    case "deploy":
      return results.length > 0
        ? { text: "Deployed." }
        : { calls: [{ name: "deploy", arguments: { text: argument || "x" } }] };
    case "book":
      return results.length > 0
        ? { text: `The tool said ${results[0]}` }
        : { calls: [{ name: "rail__book", arguments: { train: "ICE 71" } }] };
    case "picture":
      return results.length > 0
        ? { text: "A picture." }
        : { calls: [{ name: "rail__picture", arguments: { train: "ICE 71" } }] };
    case "open":
      return results.length > 0
        ? { text: `The client said: ${results[0]}` }
        : { calls: [{ name: "open_file", arguments: { path: argument } }] };
    case "research":
      return results.length > 0
        ? { text: "Both papers are read." }
        : {
            text: "Two researchers read them.",
            calls: ["first", "second"].map((paper) => ({
              name: "researcher",
              arguments: { input: `paper: ${paper}` },
            })),
          };
    case "paper": {
      if (results.length > 0) return { text: `The ${argument} paper is about tickets.`, pause: 2 };
      const calls = [{ name: "search", arguments: { text: `the ${argument} paper` } }];
      if (argument === "first") calls.push({ name: "deploy", arguments: { text: "a crawler" } });
      return { text: `I look for the ${argument} paper.`, calls };
    }
    case "long":
      return { text: LONG.match(/.{1,8}/gu), pause: 4 };
    case "held":
      return { text: "Half of it, ", gate: gate(argument).promise, after: "and the rest." };
    case "hostile": {
      const some = PAYLOADS.slice(Number(argument), Number(argument) + 50);
      if (results.length > 0) return { text: some.join("\n\n") };
      return {
        thinking: some.join("\n"),
        text: some.join("\n"),
        calls: [
          ...some.map((name) => ({ name, arguments: { [name]: name } })),
          { name: "search", arguments: { text: some.join("\n") } },
        ],
      };
    }
    case "one line":
      return { text: Array(480).fill("<script>ran()</script>".repeat(100)) };
    case "many": {
      if (results.length > 0)
        return { text: Array.from({ length: 4000 }, (_, index) => `delta ${index} `), batch: 10, pause: 5 };
      return {
        calls: Array.from({ length: 50 }, (_, index) => ({
          name: "search",
          arguments: { text: `page ${index}`, wait: 200 + index * 10 },
        })),
      };
    }
    default:
      return { text: `You said: ${prompt}`, pause: 1 };
  }
}

/** A session with everything that a view can show, for all views. */
async function release() {
  broken.clear();
  const session = "sessions/release-2-4";
  await api(host.base, "sessions", { id: "release-2-4" });
  await api(host.base, `${session}/runs`, { input: "remember: x", wait: true });
  await api(host.base, `${session}/runs`, { input: "Release 2.4 to staging" });
  const asked = await until(async () => {
    const { current_run: run } = await api(host.base, session);
    return run?.approvals.length === 2 && run.results.length > 0 ? run.approvals : undefined;
  }, "two questions");
  await new Promise((done) => setTimeout(done, 300));
  for (const { tool_id: id, phase, arguments_sha256 } of asked) {
    await api(host.base, `${session}/approvals/${id}`, {
      decision: phase === "before" ? "approve" : "reject",
      phase,
      arguments_sha256,
    });
  }
  await until(async () => (await api(host.base, session)).current_run === null, "the end");
}

let model;
let host;
let browser;
let context;

before(async () => {
  model = await startModel(answer);
  host = await startHost(configuration(model.port));
  await release();
  browser = await launch();
  context = await browser.newContext({ viewport: { width: 1280, height: 800 } });
});

after(async () => {
  await browser?.close();
  await host?.stop();
  await model?.close();
});

const url = (route = "") => `${host.base}/console/${route}`;

/** Opens a session and its chat. */
async function openChat(id, { in: where = context, agent = "default" } = {}) {
  await api(host.base, "sessions", { id, agent }).catch(() => {});
  const page = await open(where, host.base);
  await page.goto(url(`#/s/${id}/chat`));
  await page.waitForSelector("cs-chat textarea");
  return page;
}

async function say(page, text) {
  await page.fill("#prompt", text);
  await page.press("#prompt", "Enter");
}

/** Asserts that two long texts are equal, and tells where they differ. */
function assertSame(actual, expected) {
  if (actual === expected) return;
  let at = 0;
  while (actual[at] === expected[at]) at += 1;
  assert.fail(
    `at ${at} of ${expected.length}: ${JSON.stringify(actual.slice(at, at + 60))} instead of ${JSON.stringify(expected.slice(at, at + 60))}`,
  );
}

const lastRun = ".run:last-child";
const ended = (page) => page.waitForSelector(`${lastRun}[data-end="answered"]`);

/** The text of the last answer as the page has it. */
const answerText = (page) =>
  page.evaluate(() => {
    const said = [...document.querySelectorAll(".run:last-child .said:not(.void)")].at(-1);
    return said?.textContent ?? "";
  });

test("all files together have less than 80 kB, compressed", async () => {
  const folder = new URL("../../src/server/console/", import.meta.url);
  let total = 0;
  for (const name of await readdir(folder)) {
    const served = await fetch(url(name === "index.html" ? "" : name));
    assert.equal(served.status, 200, name);
    total += gzipSync(Buffer.from(await served.arrayBuffer()), { level: 9 }).length;
    assert.match(served.headers.get("content-security-policy") ?? "", /trusted-types 'none'/u);
    const text = await readFile(new URL(name, folder), "utf8");
    assert.doesNotMatch(
      text,
      /innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|https?:\/\/(?!www\.w3\.org)/u,
      name,
    );
  }
  console.log(`# console: ${total} bytes, compressed file by file`);
  assert.ok(total < 80_000, `${total}`);
});

test("a run is steered through its approvals, and every view shows it", async () => {
  broken.clear();
  const page = await openChat("approvals");
  await say(page, "remember: x");
  await ended(page);
  await say(page, "Release 2.4 to staging");
  await page.waitForSelector('cs-call[data-state="ask"]');
  await until(async () => (await page.locator('cs-call[data-state="ask"]').count()) === 2, "two questions");
  const asks = page.locator(".asks");
  assert.match(await asks.innerText(), /2 calls wait for an answer:\s*deploy\s*refund/u);
  const before = page.locator('cs-call:has-text("Run deploy?")');
  assert.equal(
    await before.locator('pre[aria-label="Arguments"]').textContent(),
    JSON.stringify({ text: "search-index 2.4.0", wait: 120 }, null, 2),
  );
  await until(async () => (await page.locator('cs-call[data-state="ok"]').count()) >= 3, "the other calls");
  await page.setViewportSize({ width: 1280, height: 1000 });
  await page.waitForTimeout(150);
  await shoot(page, "chat-approvals-light");
  await page.setViewportSize({ width: 1280, height: 800 });
  await before.getByRole("button", { name: "Approve" }).click();
  await page.locator('cs-call:has-text("Use the result of refund?") input').fill("not today");
  await page
    .locator('cs-call:has-text("Use the result of refund?")')
    .getByRole("button", { name: "Reject" })
    .click();
  await ended(page);
  const states = await page
    .locator(`${lastRun} cs-call`)
    .evaluateAll((cards) =>
      cards.map(
        (card) => `${card.querySelector(".name").textContent} ${card.querySelector(".words").textContent}`,
      ),
    );
  assert.deepEqual(states, [
    "search success",
    "clock success",
    "deploy success",
    "search error: http status",
    "refund refused: rejected",
    "rollback error: unknown tool",
  ]);
  assert.match(
    await page.locator(`${lastRun} .attempts`).last().innerText(),
    /^Attempt 1 at scripted failed; attempt 2 at scripted followed after \d+ ms: .+$/u,
  );
  assert.equal(await page.locator(`${lastRun} .said.void`).innerText(), "The index has");
  assert.equal(await page.locator(`${lastRun} .said ol > li`).count(), 3);
  assert.match(
    await page.locator(`${lastRun} .said pre`).textContent(),
    /^fn seal\(call: &PartialCall\)[^`]*\}$/u,
  );
  assert.match(
    await page.locator(`${lastRun} .run-foot`).textContent(),
    /answered · 2 turns · 6 calls · .* · 1,624 tokens in, 128 out · early start saved/u,
  );
  await page.locator(`${lastRun} cs-call .head`).first().click();
  assert.match(await page.locator(`${lastRun} cs-call .details`).first().innerText(), /release checklist/u);
  await assertClean(page);
  await page.close();
});

test("what waits in all sessions is found and answered on one page", async () => {
  broken.clear();
  const chat = await openChat("inbox-1");
  for (const id of ["inbox-1", "inbox-2"]) {
    await api(host.base, "sessions", { id }).catch(() => {});
    await api(host.base, `sessions/${id}/runs`, { input: "remember: x", wait: true });
    await api(host.base, `sessions/${id}/runs`, { input: "Release 2.4 to staging" });
  }
  const page = await open(context, host.base);
  await page.goto(url("#/approvals"));
  const rows = page.locator("cs-approvals section");
  await until(async () => (await rows.count()) === 4, "four questions");
  assert.match(await page.locator("cs-approvals").innerText(), /4 calls wait, the oldest first\./u);
  assert.match(await rows.first().innerText(), /inbox-1\s+default/u);
  await page.waitForTimeout(150);
  await shoot(page, "inbox-light");
  // Something is typed while the page reads the list again.
  const refund = page.locator('section[aria-label="refund in inbox-2"]');
  await refund.locator("input").fill("not today");
  await page.locator('section[aria-label="deploy in inbox-1"]').getByRole("button", { name: "Approve" }).click();
  await until(async () => (await rows.count()) === 3, "one is answered");
  // The page of the session sees the decision.
  await chat.waitForSelector('cs-call[data-state="ok"]:has-text("deploy")');
  await refund.getByRole("button", { name: "Reject" }).click();
  await until(async () => (await rows.count()) === 2, "two are answered");
  for (const name of ["refund in inbox-1", "deploy in inbox-2"]) {
    await page.locator(`section[aria-label="${name}"]`).getByRole("button", { name: "Approve" }).click();
  }
  await page.getByText("Nothing waits.").waitFor();
  await chat.waitForSelector(`${lastRun}[data-end="answered"]`);
  for (const tab of [page, chat]) {
    await assertClean(tab);
    await tab.close();
  }
});

for (const colorScheme of ["light", "dark"]) {
  test(`every view is accessible in ${colorScheme}`, async () => {
    const themed = await browser.newContext({ viewport: { width: 1280, height: 800 }, colorScheme });
    await api(host.base, "sessions", { id: `empty-${colorScheme}` });
    const page = await open(themed, host.base);
    const views = [
      ["sessions", "#/", ".sessions tbody tr"],
      ["chat", "#/s/release-2-4/chat", `${lastRun}[data-end]`],
      ["turns", "#/s/release-2-4/turns", ".waterfall .bar.ran"],
      ["context", "#/s/release-2-4/context", ".fill .part"],
      ["journal", "#/s/release-2-4/journal", ".records li"],
      ["empty", `#/s/empty-${colorScheme}/chat`, "cs-chat .empty"],
      ["tools", "#/tools", ".tools tbody tr"],
      ["models", "#/models", ".model"],
      ["approvals", "#/approvals", "cs-approvals [role=status]:not(:empty)"],
    ];
    for (const [name, route, ready] of views) {
      await page.goto(url(route));
      await page.waitForSelector(ready);
      await page.waitForTimeout(150);
      if (name === "chat") await page.locator(`${lastRun} .thinking > summary`).first().click();
      if (name === "journal") {
        await page.getByRole("button", { name: "Verify" }).click();
        await page.waitForSelector(".verdict.ok");
        await page.locator(".records summary", { hasText: "attempt_started" }).last().click();
        await page.getByRole("button", { name: "Request of this turn" }).click();
        await page.waitForSelector(".request pre");
      }
      if (name === "tools") {
        await page.selectOption("#call-tool", "calculator");
        await page.fill("#call-input", '{"expression": "17% of 2350"}');
        await page.getByRole("button", { name: "Run" }).click();
        await until(
          async () => /success[^]*399\.5/u.test(await page.locator(".answer").innerText()),
          "the answer of the tool",
        );
      }
      await assertAccessible(page, `${name} ${colorScheme}`);
      await shoot(page, `${name}-${colorScheme}`);
    }
    await page.goto(url("#/"));
    await page.getByRole("button", { name: "New session" }).click();
    await page.waitForSelector("dialog[open]");
    await assertAccessible(page, `dialog ${colorScheme}`);
    await shoot(page, `dialog-${colorScheme}`);
    await assertClean(page);
    await themed.close();
  });
}

test("forced colours, reduced motion", async () => {
  const forced = await browser.newContext({
    forcedColors: "active",
    reducedMotion: "reduce",
    viewport: { width: 1280, height: 800 },
  });
  const page = await open(forced, host.base);
  for (const [name, route, ready] of [
    ["chat", "#/s/release-2-4/chat", `${lastRun}[data-end]`],
    ["turns", "#/s/release-2-4/turns", ".waterfall .bar.ran"],
  ]) {
    await page.goto(url(route));
    await page.waitForSelector(ready);
    await assertAccessible(page, `${name} in forced colours`);
    await shoot(page, `${name}-forced`);
  }
  const moving = await page.evaluate(() => document.getAnimations().length);
  assert.equal(moving, 0);
  await forced.close();
});

test("320 pixels and texts of twice the size need no scrolling sideways", async () => {
  for (const [name, viewport, scale] of [
    ["narrow", { width: 320, height: 640 }, 1],
    ["large", { width: 1280, height: 800 }, 2],
  ]) {
    const small = await browser.newContext({ viewport });
    const page = await open(small, host.base);
    for (const [view, route, ready] of [
      ["sessions", "#/", ".sessions tbody tr"],
      ["chat", "#/s/release-2-4/chat", `${lastRun}[data-end]`],
      ["turns", "#/s/release-2-4/turns", ".waterfall .bar.ran"],
      ["context", "#/s/release-2-4/context", ".fill .part"],
      ["journal", "#/s/release-2-4/journal", ".records li"],
      ["tools", "#/tools", ".tools tbody tr"],
      ["models", "#/models", ".model"],
    ]) {
      await page.goto(url(route));
      await page.evaluate(
        (factor) => document.documentElement.style.setProperty("font-size", `${87.5 * factor}%`),
        scale,
      );
      await page.waitForSelector(ready);
      await page.waitForTimeout(80);
      const wide = await page.evaluate(() => {
        const scroller = document.scrollingElement;
        const inner = [
          ...document.querySelectorAll(".log, #view, cs-waterfall, cs-context, cs-journal"),
        ].filter((part) => part.scrollWidth > part.clientWidth + 1);
        return {
          page: scroller.scrollWidth - scroller.clientWidth,
          inner: inner.map(
            (part) => `${part.tagName}.${part.className} ${part.scrollWidth - part.clientWidth}`,
          ),
        };
      });
      assert.deepEqual(wide, { page: 0, inner: [] }, `${view} ${name}`);
      if (view === "chat") {
        const prompt = await page.locator("#prompt").boundingBox();
        const log = await page.locator(".log").boundingBox();
        assert.ok(
          prompt && prompt.y + prompt.height <= viewport.height && log && log.height > 80,
          `${JSON.stringify(prompt)} ${JSON.stringify(log)}`,
        );
      }
      if (view === "turns")
        assert.ok(await page.locator(".waterfall .axis span").first().isVisible(), `the axis, ${name}`);
      if (view === "tools" && name === "narrow") {
        const cells = await page.locator(".tools tbody tr:first-child td").evaluateAll((all) =>
          all.map((cell) => ({
            label: getComputedStyle(cell, "::before").content,
            isInside: cell.getBoundingClientRect().right <= innerWidth,
          })),
        );
        const labels = ["Kind", "Effect", "Starts", "Idempotent", "Approval", "Tokens"];
        assert.deepEqual(
          cells,
          labels.map((label) => ({ label: `"${label} "`, isInside: true })),
        );
        assert.equal(await page.locator("#connection").getAttribute("title"), "Connection to the host: live");
      }
      await shoot(page, `${view}-${name}`);
    }
    await assertAccessible(page, name);
    await small.close();
  }
});

test("everything is done with the keyboard", async () => {
  const page = await open(context, host.base);
  await api(host.base, "sessions", { id: "before" });
  await page.goto(url());
  await page.waitForSelector(".sessions tbody tr");
  const tabTo = async (name) => {
    for (let presses = 0; presses < 60; presses += 1) {
      await page.keyboard.press("Tab");
      const label = await page.evaluate(() => {
        const own = document.activeElement;
        return own?.id || own?.getAttribute("aria-label") || own?.textContent?.trim() || "";
      });
      if (label.startsWith(name)) {
        const outline = await page.evaluate(() => getComputedStyle(document.activeElement).outlineStyle);
        assert.notEqual(outline, "none", `the focus on ${name} is visible`);
        return;
      }
    }
    assert.fail(`Tab does not reach ${name}`);
  };
  await tabTo("New session");
  await page.keyboard.press("Enter");
  await page.waitForSelector("dialog[open]");
  await page.keyboard.type("by-keyboard");
  await page.keyboard.press("Enter");
  await page.waitForSelector("cs-chat textarea");
  await tabTo("prompt");
  await page.keyboard.type("deploy: v1");
  await page.keyboard.press("Enter");
  await page.waitForSelector(".question");
  await page.waitForSelector(".asks:not([hidden])");
  await tabTo("deploy");
  await page.keyboard.press("Enter");
  assert.equal(await page.evaluate(() => document.activeElement?.textContent), "Approve");
  await page.keyboard.press("Enter");
  await ended(page);
  assert.match(await page.locator("#announcements").innerText(), /Run answered/u);
  assert.match(
    await page.evaluate(() => document.activeElement?.closest("cs-call")?.dataset.state ?? "nowhere"),
    /ok/u,
  );
  await tabTo("Turns");
  await page.keyboard.press("Enter");
  await page.waitForSelector(".waterfall tbody tr");
  await assertClean(page);
  await page.close();
});

test("the form of a question is filled in", async () => {
  const page = await openChat("booking");
  await say(page, "book: x");
  const form = page.locator(".question form");
  await form.waitFor();
  assert.match(await form.innerText(), /How many seats\?/u);
  await form.getByLabel("Seats").fill("3");
  await form.getByLabel("class").selectOption("first");
  await form.getByLabel("name").fill("Ada");
  await assertAccessible(page, "form");
  await shoot(page, "form-light");
  const list = await open(context, host.base);
  await list.goto(url());
  await until(
    async () =>
      /turn 1, 1 call waits for an answer/u.test(await list.locator('tr[data-id="booking"]').innerText()),
    "the list says what waits",
  );
  assert.match(await list.locator(".filters").innerText(), /waiting 1/u);
  await shoot(list, "sessions-running-light");
  await list.close();
  await form.getByRole("button", { name: "Answer" }).click();
  await ended(page);
  const { content } = await api(host.base, "sessions/booking/results/t1a1c0");
  assert.match(content, /^accept: /u);
  assert.deepEqual(JSON.parse(content.slice("accept: ".length)), {
    seats: 3,
    class: "first",
    window: true,
    name: "Ada",
  });
  await assertClean(page);
  await page.close();
});

test("images of results are shown, live and later", async () => {
  const page = await openChat("pictures");
  await say(page, "picture: x");
  await ended(page);
  for (const _ of ["live", "later"]) {
    await page.locator("cs-call .head").click();
    const image = page.locator("cs-call .details img");
    await image.waitFor();
    assert.equal(await image.evaluate((own) => own.naturalWidth), 1);
    await assertClean(page);
    await page.reload();
    await ended(page);
  }
  await page.close();
});

test("steering, the queue, stops, images and a fork", async () => {
  const page = await openChat("steering");
  await say(page, "held: steering");
  await page.waitForSelector(`${lastRun}[data-end="running"] .said`);
  await say(page, "steer me");
  await page.waitForSelector(".steer");
  await page.fill("#prompt", "the next one");
  await page.getByRole("button", { name: "Queue" }).click();
  await until(async () => /the next one/u.test(await page.locator(".queue").innerText()), "the queue");
  await page.fill("#prompt", "a mistake");
  await page.getByRole("button", { name: "Queue" }).click();
  await page.getByRole("button", { name: "Take back: a mistake" }).click();
  await until(async () => !/a mistake/u.test(await page.locator(".queue").innerText()), "the mistake is gone");
  gate("steering").open();
  await until(async () => (await page.locator('.run[data-end="answered"]').count()) === 2, "both runs");
  assert.equal(await page.locator(".queue").isHidden(), true);
  assert.match(
    await page.locator(".run").first().innerText(),
    /Half of it, and the rest\.[^]*steer me[^]*You said: steer me/u,
  );

  await say(page, "held: never");
  await page.waitForSelector(`${lastRun}[data-end="running"] .said`);
  await page.getByRole("button", { name: "Stop now" }).click();
  await page.waitForSelector(`${lastRun}[data-end="stopped"]`);
  gate("never").open();

  const png = Buffer.from(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==",
    "base64",
  );
  await page.setInputFiles('input[type="file"]', { name: "dot.png", mimeType: "image/png", buffer: png });
  await page.waitForSelector(".thumbnail img");
  await say(page, "look at this");
  await ended(page);
  await page.waitForSelector(`${lastRun} .from-user img`);
  const sent = model.requests.at(-1).messages.at(-1).content;
  assert.ok(
    sent.some((part) => part.type === "image_url" && part.image_url.url.startsWith("data:image/png")),
    JSON.stringify(sent).slice(0, 200),
  );

  await page.goto(url("#/s/steering/journal"));
  await page.locator(".records summary", { hasText: "run_ended" }).first().click();
  await page.getByRole("button", { name: "Fork here" }).first().click();
  await page.fill("#fork-id", "forked");
  await page.keyboard.press("Enter");
  await page.waitForSelector('h1:has-text("forked")');
  await page.waitForSelector('.run[data-end="answered"]');
  assert.equal(await page.locator(".run").count(), 1);
  await page.getByRole("button", { name: "Delete" }).first().click();
  await page.locator("dialog").getByRole("button", { name: "Delete" }).click();
  await page.waitForSelector(".sessions tbody tr");
  assert.equal(await page.locator('tr[data-id="forked"]').count(), 0);
  await assertClean(page);
  await page.close();
});

test("hostile texts stay texts, wherever they come in", async () => {
  const page = await openChat("hostile", { agent: "hostile" });
  await page.evaluate(() => {
    globalThis.ran = () => {
      globalThis.hasRun = true;
    };
  });
  for (let from = 0; from < PAYLOADS.length; from += 50) {
    await say(page, `hostile: ${from}`);
    await until(
      async () => (await page.locator(".run[data-end]:not([data-end=running])").count()) === from / 50 + 1,
      `run ${from}`,
      30_000,
    );
  }
  for (let from = 0; from < PAYLOADS.length; from += 40) {
    await api(host.base, "sessions/hostile/runs", {
      input: PAYLOADS.slice(from, from + 40).join("\n"),
      wait: true,
    });
  }
  await say(page, "one line: x");
  await until(
    async () =>
      (await answerText(page)).length >= 1_000_000 &&
      (await page.locator(`${lastRun}[data-end="answered"]`).count()) === 1,
    "the long line",
    30_000,
  );
  await page.evaluate(() => {
    for (const head of document.querySelectorAll("cs-call .head")) head.click();
  });
  for (const route of ["turns", "journal", "context", "chat"]) {
    await page.goto(url(`#/s/hostile/${route}`));
    await page.waitForTimeout(300);
    if (route === "journal")
      await page.evaluate(() => {
        for (const own of document.querySelectorAll(".records details")) own.open = true;
      });
    await page.waitForTimeout(100);
    const found = await page.evaluate((forbidden) => {
      const pattern = new RegExp(forbidden, "u");
      const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
      const hidden = [];
      while (texts.nextNode())
        if (pattern.test(texts.currentNode.data)) hidden.push(texts.currentNode.data.slice(0, 80));
      const attributes = [...document.querySelectorAll("*")].flatMap((own) =>
        [...own.attributes]
          .filter(
            ({ name, value }) =>
              name.startsWith("on") ||
              (["href", "src", "action", "srcdoc", "data"].includes(name) &&
                !/^(#\/|data:image\/(png|jpeg|gif|webp)|#view$|style\.css$|icon\.svg$|app\.js$|[a-z-]+\.js$)/u.test(
                  value,
                )) ||
              pattern.test(value),
          )
          .map(({ name, value }) => `${own.tagName} ${name}=${value.slice(0, 80)}`),
      );
      return {
        hasRun: globalThis.hasRun === true,
        elements: [
          ...document.querySelectorAll(
            "body :is(script, iframe, object, embed, svg, math, style, link, meta, base, video, template, portal, marquee, x)",
          ),
        ].map((own) => own.outerHTML.slice(0, 80)),
        hidden,
        attributes,
      };
    }, FORBIDDEN.source);
    assert.deepEqual(found, { hasRun: false, elements: [], hidden: [], attributes: [] }, route);
  }
  const shown = await page.locator("cs-call .name").allTextContents();
  assert.ok(
    shown.some((name) => name.includes("<script>ran()</script>")),
    "the names of tools are shown",
  );
  assert.ok(
    shown.some((name) => name.includes("[U+202E]")),
    "overrides of direction are shown",
  );
  await shoot(page, "hostile-light");
  await assertClean(page);

  for (const id of PAYLOADS) {
    await page.evaluate((own) => {
      location.hash = `#/s/${encodeURIComponent(own)}/chat`;
    }, id);
    await page.waitForTimeout(4);
  }
  await page.evaluate((own) => {
    location.hash = `#/s/${own}/chat`;
  }, "%E0%A4%A<script>ran()</script>");
  await page.waitForSelector(".pane .empty");
  assert.equal(
    await page.evaluate(
      () => globalThis.hasRun === true || document.querySelector("main script, main img") !== null,
    ),
    false,
  );
  await assertClean(page);
  await page.close();
});

test("a reload and the death of the host in mid-run lose nothing and repeat nothing", async () => {
  const page = await openChat("restart");
  await say(page, "long: x");
  await until(async () => (await answerText(page)).length > 200, "the beginning");
  await page.reload();
  await page.waitForSelector(".said");
  await ended(page);
  const expected = LONG.trimEnd();
  assertSame((await answerText(page)).trimEnd(), expected);

  await say(page, "long: y");
  await until(
    async () => (await page.locator(".run").count()) === 2 && (await answerText(page)).length > 200,
    "the second beginning",
  );
  await host.kill();
  await page.waitForSelector(".connection.offline");
  await host.start();
  await page.waitForSelector(".connection.live");
  await until(
    async () => (await page.locator('.run[data-end="answered"]').count()) === 2,
    "the end after the restart",
    30_000,
  );
  const { history } = await api(host.base, "sessions/restart");
  assertSame(history.at(-1).content, LONG);
  assertSame((await answerText(page)).trimEnd(), expected);
  assert.equal(await page.locator(".run").count(), 2);
  assert.equal(await page.locator(`${lastRun} .said:not(.void)`).count(), 1);
  const shown = await page.locator(`${lastRun} .parts`).innerHTML();
  await page.reload();
  await page.waitForSelector(`${lastRun}[data-end="answered"]`);
  assertSame((await answerText(page)).trimEnd(), expected);
  assert.ok(shown.length > 0);
  assert.deepEqual(await page.evaluate(() => globalThis.violations), []);
  await page.close();
});

test("a host that comes back with older data is shown as it is", async () => {
  const page = await openChat("older");
  await say(page, "kept");
  await ended(page);
  await host.kill();
  await host.backup();
  await host.start();
  await page.waitForSelector(".connection.live");
  await say(page, "lost");
  await until(async () => (await page.locator('.run[data-end="answered"]').count()) === 2, "the second run");
  await host.kill();
  await host.restore();
  await host.start();
  await until(async () => (await page.locator(".run").count()) === 1, "the older state");
  assert.match(await page.locator(".log").innerText(), /You said: kept/u);
  await say(page, "again");
  await until(async () => /You said: again/u.test(await page.locator(".log").innerText()), "a further run");
  assert.deepEqual(await page.evaluate(() => globalThis.violations), []);
  await page.close();
});

test("twelve tabs share one stream, and a new leader takes over", async () => {
  const many = await browser.newContext();
  /** Requests for events that are open. */
  const streams = new Set();
  const pages = [];
  for (let index = 0; index < 12; index += 1) {
    await api(host.base, "sessions", { id: `tab-${index}` });
    const page = await open(many, host.base);
    page.on("request", (request) => {
      if (request.url().includes("/v1/events")) streams.add(request);
    });
    page.on("requestfinished", (request) => streams.delete(request));
    page.on("requestfailed", (request) => streams.delete(request));
    page.on("close", () => {
      for (const own of streams) if (own.frame().page() === page) streams.delete(own);
    });
    await page.goto(url(`#/s/tab-${index}/chat`));
    pages.push(page);
  }
  for (const page of pages) {
    await page.waitForSelector("cs-chat textarea");
    await page.waitForSelector(".connection.live");
  }
  await until(() => streams.size === 1, "one stream");
  const times = await Promise.all(
    pages.map((page, index) =>
      page.evaluate(async (id) => {
        const start = performance.now();
        await fetch(`../v1/sessions/${id}?limit=1`);
        return performance.now() - start;
      }, `tab-${index}`),
    ),
  );
  console.log(`# a request in each of 12 tabs: at most ${Math.max(...times).toFixed(0)} ms`);
  const speak = async (text) => {
    await Promise.all(
      pages
        .map((_, index) => api(host.base, `sessions/tab-${index}/runs`, { input: text }))
        .filter((_, index) => !pages[index].isClosed()),
    );
    for (const page of pages) {
      if (!page.isClosed())
        await until(async () => (await page.locator(".log").innerText()).includes(`You said: ${text}`), text);
    }
  };
  await speak("to all");
  const leader = [...streams][0].frame().page();
  await leader.close();
  await until(() => streams.size === 1, "the stream of another leader");
  await speak("once more");
  for (const page of pages) if (!page.isClosed()) await assertClean(page);
  await many.close();
});

test("a token is typed once, for all tabs, and is in no URL", async () => {
  const guarded = await startHost(configuration(model.port, { token: true }), {
    CONSOLE_TEST_TOKEN: "tok-4711",
  });
  const tabs = await browser.newContext();
  try {
    const page = await open(tabs, guarded.base);
    const urls = [];
    tabs.on("request", (request) => urls.push(request.url()));
    await page.goto(`${guarded.base}/console/`);
    await page.locator("#token").fill("wrong");
    await page.keyboard.press("Enter");
    await until(
      async () =>
        (await page
          .locator("#token")
          .inputValue()
          .catch(() => "wrong")) === "",
      "the dialog again",
    );
    await assertAccessible(page, "token");
    await page.locator("#token").fill("tok-4711");
    await page.keyboard.press("Enter");
    await page.waitForSelector(".connection.live");
    const second = await open(tabs, guarded.base);
    await second.goto(`${guarded.base}/console/`);
    await second.waitForSelector(".connection.live");
    await until(async () => (await second.locator(".empty").innerText()).includes("No sessions"), "the list");
    assert.equal(await second.locator("dialog").count(), 0);
    assert.ok(urls.every((own) => !own.includes("tok-4711")));
    assert.deepEqual(await page.evaluate(() => Object.values(localStorage)), []);
  } finally {
    await tabs.close();
    await guarded.stop();
  }
});

test("the console works below a prefix", async () => {
  const proxy = await startProxy(host.base, "/agents/here");
  const apart = await browser.newContext();
  try {
    await api(host.base, "sessions", { id: "mounted" });
    const page = await open(apart, proxy.base);
    await page.goto(`${proxy.base}/console/`);
    await page.locator(".sessions a", { hasText: "mounted" }).click();
    await page.waitForSelector("cs-chat textarea");
    await say(page, "below");
    await ended(page);
    assert.equal((await answerText(page)).trim(), "You said: below");
    await assertClean(page);
  } finally {
    await apart.close();
    await proxy.close();
  }
});

test("many calls and deltas over a long history", async () => {
  const messages = Array.from({ length: 5000 }, (_, index) =>
    index % 2 === 0
      ? { role: "user", content: `question ${index}` }
      : { role: "assistant", content: `**answer** ${index}` },
  );
  await api(host.base, "sessions", { id: "load", messages });
  const page = await open(context, host.base);
  await page.goto(url("#/s/load/chat"));
  await page.waitForSelector("cs-timeline .said");
  assert.ok((await page.locator("cs-timeline .items > *").count()) <= 100, "a window of the history");
  const paint = await page.evaluate(
    () => performance.getEntriesByName("first-contentful-paint")[0]?.startTime ?? 0,
  );
  await page.evaluate(() => {
    globalThis.longest = [];
    new PerformanceObserver((list) => {
      for (const entry of list.getEntries()) globalThis.longest.push(Math.round(entry.duration));
    }).observe({ type: "long-animation-frame" });
    globalThis.shown = new Map();
    new MutationObserver(() =>
      requestAnimationFrame(() => {
        for (const card of document.querySelectorAll("cs-call"))
          if (!globalThis.shown.has(card.id))
            globalThis.shown.set(card.id, Date.now() - (card.call.times.detected ?? Date.now()));
      }),
    ).observe(document.querySelector("cs-timeline"), { childList: true, subtree: true });
    globalThis.heap = performance.memory?.usedJSHeapSize ?? 0;
  });
  await say(page, "many: x");
  await until(async () => (await page.locator('.run[data-end="answered"]').count()) === 1, "the end", 60_000);
  assert.equal(await page.locator("cs-call").count(), 50);
  const text = await answerText(page);
  assert.ok(text.includes("delta 3999"), text.slice(-40));
  assert.equal(text.match(/delta /gu)?.length, 4000);
  const measured = await page.evaluate(() => ({
    longest: globalThis.longest.sort((a, b) => b - a).slice(0, 5),
    cards: [...globalThis.shown.values()].sort((a, b) => a - b),
    heap: (performance.memory?.usedJSHeapSize ?? 0) - globalThis.heap,
  }));
  const p95 = measured.cards[Math.floor(measured.cards.length * 0.95)];
  console.log(
    `# first paint ${paint.toFixed(0)} ms; a card is visible ${p95} ms (p95) after its event; longest frames ${measured.longest.join(", ") || "none"} ms; heap ${(measured.heap / 1e6).toFixed(1)} MB more`,
  );
  await page.getByRole("button", { name: "Show earlier" }).click();
  await until(async () => (await page.locator("cs-timeline .items > *").count()) > 60, "earlier messages");
  await shoot(page, "load-light");
  await until(
    async () =>
      /callsheet_ui_event_to_paint_seconds_count [1-9]/u.test(
        await (await fetch(`${host.base}/metrics`)).text(),
      ),
    "the page's measurements",
  );
  await assertClean(page);
  await page.close();
});

test("a call that the client runs is answered in its place", async () => {
  const schema = { type: "object", properties: { path: { type: "string" } }, required: ["path"] };
  const tools = [{ name: "open_file", description: "Opens a file.", input_schema: schema }];
  await api(host.base, "sessions", { id: "client", client_tools: tools });
  const page = await openChat("client");
  await say(page, "open: notes.md");
  const card = page.locator("cs-call", { hasText: "open_file" });
  await until(
    async () => /client\s+waits for the client, which runs it/u.test(await card.innerText()),
    "the card says who runs the call",
  );
  await page.reload();
  await until(
    async () => /client\s+waits for the client, which runs it/u.test(await card.innerText()),
    "it still does after a reload",
  );
  await card.locator(".head").click();
  assert.match(await card.locator(".details pre").first().innerText(), /"path": "notes\.md"/u);
  await card.getByLabel("Result, in place of the client").fill("It is open.");
  await card.getByRole("button", { name: "Answer" }).click();
  await ended(page);
  assert.equal((await answerText(page)).trim(), "The client said: It is open.");
  assert.match(await card.locator(".head").innerText(), /client\s+success/u);
  await assertClean(page);
  await page.close();
});

test("the sessions of sub-agents are below their calls, with their questions", async () => {
  const page = await openChat("team", { agent: "lead" });
  await say(page, "research: x");
  const question = page.locator(".nested .question:not([hidden])");
  await question.waitFor();
  assert.match(await page.locator(".child-head").first().innerText(), /lead › researcher/u);
  await until(
    async () => (await page.locator('.nested cs-call[data-state="ok"]').count()) === 2,
    "the calls of both children",
  );
  await assertAccessible(page, "sub-agents");
  await shoot(page, "agents-light");
  await page.reload();
  await question.waitFor();
  await page.locator(".asks").getByRole("button", { name: "deploy" }).click();
  assert.equal(await page.evaluate(() => document.activeElement?.textContent), "Approve");
  await page.keyboard.press("Enter");
  await ended(page);
  await page.reload();
  await ended(page);
  const card = page.locator(".entries > .turn > .parts > cs-call", { hasText: "researcher" }).first();
  await card.locator(".head").first().click();
  await card.getByRole("button", { name: "Show its run here" }).click();
  await card.locator(".nested .said", { hasText: "The first paper is about tickets." }).waitFor();
  await assertClean(page);
  await page.close();
});

test("calls of the client and of agents below", async () => {
  const page = await openChat("nested");
  await page.evaluate(async () => {
    const [{ Timeline }, { TimelineView, changed }] = await Promise.all([
      import(new URL("timeline.js", document.baseURI).href),
      import(new URL("conversation.js", document.baseURI).href),
    ]);
    const timeline = new Timeline("nested");
    const event = (type, more) => ({
      type,
      session_id: "nested",
      run_id: "run_1",
      turn: 1,
      timestamp: Date.now(),
      ...more,
    });
    timeline.fold({ seq: 1, time: 1, type: "session_opened", agent: "default" });
    timeline.fold({
      seq: 2,
      time: Date.now(),
      type: "run_started",
      run_id: "run_1",
      input: "Compare both papers",
      model: "m",
      execution: "parallel:4",
    });
    timeline.fold({
      seq: 3,
      time: Date.now(),
      type: "attempt_started",
      turn: 1,
      attempt: 1,
      model: "m",
      streamed: true,
    });
    timeline.apply(event("content_delta", { text: "Two researchers read them." }), "3.26");
    const view = new TimelineView(timeline, "nested", Infinity);
    timeline.onchange = changed;
    document.querySelector("cs-timeline").replaceWith(view);
    const use = (id, name, status, more) =>
      event("tool_use", {
        call_index: 0,
        tool_id: id,
        tool_name: name,
        status,
        waiting_for: null,
        input_summary: '{"input":"paper"}',
        early: false,
        ...more,
      });
    timeline.apply(use("t1a1c0", "researcher", "running"), "");
    timeline.apply(
      use("t1a1c1", "open_file", "waiting", {
        waiting_for: "client",
        by: "client",
        input: { path: "notes.md" },
      }),
      "",
    );
    const child = (type, more) => ({
      ...event(type, more),
      session_id: "sub_0123",
      parent_session_id: "nested",
      parent_tool_id: "t1a1c0",
      agent_path: ["default", "researcher"],
    });
    timeline.applyChild(child("stream_start", { model: "m", execution: "sequential" }));
    timeline.applyChild(child("content_delta", { text: "The first paper says" }));
    timeline.applyChild({
      ...child("tool_use", {
        call_index: 0,
        tool_id: "t1a1c0",
        tool_name: "fetch",
        status: "waiting",
        waiting_for: "approval",
        input_summary: "{}",
        early: false,
      }),
    });
    timeline.applyChild(
      child("tool_approval", {
        call_index: 0,
        tool_id: "t1a1c0",
        tool_name: "fetch",
        phase: "before",
        input: { url: "https://example.com/\u202egnp.exe" },
        arguments_sha256: "ab".repeat(32),
        output_summary: null,
      }),
    );
  });
  await page.waitForSelector(".nested cs-call .question");
  const ofClient = page.locator("cs-call", { hasText: "open_file" }).first();
  assert.match(await ofClient.innerText(), /client\s+waits for the client, which runs it/u);
  await ofClient.locator(".head").click();
  await ofClient.getByLabel("Result, in place of the client").waitFor();
  assert.match(await page.locator(".child-head").innerText(), /default › researcher/u);
  assert.match(await page.locator(".nested pre").first().innerText(), /\\u202egnp\.exe/u);
  await assertAccessible(page, "nested");
  await shoot(page, "nested-light");
  await assertClean(page);
  await page.close();
});
