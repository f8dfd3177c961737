// Sends the example request of every route in `/docs`, and exits with 1 if a server rejects one.
//
//     node scripts/docs-examples.mjs ADDRESS…
//
// Each address serves a model of another task. A rejection because of the task is expected, and so is one of a source that
// the settings of the server do not allow.
import process from "node:process";
import { example } from "../console/src/api/example.js";

const answered = new Set();
const wrong = [];
for (const address of process.argv.slice(2)) {
    const description = await (await fetch(`${address}/openapi.json`)).json();
    for (const [path, methods] of Object.entries(description.paths)) {
        const media = methods.post?.requestBody?.content?.["application/json"];
        if (!media) continue;
        const body = media.example ?? example(media.schema, description.components.schemas);
        const headers = { "content-type": "application/json" };
        const got = await fetch(address + path, { method: "POST", headers, body: JSON.stringify(body) });
        const text = await got.text();
        if (got.ok) answered.add(path);
        // `/` is the route of the model's task, and its example that of a model that embeds.
        else if (!/needs another model|is not an allowed source/.test(text) && path !== "/") {
            wrong.push(`${path} at ${address}: ${got.status} ${text}\n    for ${JSON.stringify(body)}`);
        }
    }
}
if (wrong.length > 0 || answered.size < 8) {
    console.error(`error: answered ${[...answered].join(" ")}\n${wrong.join("\n")}`);
    process.exit(1);
}
console.log(`the examples of /docs: ${answered.size} routes answered`);
