import assert from "node:assert/strict";
import { test } from "node:test";
import { example } from "../src/api/example.js";
import { Meter } from "../src/chat/meter";
import { parseTexts } from "../src/embeddings/texts";
import { errorMessage } from "../src/server/error-message";
import { events } from "../src/server/event-stream";

test("events are read across the borders of chunks", async () => {
    const parts = ["data: {\"a\":", " \"é", "\"}\n\nda", "ta: 2\r\n\r\n: comment\n\ndata: [DONE]\n\ndata: late\n\n"];
    const bytes = new TextEncoder().encode(parts.join(""));
    const cuts = [3, 12, 13, 20, 30];
    const body = new ReadableStream({
        start(controller) {
            [0, ...cuts].forEach((from, at) => controller.enqueue(bytes.slice(from, cuts[at] ?? bytes.length)));
            controller.close();
        },
    });
    const all = [];
    for await (const data of events(body)) all.push(data);
    assert.deepEqual(all, ['{"a": "é"}', "2"]);
});

test("an answer is measured from its request to its first and last token", () => {
    const meter = new Meter(1000);
    meter.read({ choices: [{ delta: { role: "assistant", content: "" } }] }, 1050);
    assert.equal(meter.answer().firstToken, undefined, "an empty piece is no token");
    meter.read({ choices: [{ delta: { reasoning_content: "hm" } }] }, 1100);
    meter.read({ choices: [{ delta: { content: "A" } }] }, 1200);
    meter.read({ choices: [{ delta: { content: "B" } }] }, 1300);
    assert.deepEqual({ ...meter.answer() }, { content: "AB", reasoning: "hm", tokens: 3, counted: false, firstToken: 0.1, rate: 10 });
    meter.read({ choices: [{ delta: {}, finish_reason: "length" }] }, 1400);
    meter.read({ choices: [], usage: { prompt_tokens: 7, completion_tokens: 5, prompt_tokens_details: { cached_tokens: 2 } } }, 1400);
    const { tokens, counted, rate, promptTokens, cachedTokens, finish } = meter.answer();
    assert.deepEqual([tokens, counted, rate, promptTokens, cachedTokens, finish], [5, true, 20, 7, 2, "length"]);
});

test("messages of refusals are found in every dialect", () => {
    assert.equal(errorMessage('{"error":{"message":"one"}}', 400), "one");
    assert.equal(errorMessage('{"error":"two","error_type":"x"}', 400), "two");
    assert.equal(errorMessage('{"message":"three"}', 400), "three");
    assert.equal(errorMessage("plain", 400), "plain");
    assert.equal(errorMessage("", 502), "status 502");
    assert.equal(errorMessage("null", 502), "null");
});

test("texts are lines, with a label before a tab", () => {
    assert.deepEqual(parseTexts(" a \n\n x\tb\r\n\tc\nd\t"), [
        { label: "", text: "a" },
        { label: "x", text: "b" },
        { label: "", text: "c" },
        { label: "", text: "d" },
    ]);
});

test("an example body has required fields and known ones", () => {
    const all = { Body: { properties: { query: { type: "string" }, n: { type: ["integer", "null"] }, need: { $ref: "#/components/schemas/Need" } }, required: ["need"] }, Need: { oneOf: [{ type: "null" }, { type: "array", items: { type: "boolean" } }] } };
    assert.deepEqual(example({ $ref: "#/components/schemas/Body" }, all), { query: "What holds a candle?", need: [false] });
});
