// Sends conversations through the openai package of Node.js, and checks the answers.
//
// Called by scripts/clients: node scripts/chat-clients.mjs PACKAGE SMOLLM2_ADDRESS MODEL TOOLS_ADDRESS TOOLS_MODEL
//
// SmolLM2 answers questions; tools are those of a random model, whose calls are valid, not clever.
import assert from "node:assert/strict";
import process from "node:process";
import { pathToFileURL } from "node:url";

const [entry, address, model, toolsAddress, toolsModel] = process.argv.slice(2);
const { OpenAI, NotFoundError } = await import(pathToFileURL(entry).href);
const open = (url) => new OpenAI({ baseURL: `${url}/v1`, apiKey: "any", maxRetries: 0 });
const client = open(address);
const messages = [{ role: "user", content: "What is the capital of Japan?" }];

const request = { model, messages, temperature: 0, max_tokens: 40 };
const answer = await client.chat.completions.create(request);
const expected = answer.choices[0].message.content;
assert.match(expected, /Tokyo/);
assert.equal(answer.choices[0].finish_reason, "stop");
assert.equal(answer.usage.total_tokens, answer.usage.prompt_tokens + answer.usage.completion_tokens);

let streamed = "";
let usage;
for await (const chunk of await client.chat.completions.create({ ...request, stream: true, stream_options: { include_usage: true } })) {
    streamed += chunk.choices[0]?.delta.content ?? "";
    usage = chunk.usage ?? usage;
}
assert.equal(streamed, expected);
assert.equal(usage.completion_tokens, answer.usage.completion_tokens);
const final = await client.chat.completions.stream(request).finalContent();
assert.equal(final, expected);

const { logprobs } = (await client.chat.completions.create({ ...request, logprobs: true, top_logprobs: 2 })).choices[0];
assert(logprobs.content.every((token) => token.top_logprobs.length === 2 && token.logprob <= 0));
const draw = async (seed) =>
    (await client.chat.completions.create({ ...request, temperature: 1.5, seed, max_tokens: 20 })).choices[0].message.content;
assert.equal(await draw(7), await draw(7));

const schema = {
    type: "object",
    properties: { name: { type: "string", maxLength: 20 }, age: { type: "integer", minimum: 0, maximum: 150 } },
    required: ["name", "age"],
    additionalProperties: false,
};
const person = await client.chat.completions.create({
    model,
    messages: [{ role: "user", content: "Describe a person as JSON with a name and an age." }],
    temperature: 0,
    max_tokens: 100,
    response_format: { type: "json_schema", json_schema: { name: "person", schema, strict: true } },
});
assert.deepEqual(Object.keys(JSON.parse(person.choices[0].message.content)).sort(), ["age", "name"]);

const question = { model, input: messages[0].content, temperature: 0, max_output_tokens: 40 };
assert.equal((await client.responses.create(question)).output_text, expected);
let text = "";
let last;
for await (const event of await client.responses.create({ ...question, stream: true })) {
    if (event.type === "response.output_text.delta") text += event.delta;
    last = event.type;
}
assert.deepEqual([text, last], [expected, "response.completed"]);
await assert.rejects(client.chat.completions.create({ ...request, model: "other" }), NotFoundError);

const tools = [{ type: "function", function: { name: "person", parameters: schema } }];
const demand = { model: toolsModel, messages, tools, tool_choice: "required", max_tokens: 800, seed: 1 };
const called = (await open(toolsAddress).chat.completions.create(demand)).choices[0];
assert.equal(called.finish_reason, "tool_calls");
for (const call of called.message.tool_calls) {
    const { age, ...rest } = JSON.parse(call.function.arguments);
    assert(call.function.name === "person" && Number.isInteger(age) && Object.keys(rest).join() === "name");
}
const stream = open(toolsAddress).chat.completions.stream(demand);
assert.deepEqual(
    (await stream.finalMessage()).tool_calls.map((call) => call.function.arguments),
    called.message.tool_calls.map((call) => call.function.arguments),
);
console.log("openai of Node.js: ok");
