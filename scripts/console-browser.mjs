// Drives the console in Chromium, and exits with 1 if a page does not do what it should.
//
//     node scripts/console-browser.mjs FOLDER CHROMIUM ADDRESS ADDRESS_WITH_KEY SOURCE
//
// The first server has a model of each task and allows SOURCE; the second requires the API key `secret`. FOLDER has the
// packages playwright-core and axe-core, and gets screenshots.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import process from "node:process";

const [folder, executablePath, address, guarded, source] = process.argv.slice(2);
const require = createRequire(`${process.cwd()}/${folder}/package.json`);
const { chromium } = require("playwright-core");
const axe = readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");

const PAGES = ["chat", "embeddings", "models", "live"];
const WIDE = { width: 1280, height: 860 };
const NARROW = { width: 390, height: 844 };
/** Milliseconds; a busy machine is slow. */
const PATIENCE = 60_000;

const browser = await chromium.launch({ executablePath, args: ["--no-sandbox", "--disable-gpu"] });

/** Opens a tab whose requests and errors are recorded. */
async function openTab(options = {}) {
    const context = await browser.newContext({ viewport: WIDE, ...options });
    const page = await context.newPage();
    page.setDefaultTimeout(PATIENCE);
    const [requests, errors] = [[], []];
    context.on("request", (request) => requests.push(request.url()));
    page.on("websocket", (socket) => requests.push(socket.url()));
    page.on("pageerror", (error) => errors.push(String(error)));
    page.on("console", (message) => message.type() === "error" && errors.push(message.text()));
    return { context, page, requests, errors };
}

/** Fails unless every request stayed at one origin, and nothing but refusals was reported as an error. */
function checkTab({ requests, errors }, origin) {
    const away = requests.filter((url) => !url.startsWith(`${origin}/`) && !/^(data|about):/.test(url));
    assert.deepEqual(away, [], "requests to elsewhere");
    const unexpected = errors.filter((error) => !/Failed to load resource/.test(error));
    assert.deepEqual(unexpected, [], "errors of the page");
}

async function metric(name) {
    const text = await (await fetch(`${address}/metrics`)).text();
    const lines = text.split("\n").filter((line) => line.startsWith(name));
    return lines.reduce((all, line) => all + Number(line.split(" ").at(-1)), 0);
}

async function until(what, check) {
    const end = Date.now() + PATIENCE;
    while (!(await check())) {
        assert.ok(Date.now() < end, `not in time: ${what}`);
        await new Promise((resolve) => setTimeout(resolve, 50));
    }
}

async function chatStreamsAndStops(page) {
    await page.goto(`${address}/`);
    const [input, answers] = [page.getByLabel("Message"), page.getByLabel("Model", { exact: true }).locator("css=.markdown")];
    await page.getByText("System prompt and sampling").click();
    await page.getByLabel("System prompt").fill("You are a helpful assistant.");
    await page.getByLabel("Temperature").fill("0");
    await page.getByText("System prompt and sampling").click();
    // By keyboard alone: Enter sends, Escape stops.
    await input.fill("Write a very long story about a lighthouse, with many chapters.");
    await input.press("Enter");
    const first = await answers.last().innerText();
    await until("the stream grows", async () => (await answers.last().innerText()).length > first.length + 40);
    assert.ok(await page.getByRole("button", { name: "Stop" }).isVisible(), "the stream still runs");
    await input.press("Escape");
    await page.getByText(/· stopped/).waitFor();
    await until("the server has stopped too", async () => (await metric("vllm:num_requests_running")) === 0);
    const stopped = await answers.last().innerText();

    await page.getByRole("button", { name: "New chat" }).click();
    await input.fill("What is the capital of Japan?");
    await page.getByRole("button", { name: "Send" }).click();
    await page.getByText(/tokens\/s · first token after .* · \d+ tokens · prompt \d+/).waitFor();
    assert.match(await answers.last().innerText(), /Tokyo/);
    await page.getByRole("button", { name: "Send" }).waitFor();
    await page.screenshot({ path: `${folder}/chat-answer.png` });
    return `chat: a stream of ${stopped.length} characters was stopped; ${await page.locator(".stats").last().innerText()}`;
}

/** An answer with hostile and rich text, in place of the model's. */
const HOSTILE = [
    "# Title\n\n<img src=x onerror=\"window.hacked=1\"><script>window.hacked=1</script>\n\n",
    "[link](javascript:window.hacked=1) and [page](https://a.example/) ![image](https://a.example/x.png)\n\n",
    "| a | b |\n|---|---|\n| **1** | `2` |\n\n1. one\n2. two\n\n```rust\nfn main() { println!(\"</code><b>\"); }\n```\n",
];

async function markdownIsSafe(page) {
    const event = (value) => `data: ${JSON.stringify(value)}\n\n`;
    const body = HOSTILE.map((content) => event({ choices: [{ delta: { content } }] })).join("") + "data: [DONE]\n\n";
    await page.route("**/v1/chat/completions", (route) => route.fulfill({ contentType: "text/event-stream", body }));
    await page.getByRole("button", { name: "New chat" }).click();
    await page.getByLabel("Message").fill("Show everything.");
    await page.getByLabel("Message").press("Enter");
    const answer = page.locator(".turn.assistant");
    await answer.locator("pre code").waitFor();
    await page.unroute("**/v1/chat/completions");
    await page.screenshot({ path: `${folder}/chat-markdown.png` });
    assert.equal(await page.evaluate(() => window.hacked), undefined);
    assert.equal(await answer.locator("img, script, b").count(), 0);
    const links = await answer.locator("a").evaluateAll((all) => all.map((link) => link.getAttribute("href")));
    assert.ok(links.every((link) => link.startsWith("https://a.example/")), String(links));
    assert.equal(await answer.locator("table td strong").innerText(), "1");
    assert.equal(await answer.locator("pre code").innerText(), 'fn main() { println!("</code><b>"); }');
    return "markdown: hostile text is text";
}

const TOPICS = {
    sea: ["The fishing boat returned to the harbour", "Waves broke over the pier", "The sailor watched the tide"],
    code: ["The compiler reported a type error", "The unit test failed after the change", "The function returns an iterator"],
    food: ["She baked bread with rye flour", "The soup needs more salt and pepper", "He roasted vegetables in olive oil"],
    music: ["The violinist tuned her instrument", "The choir sang a quiet hymn", "A drummer kept a steady rhythm"],
    space: ["The telescope observed a distant galaxy", "A probe entered the orbit of Saturn", "The rocket carried a satellite"],
};

/** Texts with their topics as labels. */
function texts(count) {
    const topics = Object.entries(TOPICS);
    return Array.from({ length: count }, (_, at) => {
        const [label, sentences] = topics[at % topics.length];
        return `${label}\t${sentences[Math.floor(at / topics.length) % sentences.length]}, as noted in report ${at}.`;
    }).join("\n");
}

async function embeddingsAreShown(page) {
    await page.goto(`${address}/#embeddings`);
    await page.getByRole("button", { name: "Use example texts" }).click();
    await page.getByRole("button", { name: "Embed 12 texts" }).click();
    await page.locator("table.heat").waitFor();
    assert.equal(await page.locator("table.heat tbody td").count(), 144);
    await page.screenshot({ path: `${folder}/embeddings-table.png`, fullPage: true });

    await page.getByLabel("Texts, one per line").fill(texts(500));
    await page.getByRole("button", { name: "Embed 500 texts" }).click();
    await page.getByText(/^500 texts by/).waitFor();
    const heat = page.getByLabel(/Similarity heat map of 500 texts/);
    await heat.waitFor();
    const colors = await page.locator("canvas").evaluate((canvas) => {
        const { data, width, height } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
        const seen = new Set();
        for (let at = 0; at < data.length; at += 4) seen.add((data[at] << 16) | (data[at + 1] << 8) | data[at + 2]);
        return { width, height, seen: seen.size };
    });
    assert.ok(colors.width === 500 && colors.height === 500 && colors.seen > 100, JSON.stringify(colors));
    await heat.focus();
    await page.keyboard.press("ArrowRight");
    await page.keyboard.press("Shift+ArrowDown");
    await page.locator(".readout", { hasText: "report 10" }).waitFor();
    assert.match(await page.locator(".readout").innerText(), /report 1\./);

    await page.getByRole("tab", { name: "Similarity" }).focus();
    await page.keyboard.press("ArrowRight");
    await page.getByLabel("Map of 500 texts. Arrow keys choose a text.").waitFor();
    assert.equal(await page.locator("circle.point").count(), 500);
    assert.equal(await page.locator(".plot svg").evaluate((svg) => new Set([...svg.querySelectorAll("circle.point")].map((one) => getComputedStyle(one).fill)).size), 5);
    await page.screenshot({ path: `${folder}/embeddings-map.png`, fullPage: true });
    return `embeddings: ${await page.locator(".summary").innerText()}`;
}

async function searchIsReranked(page) {
    await page.getByRole("tab", { name: "Search" }).click();
    await page.getByLabel("Query").fill("ships on the ocean");
    await page.getByRole("button", { name: "Search" }).click();
    const [before, after] = [page.getByLabel("By embeddings"), page.getByLabel("By tiny-bert-rerank")];
    await after.waitFor();
    assert.equal(await before.locator("li").count(), 10);
    assert.equal(await after.locator("li").count(), 10);
    assert.match(await before.locator("li").first().innerText(), /boat|Waves|sailor/);
    assert.ok((await after.locator(".move").count()) === 10, "every document says how it moved");
    await page.screenshot({ path: `${folder}/embeddings-search.png`, fullPage: true });
    return "search: ranked by embeddings, and by the reranker beside it";
}

async function twoThousandTextsAreMapped(page) {
    await page.getByLabel("Texts, one per line").fill(texts(2001));
    await page.getByText("at most 2000 texts: 2001").waitFor();
    await page.getByLabel("Texts, one per line").fill(texts(2000));
    await page.getByRole("button", { name: "Embed 2000 texts" }).click();
    await page.getByText(/^2000 texts by/).waitFor();
    const started = Date.now();
    await page.getByRole("tab", { name: "Map" }).click();
    await until("2,000 points", async () => (await page.locator("circle.point").count()) === 2000);
    const took = Date.now() - started;
    await page.getByLabel("Texts, one per line").fill(texts(500));
    return `map: 2,000 texts in ${took} ms`;
}

async function modelsLoadAndUnload(page) {
    await page.goto(`${address}/#models`);
    const card = page.getByRole("article", { name: "minilm", exact: true });
    await card.getByText(/^Plan: /).click();
    const rows = await card.locator("table.plan tbody tr").count();
    assert.ok(rows >= 3, `${rows} placements`);
    assert.match(await card.locator("tr.chosen").innerText(), /twin: .* cases/);
    assert.match(await card.locator("table.plan").innerText(), /Hint:/);
    assert.match(await page.getByLabel("Memory", { exact: true }).innerText(), /of the limit of 6\.0 GB/);
    await page.screenshot({ path: `${folder}/models-plan.png`, fullPage: true });

    await page.getByText("Add a model").click();
    await page.getByLabel("Source").fill("/elsewhere/model");
    await page.getByRole("button", { name: "Load", exact: true }).click();
    await page.getByText(/is not an allowed source/).waitFor();
    await page.getByText("sconce serve --model-sources SOURCE").waitFor();
    await page.getByLabel("Source").fill(source);
    await page.getByLabel("Name in requests").fill("added");
    await page.getByRole("button", { name: "Check" }).click();
    await page.getByText("It fits beside the loaded models.").waitFor();
    await page.getByRole("button", { name: "Load", exact: true }).click();
    const added = page.getByRole("article", { name: "added", exact: true });
    await added.locator(".chip", { hasText: "ready" }).waitFor();
    const list = async () => (await (await fetch(`${address}/v1/models`)).json()).data.map(({ id }) => id);
    assert.ok((await list()).includes("added"));
    page.once("dialog", (dialog) => dialog.accept());
    await page.getByRole("button", { name: "Unload added" }).click();
    await added.waitFor({ state: "detached" });
    assert.ok(!(await list()).includes("added"));
    return `models: ${rows} placements in the plan of minilm; a model was loaded and unloaded`;
}

/** Sends embeddings until `stop` is called. */
function load(clients) {
    let running = true;
    const body = JSON.stringify({ model: "minilm", input: Array.from({ length: 16 }, (_, at) => `A text of some words, number ${at}.`) });
    const client = async () => {
        while (running) {
            const got = await fetch(`${address}/v1/embeddings`, { method: "POST", headers: { "content-type": "application/json" }, body });
            await got.arrayBuffer();
        }
    };
    const all = Promise.all(Array.from({ length: clients }, client));
    return () => {
        running = false;
        return all;
    };
}

async function liveShowsLoad(page) {
    await page.goto(`${address}/#live`);
    const stop = load(6);
    await fetch(`${address}/v1/embeddings`, { method: "POST", body: "{" });
    const value = (name) => page.locator(".numbers div", { hasText: name }).locator("dd").innerText();
    const number = async (name) => Number((await value(name)).replaceAll(",", ""));
    await until("a rate", async () => (await number("Tokens/s")) > 0 && (await number("Requests/s")) > 0);
    await until("a latency", async () => /ms|s$/.test(await value("p95 latency")));
    await page.locator(".bars li").first().waitFor();
    await page.getByText("requests refused").first().waitFor();
    // Some seconds of samples make lines.
    await until("lines", async () => ((await page.locator("path.line").first().getAttribute("d")) ?? "").split("L").length > 5);
    const shown = `${await value("Tokens/s")} tokens/s, p95 ${await value("p95 latency")}`;
    await page.screenshot({ path: `${folder}/live-load.png`, fullPage: true });
    await stop();
    return `live: ${shown}`;
}

async function apiIsTried(page) {
    await page.getByRole("link", { name: "API" }).click();
    assert.equal(new URL(page.url()).pathname, "/docs");
    await page.getByLabel("Model of requests").selectOption("minilm");
    const route = page.locator("details.route", { hasText: "/tokenize" }).first();
    await route.locator("summary").click();
    await route.getByRole("button", { name: "Send POST /tokenize" }).click();
    await route.getByText(/^200 in/).waitFor();
    assert.match(await route.locator(".command").innerText(), /curl .*\/tokenize -H 'x-sconce-model: minilm'/);
    await page.screenshot({ path: `${folder}/api-route.png` });
    await page.goBack();
    assert.ok(await page.locator(".numbers").isVisible(), "the page before is still there");
    return "api: a request was sent from /docs";
}

async function keyIsAskedFor() {
    const tab = await openTab();
    const { page, context } = tab;
    await page.goto(`${guarded}/`);
    await page.getByText("This server requires an API key.").waitFor();
    await page.screenshot({ path: `${folder}/key.png` });
    await page.getByLabel("API key").fill("wrong");
    await page.keyboard.press("Enter");
    await page.getByText("The server does not know this API key.").waitFor();
    await page.getByLabel("API key").fill("secret");
    await page.getByRole("button", { name: "Use the key" }).click();
    await page.getByText("1 of 1 models loaded").waitFor();
    const stored = await page.evaluate(() => [Object.values(sessionStorage), Object.values(localStorage), document.cookie]);
    assert.ok(stored[0].includes("secret") && !stored[1].includes("secret") && stored[2] === "");
    await page.reload();
    await page.getByText("1 of 1 models loaded").waitFor();
    await page.goto(`${guarded}/docs`);
    await page.getByRole("heading", { name: "OpenAI" }).waitFor();
    checkTab(tab, guarded);
    await context.close();
    return "key: asked for, kept in the session";
}

/** Screenshots of every page, their overflow, and the rules of axe on them. */
async function screensAreReadable(name, options) {
    const tab = await openTab({ ...options, bypassCSP: true });
    const { page, context } = tab;
    const found = [];
    for (const path of [...PAGES.map((one) => `#${one}`), "docs"]) {
        await page.goto("about:blank");
        await page.goto(`${address}/${path}`);
        const ready = { "#chat": ".composer textarea:enabled", "#embeddings": "textarea", "#models": "article.model", "#live": ".charts figure", docs: "details.route" };
        await page.locator(ready[path]).first().waitFor();
        if (path === "#embeddings") {
            await page.getByRole("button", { name: "Use example texts" }).click();
            await page.getByRole("button", { name: "Embed 12 texts" }).click();
            await page.locator("table.heat").waitFor();
        }
        const shot = `${folder}/${name}-${path.replace("#", "")}.png`;
        await page.screenshot({ path: shot, fullPage: path !== "docs" });
        const overflow = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
        if (overflow > 0) found.push(`${name} ${path}: ${overflow} pixels wider than the screen`);
        await page.evaluate(axe);
        const { violations } = await page.evaluate(() => window.axe.run(document, { resultTypes: ["violations"] }));
        for (const { id, help, nodes } of violations) found.push(`${name} ${path}: ${id}: ${help}: ${nodes.slice(0, 3).map(({ html }) => html.slice(0, 120)).join(" ")}`);
    }
    await page.keyboard.press("Tab");
    checkTab(tab, address);
    await context.close();
    return found;
}

const tab = await openTab();
const steps = [chatStreamsAndStops, markdownIsSafe, embeddingsAreShown, searchIsReranked, twoThousandTextsAreMapped, modelsLoadAndUnload, liveShowsLoad, apiIsTried];
try {
    for (const step of steps) console.log(await step(tab.page));
    checkTab(tab, address);
    console.log(await keyIsAskedFor());
    const found = [];
    for (const [name, options] of Object.entries({
        light: { colorScheme: "light" },
        dark: { colorScheme: "dark" },
        narrow: { colorScheme: "light", viewport: NARROW },
        "narrow-dark": { colorScheme: "dark", viewport: NARROW },
    })) {
        found.push(...(await screensAreReadable(name, options)));
    }
    assert.deepEqual(found, []);
    console.log(`requests: ${tab.requests.length}, none left the origin; screens: no violation of axe's rules`);
} catch (error) {
    await tab.page.screenshot({ path: `${folder}/failed.png` }).catch(() => undefined);
    console.error(`the page: ${tab.page.url()}\nits errors: ${tab.errors.join("\n")}`);
    throw error;
} finally {
    await browser.close();
}
