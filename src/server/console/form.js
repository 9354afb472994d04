/** A form for the answer to a question, made from its JSON schema. */

import { el } from "./dom.js";

/**
 * @typedef {{element: HTMLElement, fields: {name: string, type: string, required: boolean, control: any}[], raw?: HTMLTextAreaElement}} Fields
 */

/** @param {any} schema @param {string} id @returns {Fields} */
export function formFields(schema, id) {
  const properties = Object.entries(schema?.properties ?? {});
  const isFlat = properties.length > 0 && properties.every(([, own]) => isSimple(own));
  if (!isFlat) {
    const raw = el("textarea", { id: `${id}-json`, rows: 5, spellcheck: "false", value: "{}" });
    return {
      element: el("div", { class: "field" }, el("label", { for: raw.id, text: "Answer (JSON)" }), raw),
      fields: [],
      raw,
    };
  }
  const required = new Set(schema.required ?? []);
  const fields = properties.map(([name, own], index) => {
    const property = /** @type {any} */ (own);
    return {
      name,
      type: typeOf(property),
      required: required.has(name),
      control: control(property, `${id}-${index}`, required.has(name)),
      property,
    };
  });
  const element = el(
    "div",
    { class: "fields" },
    ...fields.map(({ name, control: input, required: isRequired, property }) =>
      el(
        "div",
        { class: "field" },
        el("label", { for: input.id, text: `${property.title ?? name}${isRequired ? "" : " (optional)"}` }),
        input,
        property.description && el("p", { class: "hint", text: property.description }),
      ),
    ),
  );
  return { element, fields };
}

/** @param {any} property */
function typeOf(property) {
  const { type } = property;
  return Array.isArray(type) ? (type.find((own) => own !== "null") ?? "string") : (type ?? "string");
}

/** @param {any} property */
function isSimple(property) {
  return ["string", "integer", "number", "boolean"].includes(typeOf(property));
}

/** @param {any} property @param {string} id @param {boolean} required */
function control(property, id, required) {
  const type = typeOf(property);
  const choices =
    property.enum ??
    (property.oneOf ?? [])
      .map((/** @type {any} */ own) => own.const)
      .filter((/** @type {any} */ own) => own !== undefined);
  if (choices.length > 0) {
    const names =
      property.enumNames ?? (property.oneOf ?? []).map((/** @type {any} */ own) => own.title ?? own.const);
    const select = el(
      "select",
      { id, required },
      !required && el("option", { value: "", text: "" }),
      ...choices.map((/** @type {any} */ choice, /** @type {number} */ index) =>
        el("option", { value: String(choice), text: names[index] ?? choice }),
      ),
    );
    select.value = String(property.default ?? (required ? choices[0] : ""));
    return select;
  }
  if (type === "boolean") {
    const input = el("input", { id, type: "checkbox" });
    input.checked = property.default === true;
    return input;
  }
  const isNumber = type === "integer" || type === "number";
  return el("input", {
    id,
    required,
    type: isNumber
      ? "number"
      : property.format === "email"
        ? "email"
        : property.format === "date"
          ? "date"
          : "text",
    step: type === "integer" ? 1 : isNumber ? "any" : undefined,
    min: property.minimum,
    max: property.maximum,
    minlength: property.minLength,
    maxlength: property.maxLength,
    autocomplete: "off",
    value: property.default ?? "",
  });
}

/** Returns the answer. @param {Fields} form */
export function formValues({ fields, raw }) {
  if (raw) return JSON.parse(raw.value);
  /** @type {Record<string, unknown>} */
  const values = {};
  for (const { name, type, required, control: input } of fields) {
    if (type === "boolean") values[name] = input.checked;
    else if (input.value === "" && !required) continue;
    else values[name] = type === "integer" || type === "number" ? Number(input.value) : input.value;
  }
  return values;
}
