import assert from "node:assert/strict";
import { test } from "node:test";
import { parseBlocks } from "../src/markdown/blocks";
import { isSafeUrl, parseInline } from "../src/markdown/inline";

test("blocks of an answer are told apart", () => {
    const text = "# Title\n\nA text\nof two lines.\n\n- one\n- two\n  1. inner\n\n> quoted\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n---\n```rust\nfn main() {}\n```";
    const blocks = parseBlocks(text);
    assert.deepEqual(blocks.map(({ kind }) => kind), ["heading", "paragraph", "list", "quote", "table", "rule", "code"]);
    const [heading, paragraph, list, , table, , code] = blocks;
    assert.deepEqual(heading, { kind: "heading", level: 1, text: "Title" });
    assert.equal(paragraph.text, "A text\nof two lines.");
    assert.deepEqual(list.items.map((item) => item.map(({ kind }) => kind)), [["paragraph"], ["paragraph", "list"]]);
    assert.deepEqual([table.head, table.rows], [["a", "b"], [["1", "2"]]]);
    assert.deepEqual(code, { kind: "code", language: "rust", text: "fn main() {}" });
});

test("a code block that is still streamed extends to the end", () => {
    assert.deepEqual(parseBlocks("```py\nprint(1)\n\nprint(2)"), [{ kind: "code", language: "py", text: "print(1)\n\nprint(2)" }]);
    assert.deepEqual(parseBlocks("```"), [{ kind: "code", language: "", text: "" }]);
});

test("an ordered list keeps its first number and its items", () => {
    const [list] = parseBlocks("3. three\n\n4. four\n   more of four\n5. five");
    assert.equal(list.start, 3);
    assert.deepEqual(list.items.map(([first]) => first.text), ["three", "four\nmore of four", "five"]);
});

test("emphasis, code and links are told apart from names and products", () => {
    const kinds = (text) => parseInline(text).map(({ kind }) => kind);
    assert.deepEqual(kinds("**b** and *i* and `c` and ~~d~~"), ["strong", "text", "emphasis", "text", "code", "text", "deleted"]);
    assert.deepEqual(kinds("snake_case_name and 2 * 3 * 4"), ["text"]);
    assert.deepEqual(parseInline("`a*b*`"), [{ kind: "code", text: "a*b*" }]);
    assert.deepEqual(parseInline("``a`b``"), [{ kind: "code", text: "a`b" }]);
    assert.deepEqual(parseInline("``a`"), [{ kind: "text", text: "``" }, { kind: "text", text: "a" }, { kind: "text", text: "`" }]);
    assert.deepEqual(parseInline("\\*no\\*"), [{ kind: "text", text: "*no*" }]);
    assert.deepEqual(kinds("**bold *and italic* text**"), ["strong"]);
    assert.deepEqual(kinds("a **stream that is not"), ["text"]);
    assert.deepEqual(parseInline("[x](https://a.example/b)")[0].url, "https://a.example/b");
    assert.deepEqual(parseInline("see https://a.example/b.").map(({ kind, url }) => url ?? kind), ["text", "https://a.example/b", "text"]);
});

test("only addresses of pages and mail are links", () => {
    for (const url of ["javascript:alert(1)", "JavaScript:alert(1)", "data:text/html,x", "//a.example", "vbscript:x", " https://a"]) {
        assert.ok(!isSafeUrl(url), url);
        assert.deepEqual(parseInline(`[x](${url})`).some(({ kind }) => kind === "link" ), url === " https://a", url);
    }
    assert.ok(isSafeUrl("https://a.example") && isSafeUrl("mailto:a@b.example"));
    assert.deepEqual(parseInline("<img src=x onerror=alert(1)>"), [{ kind: "text", text: "<img src=x onerror=alert(1)>" }]);
});

test("hostile text takes little time", () => {
    const started = performance.now();
    for (const text of [">".repeat(20000), "- ".repeat(20000), "*".repeat(20000), "`".repeat(20000), "[".repeat(20000), "a_".repeat(10000), "|".repeat(20000), "**a ".repeat(5000)]) {
        for (const block of parseBlocks(text)) if (block.text) parseInline(block.text);
        parseInline(text);
    }
    assert.ok(performance.now() - started < 60_000);
});
