// Markdown as elements. Text never becomes HTML, and images are not loaded.
import type { ComponentChildren, JSX } from "preact";
import { useMemo } from "preact/hooks";
import { CopyButton } from "../ui/copy-button";
import { type Block, parseBlocks } from "./blocks";
import { type Inline, parseInline } from "./inline";

export function Markdown({ text }: { text: string }) {
    const blocks = useMemo(() => parseBlocks(text), [text]);
    return <div class="markdown">{blocks.map(renderBlock)}</div>;
}

function renderBlock(block: Block): ComponentChildren {
    switch (block.kind) {
        case "code":
            return <CodeBlock language={block.language} text={block.text} />;
        case "heading": {
            // Below the headings of the page.
            const Heading = `h${Math.min(6, block.level + 2)}` as keyof JSX.IntrinsicElements & "h3";
            return <Heading>{renderText(block.text)}</Heading>;
        }
        case "paragraph":
            return <p>{renderText(block.text)}</p>;
        case "quote":
            return <blockquote>{block.blocks.map(renderBlock)}</blockquote>;
        case "list": {
            const items = block.items.map((item) => <li>{renderItem(item)}</li>);
            return block.start === undefined ? <ul>{items}</ul> : <ol start={block.start}>{items}</ol>;
        }
        case "table":
            return <Table head={block.head} rows={block.rows} />;
        case "rule":
            return <hr />;
    }
}

/** A list item; one paragraph alone has no margins. */
function renderItem(blocks: Block[]): ComponentChildren {
    const [first, ...rest] = blocks;
    return first?.kind === "paragraph" ? [renderText(first.text), ...rest.map(renderBlock)] : blocks.map(renderBlock);
}

function Table({ head, rows }: { head: string[]; rows: string[][] }) {
    return (
        <div class="scroll" tabIndex={0} role="group" aria-label="Table">
            <table>
                <thead>
                    <tr>{head.map((cell) => <th scope="col">{renderText(cell)}</th>)}</tr>
                </thead>
                <tbody>
                    {rows.map((row) => (
                        <tr>{row.map((cell) => <td>{renderText(cell)}</td>)}</tr>
                    ))}
                </tbody>
            </table>
        </div>
    );
}

function CodeBlock({ language, text }: { language: string; text: string }) {
    return (
        <figure class="code">
            <figcaption>
                <span>{language || "text"}</span>
                <CopyButton text={text} label="Copy code" />
            </figcaption>
            <pre tabIndex={0}>
                <code>{text}</code>
            </pre>
        </figure>
    );
}

function renderText(text: string): ComponentChildren {
    return parseInline(text).map(renderInline);
}

function renderInline(inline: Inline): ComponentChildren {
    switch (inline.kind) {
        case "text":
            return inline.text;
        case "code":
            return <code>{inline.text}</code>;
        case "break":
            return <br />;
        case "link":
            return (
                <a href={inline.url} target="_blank" rel="noopener noreferrer">
                    {inline.inside.map(renderInline)}
                </a>
            );
        case "strong":
            return <strong>{inline.inside.map(renderInline)}</strong>;
        case "emphasis":
            return <em>{inline.inside.map(renderInline)}</em>;
        case "deleted":
            return <del>{inline.inside.map(renderInline)}</del>;
    }
}
