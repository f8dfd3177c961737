// Principal component analysis in two dimensions, by orthogonal iteration without the covariance matrix.

export interface Projection {
    /** Coordinates of each vector. */
    points: [number, number][];
    /** Share of the variance along each axis. */
    shares: [number, number];
}

const MOST_ITERATIONS = 200;
const TOLERANCE = 1e-9;

/** Projects vectors on their first two principal components. */
export function project(vectors: Float32Array[]): Projection {
    const [count, width] = [vectors.length, vectors[0]?.length ?? 0];
    const rows = centered(vectors, width);
    let total = 0;
    for (const row of rows) for (const value of row) total += value * value;
    if (count < 2 || total === 0) return { points: vectors.map(() => [0, 0]), shares: [0, 0] };

    let axes: [Float64Array, Float64Array] = orthonormal(start(width, 1), start(width, 2));
    let captured = 0;
    for (let iteration = 0; iteration < MOST_ITERATIONS; iteration++) {
        axes = orthonormal(...multiplied(rows, axes));
        const now = variance(rows, axes[0]) + variance(rows, axes[1]);
        if (now - captured <= TOLERANCE * total) break;
        captured = now;
    }
    // The larger variance is the first axis. A sign does not depend on the start.
    axes.sort((a, b) => variance(rows, b) - variance(rows, a));
    const signed = axes.map(withSign) as [Float64Array, Float64Array];
    return {
        points: rows.map((row) => [inner(row, signed[0]), inner(row, signed[1])]),
        shares: [variance(rows, signed[0]) / total, variance(rows, signed[1]) / total],
    };
}

function centered(vectors: Float32Array[], width: number): Float64Array[] {
    const mean = new Float64Array(width);
    for (const vector of vectors) vector.forEach((value, at) => (mean[at] = (mean[at] as number) + value / vectors.length));
    return vectors.map((vector) => Float64Array.from(vector, (value, at) => value - (mean[at] as number)));
}

/** A vector without structure, the same at every call. */
function start(width: number, seed: number): Float64Array {
    let state = seed * 0x9e3779b9;
    return Float64Array.from({ length: width }, () => {
        state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
        return state / 2 ** 32 - 0.5;
    });
}

/** The covariance matrix times both axes, up to a factor. */
function multiplied(rows: Float64Array[], [first, second]: [Float64Array, Float64Array]): [Float64Array, Float64Array] {
    const [a, b] = [new Float64Array(first.length), new Float64Array(first.length)];
    for (const row of rows) {
        const [along, across] = [inner(row, first), inner(row, second)];
        for (let at = 0; at < row.length; at++) {
            const value = row[at] as number;
            a[at] = (a[at] as number) + along * value;
            b[at] = (b[at] as number) + across * value;
        }
    }
    return [a, b];
}

function orthonormal(first: Float64Array, second: Float64Array): [Float64Array, Float64Array] {
    const a = unit(first);
    const along = inner(second, a);
    return [a, unit(second.map((value, at) => value - along * (a[at] as number)))];
}

function unit(vector: Float64Array): Float64Array {
    const norm = Math.sqrt(inner(vector, vector));
    return norm === 0 ? vector : vector.map((value) => value / norm);
}

function inner(a: Float64Array, b: Float64Array): number {
    let total = 0;
    for (let at = 0; at < a.length; at++) total += (a[at] as number) * (b[at] as number);
    return total;
}

function variance(rows: Float64Array[], axis: Float64Array): number {
    return rows.reduce((all, row) => all + inner(row, axis) ** 2, 0);
}

function withSign(axis: Float64Array): Float64Array {
    const largest = axis.reduce((most, value) => (Math.abs(value) > Math.abs(most) ? value : most), 0);
    return largest < 0 ? axis.map((value) => -value) : axis;
}
