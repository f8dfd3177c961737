// A map of texts: the first two principal components of their vectors.
import { useMemo, useState } from "preact/hooks";
import { project } from "../math/pca";
import { shortened } from "../ui/format";
import type { Embedded } from "./embed";

/** Side of the drawing in its own units. */
const SIDE = 1000;
const MARGIN = 30;
/** Colors of labels; further labels share the last one. */
const COLORS = 8;

export function MapView({ embedded }: { embedded: Embedded }) {
    const { texts, vectors } = embedded;
    const { points, shares } = useMemo(() => project(vectors), [vectors]);
    const places = useMemo(() => scaled(points), [points]);
    const labels = useMemo(() => [...new Set(texts.map(({ label }) => label))], [texts]);
    const [chosen, setChosen] = useState(0);
    const colorOf = (label: string) => `series-${(Math.max(0, labels.indexOf(label)) % COLORS) + 1}`;
    const radius = places.length > 500 ? 5 : places.length > 100 ? 7 : 10;

    const nearest = (event: PointerEvent) => {
        const box = (event.currentTarget as Element).getBoundingClientRect();
        const [x, y] = [((event.clientX - box.left) / box.width) * SIDE, ((event.clientY - box.top) / box.height) * SIDE];
        let [best, closest] = [chosen, Infinity];
        places.forEach(([left, top], at) => {
            const distance = (left - x) ** 2 + (top - y) ** 2;
            if (distance < closest) [best, closest] = [at, distance];
        });
        setChosen(best);
    };
    const move = (event: KeyboardEvent) => {
        const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
        if (!step) return;
        event.preventDefault();
        setChosen((chosen + step + places.length) % places.length);
    };
    const [left, top] = places[chosen] ?? [0, 0];
    return (
        <div class="heat-canvas">
            <div
                class="plot square"
                tabIndex={0}
                role="application"
                aria-label={`Map of ${texts.length} texts. Arrow keys choose a text.`}
                onPointerMove={nearest}
                onPointerDown={nearest}
                onKeyDown={move}
            >
                <svg viewBox={`0 0 ${SIDE} ${SIDE}`} aria-hidden="true">
                    <line class="axis" x1={MARGIN} x2={SIDE - MARGIN} y1={SIDE - MARGIN} y2={SIDE - MARGIN} />
                    <line class="axis" x1={MARGIN} x2={MARGIN} y1={MARGIN} y2={SIDE - MARGIN} />
                    <Points places={places} classes={texts.map(({ label }) => colorOf(label))} radius={radius} />
                    <circle class="chosen" cx={left} cy={top} r={radius + 7} />
                </svg>
            </div>
            <div class="readout" aria-live="polite">
                <p>
                    <strong>{chosen + 1}</strong> {texts[chosen]?.label && <em>{texts[chosen]?.label} </em>}
                    {shortened(texts[chosen]?.text ?? "", 300)}
                </p>
                <p class="note">
                    Principal components of the vectors: across {percent(shares[0])} of the variance, up {percent(shares[1])}. The
                    rest is not visible, so neighbors on the map need not be similar.
                </p>
                {labels.length > 1 && (
                    <ul class="legend">
                        {labels.slice(0, COLORS).map((label) => (
                            <li class={colorOf(label)}>{label || "no label"}</li>
                        ))}
                    </ul>
                )}
            </div>
        </div>
    );
}

/** All points; memoized because a move of the pointer changes none of them. */
function Points({ places, classes, radius }: { places: [number, number][]; classes: string[]; radius: number }) {
    const key = classes.join();
    return useMemo(
        () => (
            <g>
                {places.map(([x, y], at) => (
                    <circle class={`point ${classes[at]}`} cx={x.toFixed(1)} cy={y.toFixed(1)} r={radius} />
                ))}
            </g>
        ),
        [places, key, radius],
    );
}

const percent = (share: number) => `${(share * 100).toFixed(0)} %`;

/** Places within the drawing, at the same scale on both axes. */
function scaled(points: [number, number][]): [number, number][] {
    const extent = (axis: 0 | 1): [number, number] => {
        let [low, high] = [Infinity, -Infinity];
        for (const point of points) [low, high] = [Math.min(low, point[axis]), Math.max(high, point[axis])];
        return [low, high];
    };
    const [[left, right], [bottom, top]] = [extent(0), extent(1)];
    const inside = SIDE - 2 * MARGIN - 40;
    const factor = inside / (Math.max(right - left, top - bottom) || 1);
    const center = SIDE / 2;
    return points.map(([x, y]) => [
        center + (x - (left + right) / 2) * factor,
        center - (y - (bottom + top) / 2) * factor,
    ]);
}
