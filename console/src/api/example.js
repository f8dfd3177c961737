// Example bodies for the schemas of an OpenAPI description. Plain JavaScript: scripts/docs-examples.mjs imports it too.

/**
 * @typedef {{
 *     $ref?: string, example?: unknown, type?: string | string[], enum?: unknown[], items?: Schema, required?: string[],
 *     properties?: Record<string, Schema>, oneOf?: Schema[], anyOf?: Schema[], allOf?: Schema[],
 * }} Schema
 */

/** Example values by field name. */
/** @type {Record<string, unknown>} */
const EXAMPLES = {
    input: "On a sconce.",
    inputs: "On a sconce.",
    text: "On a sconce.",
    query: "What holds a candle?",
    texts: ["A sconce does.", "The harbour at night."],
    documents: ["A sconce does.", "The harbour at night."],
    ids: [101, 102],
    source_sentence: "What holds a candle?",
    sentences: ["A sconce does.", "The harbour at night."],
};

/**
 * Resolves a schema reference.
 * @param {Schema | undefined} schema
 * @param {Record<string, Schema>} all
 * @returns {Schema}
 */
function resolve(schema, all) {
    const name = schema?.$ref?.split("/").pop();
    return name ? (all[name] ?? {}) : (schema ?? {});
}

/**
 * An example body: required fields, and those with an example value.
 * @param {Schema | undefined} schema
 * @param {Record<string, Schema>} all
 * @returns {unknown}
 */
export function example(schema, all, depth = 0) {
    const found = resolve(schema, all);
    if (depth > 6) return null;
    if (found.example !== undefined) return found.example;
    const some = found.oneOf ?? found.anyOf;
    if (some) return example(some.find((one) => one.type !== "null") ?? some[0], all, depth + 1);
    if (found.allOf) return Object.assign({}, ...found.allOf.map((one) => example(one, all, depth + 1)));
    if (found.properties) return exampleObject(found, all, depth);
    const type = [found.type ?? "string"].flat().find((one) => one !== "null");
    if (found.enum) return found.enum[0];
    if (type === "array") return [example(found.items, all, depth + 1)];
    if (type === "object") return {};
    if (type === "integer" || type === "number") return 1;
    if (type === "boolean") return false;
    return "On a sconce.";
}

/**
 * @param {Schema} schema
 * @param {Record<string, Schema>} all
 * @param {number} depth
 */
function exampleObject({ properties = {}, required = [] }, all, depth) {
    /** @type {Record<string, unknown>} */
    const body = {};
    for (const [name, field] of Object.entries(properties)) {
        const plain = !resolve(field, all).properties;
        if (plain && EXAMPLES[name]) body[name] = EXAMPLES[name];
        else if (required.includes(name)) body[name] = example(field, all, depth + 1);
    }
    return body;
}
