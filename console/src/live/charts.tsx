// Small charts: lines over time, and bars of a distribution.
import { useState } from "preact/hooks";
import type { Values } from "./samples";
import { ceiling } from "./scale";

export interface Line {
    name: string;
    values: Values;
}

interface LineChartProps {
    title: string;
    lines: Line[];
    /** Seconds of each sample. */
    times: number[];
    format: (value: number | undefined) => string;
    /** A fixed upper end of the axis, such as a limit. */
    most?: number | undefined;
}

const [WIDTH, HEIGHT] = [300, 90];
/** Seconds of the time axis. */
const SPAN = 120;

export function LineChart({ title, lines, times, format, most }: LineChartProps) {
    const [pointed, setPointed] = useState<number>();
    const last = times.at(-1) ?? 0;
    const top = Math.max(most ?? 0, ceiling(Math.max(0, ...lines.flatMap(({ values }) => values.map((value) => value ?? 0)))));
    const at = pointed !== undefined && pointed < times.length ? pointed : times.length - 1;
    const xOf = (time: number) => WIDTH - ((last - time) / SPAN) * WIDTH;
    const point = (event: PointerEvent) => {
        const box = (event.currentTarget as Element).getBoundingClientRect();
        const time = last - (1 - (event.clientX - box.left) / box.width) * SPAN;
        const distances = times.map((one) => Math.abs(one - time));
        setPointed(distances.indexOf(Math.min(...distances)));
    };
    const now = lines.map(({ name, values }) => `${name} ${format(values.at(-1))}`).join(", ");
    return (
        <figure class="chart">
            <figcaption>{title}</figcaption>
            <svg
                viewBox={`0 0 ${WIDTH} ${HEIGHT}`}
                preserveAspectRatio="none"
                role="img"
                aria-label={`${title} over two minutes. Now: ${now}. The axis ends at ${format(top)}.`}
                onPointerMove={point}
                onPointerLeave={() => setPointed(undefined)}
            >
                {[0.25, 0.5, 0.75].map((share) => (
                    <line class="gridline" x1={0} x2={WIDTH} y1={HEIGHT * share} y2={HEIGHT * share} />
                ))}
                {lines.map(({ name, values }, index) => (
                    <path key={name} class={`line series-${(index % 8) + 1}`} d={pathOf(values, times, xOf, top)} />
                ))}
                {pointed !== undefined && <line class="pointed" x1={xOf(times[at] ?? last)} x2={xOf(times[at] ?? last)} y1={0} y2={HEIGHT} />}
            </svg>
            <p class="ends" aria-hidden="true">
                <span>{format(top)} at the top</span>
                <span>{pointed === undefined ? "now" : `${Math.round(last - (times[at] ?? last))} s ago`}</span>
            </p>
            <ul class="legend">
                {lines.map(({ name, values }, index) => (
                    <li key={name} class={`series-${(index % 8) + 1}`}>
                        {name} <strong>{format(values[at])}</strong>
                    </li>
                ))}
            </ul>
        </figure>
    );
}

/** A path through the known values. A gap, or a pause of the samples, interrupts it. */
function pathOf(values: Values, times: number[], xOf: (time: number) => number, top: number): string {
    let path = "";
    let drawn: number | undefined;
    values.forEach((value, at) => {
        const time = times[at] ?? 0;
        if (value === undefined) {
            drawn = undefined;
            return;
        }
        const joined = drawn !== undefined && time - drawn < 5;
        path += `${joined ? "L" : "M"}${xOf(time).toFixed(1)} ${(HEIGHT - (value / top) * (HEIGHT - 2) - 1).toFixed(1)}`;
        drawn = time;
    });
    return path;
}

interface BarChartProps {
    title: string;
    note: string;
    bars: { label: string; count: number }[];
}

export function BarChart({ title, note, bars }: BarChartProps) {
    const most = Math.max(1, ...bars.map(({ count }) => count));
    return (
        <figure class="chart">
            <figcaption>{title}</figcaption>
            {bars.length === 0 && <p class="note">Nothing was measured yet.</p>}
            <ul class="bars">
                {bars.map(({ label, count }) => (
                    <li key={label}>
                        <span class="label">{label}</span>
                        <svg viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">
                            <rect class="series-1" width={(count / most) * 100} height={10} />
                        </svg>
                        <span class="number">{count.toLocaleString("en")}</span>
                    </li>
                ))}
            </ul>
            <p class="note">{note}</p>
        </figure>
    );
}
