/** The form of a question: an approval, or what a tool asks. */

import { ofSession, post } from "./api.js";
import { button, el, fault } from "./dom.js";
import { formFields, formValues } from "./form.js";
import { json } from "./text.js";

/**
 * @param {import("./objects.js").Question} question
 * @param {{id: string, session: string, call: string, name: string, answered: (verdict: string) => void}} of `id` is
 *   the beginning of the ids of its fields; `answered` is called when the host has accepted the answer.
 */
export function questionForm(question, { id, session, call, name, answered }) {
  const isInput = question.phase === "input";
  const what = isInput
    ? `${name} asks`
    : question.phase === "after"
      ? `Use the result of ${name}?`
      : `Run ${name}?`;
  const fields = isInput && question.form ? formFields(question.form, id) : undefined;
  const message = el("input", {
    id: `${id}-message`,
    type: "text",
    autocomplete: "off",
    placeholder: "optional",
  });
  // A disabled button would lose the focus.
  let isSending = false;
  const send = async (/** @type {"approve" | "reject"} */ decision) => {
    if (isSending) return;
    /** @type {Record<string, unknown>} */
    const body = { decision, arguments_sha256: question.sha256, phase: question.phase };
    if (message.value.trim()) body.message = message.value.trim();
    try {
      if (decision === "approve" && fields) body.content = formValues(fields);
      isSending = true;
      await post(ofSession(session, `/approvals/${encodeURIComponent(call)}`), body);
      answered(decision === "approve" ? "approved" : "rejected");
    } catch (error) {
      fault(error);
    } finally {
      isSending = false;
    }
  };
  return el(
    "form",
    {
      "aria-label": what,
      onsubmit: (/** @type {SubmitEvent} */ event) => {
        event.preventDefault();
        void send("approve");
      },
    },
    el("h2", { text: what }),
    question.message && el("p", { class: "asked", dir: "auto", text: question.message }),
    isInput
      ? undefined
      : el("pre", {
          class: "arguments",
          tabindex: 0,
          "aria-label": "Arguments",
          text: json(question.input),
        }),
    question.phase === "after" &&
      question.outputSummary !== null &&
      el(
        "div",
        {},
        el("h3", { text: "Its result" }),
        el("pre", { tabindex: 0, text: question.outputSummary }),
      ),
    question.url &&
      el("p", {}, "Open this address yourself, if you trust it: ", el("code", { text: question.url })),
    fields?.element,
    el(
      "p",
      { class: "hint" },
      "hash ",
      el("code", { title: question.sha256, text: question.sha256.slice(0, 12) }),
      isInput
        ? ""
        : question.phase === "after"
          ? ": it ran with exactly these arguments."
          : ": exactly these arguments are run.",
    ),
    el(
      "div",
      { class: "row" },
      el("label", { for: message.id, text: "Message" }),
      message,
      el("button", {
        type: "submit",
        class: "primary",
        text: isInput ? (fields ? "Answer" : "Done") : "Approve",
      }),
      button(isInput ? "Decline" : "Reject", () => void send("reject"), { class: "danger" }),
    ),
  );
}
