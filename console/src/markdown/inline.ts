// Text of Markdown within a block: code, emphasis, links.

export type Inline =
    | { kind: "text"; text: string }
    | { kind: "code"; text: string }
    | { kind: "strong" | "emphasis" | "deleted"; inside: Inline[] }
    | { kind: "link"; url: string; inside: Inline[] }
    | { kind: "break" };

/** Deeper emphasis is text. */
const MOST_NESTED = 6;
/** Longer text is not searched for the end of emphasis. */
const MOST_LENGTH = 4000;

const MARKS: [string, "strong" | "emphasis" | "deleted"][] = [
    ["**", "strong"],
    ["__", "strong"],
    ["~~", "deleted"],
    ["*", "emphasis"],
    ["_", "emphasis"],
];

/** Only these open a page; `javascript:` and the like are text. */
export function isSafeUrl(url: string): boolean {
    return /^(https?:\/\/|mailto:)[^\s]+$/i.test(url);
}

export function parseInline(text: string, depth = 0): Inline[] {
    const all: Inline[] = [];
    let plain = "";
    const flush = () => {
        if (plain) all.push({ kind: "text", text: plain });
        plain = "";
    };
    let at = 0;
    while (at < text.length) {
        const found = specialAt(text, at, depth);
        if (found) {
            flush();
            all.push(found[0]);
            at = found[1];
        } else if (text[at] === "\\" && /[!-/:-@[-`{-~]/.test(text[at + 1] ?? "")) {
            plain += text[at + 1];
            at += 2;
        } else {
            plain += text[at];
            at += 1;
        }
    }
    flush();
    return all;
}

/** The element that begins at a letter, and the place after it. */
function specialAt(text: string, at: number, depth: number): [Inline, number] | undefined {
    switch (text[at]) {
        case "\n":
            return [{ kind: "break" }, at + 1];
        case "`":
            return codeAt(text, at);
        case "[":
            return depth < MOST_NESTED ? linkAt(text, at, depth) : undefined;
        case "*":
        case "_":
        case "~":
            return depth < MOST_NESTED ? emphasisAt(text, at, depth) : undefined;
        case "h":
            return urlAt(text, at);
        default:
            return undefined;
    }
}

/** Code up to as many ticks as begin it. Ticks without an end are text. */
function codeAt(text: string, at: number): [Inline, number] {
    const begin = endOfTicks(text, at);
    const count = begin - at;
    for (let end = text.indexOf("`", begin); end >= 0; end = text.indexOf("`", endOfTicks(text, end))) {
        if (endOfTicks(text, end) - end !== count) continue;
        const inside = text.slice(begin, end).replaceAll("\n", " ");
        const trimmed = /^ .*\S.* $/.test(inside) ? inside.slice(1, -1) : inside;
        return [{ kind: "code", text: trimmed }, end + count];
    }
    return [{ kind: "text", text: text.slice(at, begin) }, begin];
}

function endOfTicks(text: string, at: number): number {
    let end = at;
    while (text[end] === "`") end += 1;
    return end;
}

function linkAt(text: string, at: number, depth: number): [Inline, number] | undefined {
    const match = /^\[([^\]\n]{0,300})\]\(\s*<?([^\s<>()]{1,2000})>?(?:\s+"[^"\n]{0,300}")?\s*\)/.exec(text.slice(at, at + 2700));
    const [whole = "", label = "", url = ""] = match ?? [];
    if (!match || !isSafeUrl(url)) return undefined;
    return [{ kind: "link", url, inside: parseInline(label || url, depth + 1) }, at + whole.length];
}

function urlAt(text: string, at: number): [Inline, number] | undefined {
    if (/\w/.test(text[at - 1] ?? "")) return undefined;
    const url = /^https?:\/\/[^\s<>"'`|]*[^\s<>"'`|.,:;!?)\]*_]/.exec(text.slice(at, at + 2000))?.[0];
    return url ? [{ kind: "link", url, inside: [{ kind: "text", text: url }] }, at + url.length] : undefined;
}

function emphasisAt(text: string, at: number, depth: number): [Inline, number] | undefined {
    const found = MARKS.find(([mark]) => text.startsWith(mark, at));
    if (!found) return undefined;
    const [mark, kind] = found;
    const begin = at + mark.length;
    // `a_b_c` is a name, `2 * 3 * 4` a product.
    const inWord = mark[0] === "_" && /\w/.test(text[at - 1] ?? "");
    if (inWord || !/\S/.test(text[begin] ?? "")) return undefined;
    const limit = Math.min(text.length, begin + MOST_LENGTH);
    for (let end = text.indexOf(mark, begin + 1); end >= 0 && end < limit; end = text.indexOf(mark, end + 1)) {
        const after = text[end + mark.length] ?? "";
        const closes = /\S/.test(text[end - 1] ?? "") && !(mark[0] === "_" && /\w/.test(after));
        // A single mark does not end at a double one.
        const single = mark.length === 1 && (after === mark || text[end - 1] === mark);
        if (closes && !single) {
            return [{ kind, inside: parseInline(text.slice(begin, end), depth + 1) }, end + mark.length];
        }
    }
    return undefined;
}
