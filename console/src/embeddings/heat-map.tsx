// A heat map of the cosine similarities of all pairs: a table of few texts, a canvas of many.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { heat, inkOn } from "../math/colors";
import { project } from "../math/pca";
import { nearestPairs, range, similarities } from "../math/vectors";
import { shortened } from "../ui/format";
import type { Embedded } from "./embed";
import type { LabeledText } from "./texts";

/** More texts are drawn on a canvas. */
const MOST_IN_TABLE = 20;
/** More texts are left out: a pair would have less than a pixel. */
const MOST_IN_MAP = 1000;
const PAIRS = 10;

interface Shown {
    texts: LabeledText[];
    matrix: Float32Array;
    low: number;
    high: number;
}

export function HeatMap({ embedded }: { embedded: Embedded }) {
    const [sorted, setSorted] = useState(false);
    const shown = useMemo<Shown>(() => {
        const order = orderOf(embedded, sorted);
        const matrix = similarities(order.map((at) => embedded.vectors[at] as Float32Array));
        const [low, high] = range(matrix, order.length);
        return { texts: order.map((at) => embedded.texts[at] as LabeledText), matrix, low, high };
    }, [embedded, sorted]);
    const left = embedded.texts.length - shown.texts.length;
    return (
        <>
            <div class="bar">
                <label class="check">
                    <input type="checkbox" checked={sorted} onChange={(event) => setSorted(event.currentTarget.checked)} />
                    Similar texts next to each other
                </label>
                <Scale low={shown.low} high={shown.high} />
            </div>
            {left > 0 && <p class="note">The first {MOST_IN_MAP} texts; {left} are left out.</p>}
            {shown.texts.length <= MOST_IN_TABLE ? <HeatTable {...shown} /> : <HeatCanvas {...shown} />}
            <NearestPairs {...shown} />
        </>
    );
}

/** Texts as pasted, or along their first principal component. */
function orderOf({ vectors }: Embedded, sorted: boolean): number[] {
    const order = vectors.map((_, at) => at).slice(0, MOST_IN_MAP);
    if (!sorted) return order;
    const { points } = project(order.map((at) => vectors[at] as Float32Array));
    return order.sort((a, b) => (points[a]?.[0] ?? 0) - (points[b]?.[0] ?? 0));
}

function Scale({ low, high }: { low: number; high: number }) {
    const stops = [0, 0.2, 0.4, 0.6, 0.8, 1].map((at) => `rgb(${heat(at).join(" ")})`);
    return (
        <span class="scale">
            {low.toFixed(2)}
            <span class="ramp" aria-hidden="true" style={{ background: `linear-gradient(to right, ${stops.join(", ")})` }} />
            {high.toFixed(2)} cosine
        </span>
    );
}

function HeatTable({ texts, matrix, low, high }: Shown) {
    const cell = (row: number, column: number) => {
        const cosine = matrix[row * texts.length + column] as number;
        const value = row === column ? 1 : (cosine - low) / (high - low);
        const style = { background: `rgb(${heat(value).join(" ")})`, color: inkOn(value) };
        return <td style={style}>{cosine.toFixed(2)}</td>;
    };
    return (
        <div class="scroll" tabIndex={0} role="group" aria-label="Similarity heat map">
            <table class="heat">
                <thead>
                    <tr>
                        <td />
                        {texts.map((_, at) => <th scope="col">{at + 1}</th>)}
                    </tr>
                </thead>
                <tbody>
                    {texts.map(({ text }, row) => (
                        <tr>
                            <th scope="row" title={text}>
                                {row + 1} {shortened(text, 40)}
                            </th>
                            {texts.map((_, column) => cell(row, column))}
                        </tr>
                    ))}
                </tbody>
            </table>
        </div>
    );
}

function HeatCanvas({ texts, matrix, low, high }: Shown) {
    const canvas = useRef<HTMLCanvasElement>(null);
    const [[row, column], setCursor] = useState<[number, number]>([0, 0]);
    const count = texts.length;
    useEffect(() => {
        const context = canvas.current?.getContext("2d");
        if (!context) return;
        const image = context.createImageData(count, count);
        for (let at = 0; at < matrix.length; at++) {
            const value = at % (count + 1) === 0 ? 1 : ((matrix[at] as number) - low) / (high - low);
            image.data.set([...heat(value), 255], at * 4);
        }
        context.putImageData(image, 0, 0);
    }, [matrix, count, low, high]);
    const point = (event: PointerEvent) => {
        const box = (event.currentTarget as Element).getBoundingClientRect();
        const at = (place: number, length: number) => Math.min(count - 1, Math.max(0, Math.floor((place / length) * count)));
        setCursor([at(event.clientY - box.top, box.height), at(event.clientX - box.left, box.width)]);
    };
    const move = (event: KeyboardEvent) => {
        const steps: Record<string, [number, number]> = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
        const step = steps[event.key];
        if (!step) return;
        event.preventDefault();
        const by = event.shiftKey ? 10 : 1;
        const within = (place: number) => Math.min(count - 1, Math.max(0, place));
        setCursor([within(row + step[0] * by), within(column + step[1] * by)]);
    };
    const place = (at: number) => `${((at + 0.5) / count) * 100}%`;
    return (
        <div class="heat-canvas">
            <div
                class="plot square"
                tabIndex={0}
                role="application"
                aria-label={`Similarity heat map of ${count} texts. Arrow keys choose a pair.`}
                onPointerMove={point}
                onPointerDown={point}
                onKeyDown={move}
            >
                <canvas ref={canvas} width={count} height={count} />
                <span class="cursor" aria-hidden="true" style={{ left: place(column), top: place(row) }} />
            </div>
            <div class="readout" aria-live="polite">
                <p class="value">{(matrix[row * count + column] as number).toFixed(3)}</p>
                <p>
                    <strong>{row + 1}</strong> {shortened(texts[row]?.text ?? "", 240)}
                </p>
                <p>
                    <strong>{column + 1}</strong> {shortened(texts[column]?.text ?? "", 240)}
                </p>
            </div>
        </div>
    );
}

function NearestPairs({ texts, matrix }: Shown) {
    const pairs = useMemo(() => nearestPairs(matrix, texts.length, PAIRS), [matrix, texts]);
    if (pairs.length === 0) return null;
    return (
        <div class="scroll" tabIndex={0} role="group" aria-label="Most similar pairs">
            <table>
                <caption>Most similar pairs</caption>
                <thead>
                    <tr>
                        <th scope="col" class="number">Cosine</th>
                        <th scope="col">Text</th>
                        <th scope="col">Text</th>
                    </tr>
                </thead>
                <tbody>
                    {pairs.map(({ first, second, cosine }) => (
                        <tr>
                            <td class="number">{cosine.toFixed(3)}</td>
                            <td>{shortened(texts[first]?.text ?? "", 80)}</td>
                            <td>{shortened(texts[second]?.text ?? "", 80)}</td>
                        </tr>
                    ))}
                </tbody>
            </table>
        </div>
    );
}
