// Blocks of Markdown: what language models write. Unfinished blocks, as in a stream, extend to the end.

export type Block =
    | { kind: "code"; language: string; text: string }
    | { kind: "heading"; level: number; text: string }
    | { kind: "paragraph"; text: string }
    | { kind: "quote"; blocks: Block[] }
    | { kind: "list"; start: number | undefined; items: Block[][] }
    | { kind: "table"; head: string[]; rows: string[][] }
    | { kind: "rule" };

/** Deeper lists and quotes are text. */
const MOST_NESTED = 8;

const FENCE = /^\s{0,3}(`{3,}|~{3,})\s*([^\s`]*)[^`]*$/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*?)\s*#*\s*$/;
const RULE = /^ {0,3}([-*_])(?:\s*\1){2,}\s*$/;
const QUOTE = /^ {0,3}> ?(.*)$/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])(?:\s+(.*)|)$/;
const DASHES = /^\s*\|?\s*:?-+:?\s*(?:\|\s*:?-+:?\s*)*\|?\s*$/;

export function parseBlocks(text: string): Block[] {
    return blocks(text.replaceAll("\t", "    ").split(/\r?\n/), 0);
}

function blocks(lines: string[], depth: number): Block[] {
    const all: Block[] = [];
    let at = 0;
    while (at < lines.length) {
        const line = lines[at] as string;
        if (!line.trim()) {
            at += 1;
            continue;
        }
        const [block, next] = blockAt(lines, at, line, depth);
        all.push(block);
        at = next;
    }
    return all;
}

/** The block that begins at a line, and the line after it. */
function blockAt(lines: string[], at: number, line: string, depth: number): [Block, number] {
    const fence = FENCE.exec(line);
    if (fence) return codeAt(lines, at, fence[1] as string, fence[2] ?? "");
    const heading = HEADING.exec(line);
    if (heading) return [{ kind: "heading", level: (heading[1] as string).length, text: heading[2] as string }, at + 1];
    if (RULE.test(line)) return [{ kind: "rule" }, at + 1];
    if (depth < MOST_NESTED && QUOTE.test(line)) return quoteAt(lines, at, depth);
    if (depth < MOST_NESTED && ITEM.test(line)) return listAt(lines, at, depth);
    if (isTable(lines, at)) return tableAt(lines, at);
    let end = at + 1;
    while (end < lines.length && !interrupts(lines, end)) end += 1;
    return [{ kind: "paragraph", text: lines.slice(at, end).map((one) => one.trimStart()).join("\n") }, end];
}

/** Whether a line ends the paragraph before it. */
function interrupts(lines: string[], at: number): boolean {
    const line = lines[at] as string;
    const starts = [FENCE, HEADING, RULE, QUOTE].some((pattern) => pattern.test(line));
    const item = ITEM.exec(line);
    return !line.trim() || starts || (item !== null && item[3] !== undefined) || isTable(lines, at);
}

function codeAt(lines: string[], at: number, fence: string, language: string): [Block, number] {
    const closes = (line: string) => {
        const text = line.trim();
        return text.length >= fence.length && text === (fence[0] as string).repeat(text.length);
    };
    let end = at + 1;
    while (end < lines.length && !closes(lines[end] as string)) end += 1;
    const indent = /^ */.exec(lines[at] as string)?.[0].length ?? 0;
    const text = lines.slice(at + 1, end).map((line) => line.slice(Math.min(indent, line.search(/\S|$/))));
    return [{ kind: "code", language, text: text.join("\n") }, end + 1];
}

function quoteAt(lines: string[], at: number, depth: number): [Block, number] {
    const inside: string[] = [];
    let end = at;
    for (let match = QUOTE.exec(lines[end] ?? ""); match; match = QUOTE.exec(lines[end] ?? "")) {
        inside.push(match[1] as string);
        end += 1;
    }
    return [{ kind: "quote", blocks: blocks(inside, depth + 1) }, end];
}

function listAt(lines: string[], at: number, depth: number): [Block, number] {
    const [, indent = "", first = ""] = ITEM.exec(lines[at] as string) as RegExpExecArray;
    const ordered = /\d/.test(first);
    const items: string[][] = [];
    let end = at;
    while (end < lines.length) {
        const line = lines[end] as string;
        const item = ITEM.exec(line);
        const depthOf = /^ */.exec(line)?.[0].length ?? 0;
        const sibling = item && depthOf <= indent.length + 1;
        if (sibling && /\d/.test(item[2] as string) === ordered) {
            items.push([item[3] ?? ""]);
        } else if (!line.trim()) {
            // A blank line belongs to the list if an item or an indented line follows.
            const next = lines.slice(end + 1).find((one) => one.trim());
            const continues = next && (ITEM.test(next) || /^ {2,}/.test(next)) && !RULE.test(next);
            if (!continues) break;
            items.at(-1)?.push("");
        } else if (!sibling && (depthOf > indent.length || !interrupts(lines, end)) && !RULE.test(line)) {
            const content = indent.length + first.length + 1;
            items.at(-1)?.push(line.slice(Math.min(depthOf, content)));
        } else {
            break;
        }
        end += 1;
    }
    const start = ordered ? Number.parseInt(first, 10) : undefined;
    return [{ kind: "list", start, items: items.map((item) => blocks(item, depth + 1)) }, end];
}

function isTable(lines: string[], at: number): boolean {
    const [head, dashes] = [lines[at] ?? "", lines[at + 1] ?? ""];
    return head.includes("|") && dashes.includes("-") && DASHES.test(dashes) && cells(head).length === cells(dashes).length;
}

function tableAt(lines: string[], at: number): [Block, number] {
    const head = cells(lines[at] as string);
    const rows: string[][] = [];
    let end = at + 2;
    while (end < lines.length && (lines[end] as string).includes("|")) {
        const row = cells(lines[end] as string);
        rows.push(head.map((_, column) => row[column] ?? ""));
        end += 1;
    }
    return [{ kind: "table", head, rows }, end];
}

function cells(line: string): string[] {
    const inside = line.trim().replace(/^\|/, "").replace(/(?<!\\)\|$/, "");
    return inside.split(/(?<!\\)\|/).map((cell) => cell.trim().replaceAll("\\|", "|"));
}
