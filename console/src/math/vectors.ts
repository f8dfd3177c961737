// Similarity of vectors.

/** Decodes little-endian floats in base64. */
export function decodeFloats(base64: string): Float32Array {
    const bytes = Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
    const view = new DataView(bytes.buffer);
    return Float32Array.from({ length: bytes.length >> 2 }, (_, at) => view.getFloat32(at * 4, true));
}

export function dot(a: Float32Array, b: Float32Array): number {
    let total = 0;
    for (let at = 0; at < a.length; at++) total += (a[at] as number) * (b[at] as number);
    return total;
}

/** A copy with the L2 norm 1. */
export function normalized(vector: Float32Array): Float32Array {
    const norm = Math.sqrt(dot(vector, vector)) || 1;
    return vector.map((value) => value / norm);
}

/** Cosine similarities of all pairs, row by row. */
export function similarities(vectors: Float32Array[]): Float32Array {
    const units = vectors.map(normalized);
    const count = units.length;
    const all = new Float32Array(count * count);
    units.forEach((row, i) => {
        for (let j = i; j < count; j++) {
            const cosine = dot(row, units[j] as Float32Array);
            all[i * count + j] = cosine;
            all[j * count + i] = cosine;
        }
    });
    return all;
}

export interface Pair {
    first: number;
    second: number;
    cosine: number;
}

/** The most similar pairs of different texts, best first. */
export function nearestPairs(matrix: Float32Array, count: number, most: number): Pair[] {
    let best: Pair[] = [];
    for (let first = 0; first < count; first++) {
        for (let second = first + 1; second < count; second++) {
            const cosine = matrix[first * count + second] as number;
            if (best.length === most && cosine <= (best.at(-1) as Pair).cosine) continue;
            best.push({ first, second, cosine });
            best = best.sort((a, b) => b.cosine - a.cosine).slice(0, most);
        }
    }
    return best;
}

/** Smallest and largest similarity of different texts. */
export function range(matrix: Float32Array, count: number): [number, number] {
    let [low, high] = [Infinity, -Infinity];
    for (let at = 0; at < matrix.length; at++) {
        if (at % (count + 1) === 0) continue;
        const value = matrix[at] as number;
        low = Math.min(low, value);
        high = Math.max(high, value);
    }
    return low < high ? [low, high] : [0, 1];
}
