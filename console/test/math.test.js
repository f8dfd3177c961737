import assert from "node:assert/strict";
import { test } from "node:test";
import { heat } from "../src/math/colors";
import { project } from "../src/math/pca";
import { decodeFloats, nearestPairs, normalized, range, similarities } from "../src/math/vectors";

const close = (a, b, tolerance = 1e-6) => assert.ok(Math.abs(a - b) <= tolerance, `${a} is not ${b}`);

test("base64 holds little-endian floats", () => {
    const [one, two, three] = decodeFloats("AACAPwAAIMBvEoM6");
    assert.deepEqual([one, two], [1, -2.5]);
    close(three, 1e-3, 1e-9);
});

test("similarities are cosines of all pairs", () => {
    const vectors = [[1, 0], [2, 2], [0, -3]].map((vector) => Float32Array.from(vector));
    const matrix = similarities(vectors);
    [[0, 0, 1], [0, 1, Math.SQRT1_2], [1, 2, -Math.SQRT1_2], [0, 2, 0]].forEach(([i, j, cosine]) => {
        close(matrix[i * 3 + j], cosine);
        close(matrix[j * 3 + i], cosine);
    });
    const [low, high] = range(matrix, 3);
    close(low, -Math.SQRT1_2);
    close(high, Math.SQRT1_2);
    assert.deepEqual(nearestPairs(matrix, 3, 2).map(({ first, second }) => [first, second]), [[0, 1], [0, 2]]);
    close(normalized(Float32Array.of(3, 4))[0], 0.6);
});

test("a projection finds the axes of the largest variance, and the same ones every time", () => {
    // Points on a plane in five dimensions: wide along (e1 + e2), narrow along e4, an offset in all.
    const random = (() => { let state = 7; return () => ((state = (state * 16807) % 2147483647) / 2147483647 - 0.5); })();
    const truth = Array.from({ length: 300 }, () => [random() * 10, random() * 3]);
    const vectors = truth.map(([a, b]) => Float32Array.of(4 + a * Math.SQRT1_2, a * Math.SQRT1_2 - 2, 7, b, 1));
    const { points, shares } = project(vectors);
    close(shares[0] + shares[1], 1, 1e-5);
    assert.ok(shares[0] > 0.85 && shares[1] < 0.15, String(shares));
    const mean = truth.reduce((all, [a]) => all + a, 0) / truth.length;
    truth.forEach(([a], at) => close(points[at][0], a - mean, 0.1));
    assert.deepEqual(project(vectors), { points, shares });
});

test("vectors without variance project to one place", () => {
    const same = [1, 2, 3].map(() => Float32Array.of(1, 2));
    assert.deepEqual(project(same).points, [[0, 0], [0, 0], [0, 0]]);
    assert.deepEqual(project([]).points, []);
});

test("two thousand vectors are projected within seconds", () => {
    let state = 1;
    const vectors = Array.from({ length: 2000 }, () => Float32Array.from({ length: 384 }, () => (state = (state * 16807) % 2147483647) / 2147483647));
    const started = performance.now();
    assert.equal(project(vectors).points.length, 2000);
    assert.ok(performance.now() - started < 60_000);
});

test("the color scale grows in lightness", () => {
    const lightness = [0, 0.2, 0.4, 0.6, 0.8, 1].map((value) => heat(value).reduce((all, channel, at) => all + channel * [0.3, 0.6, 0.1][at], 0));
    assert.deepEqual([...lightness].sort((a, b) => a - b), lightness);
    assert.deepEqual([heat(-1), heat(2)], [heat(0), heat(1)]);
});
