import assert from "node:assert/strict";
import { test } from "node:test";
import { ceiling } from "../src/live/scale";
import { bars, growth, observations, parseMetrics, quantile, sum } from "../src/server/metrics";

test("lines of metrics are read", () => {
    const metrics = parseMetrics('# HELP a_total x\na_total{model="m \\"x\\" {1}, y",place="p"} 3.5\nvllm:b 2\nbroken\nc{le="+Inf"} +Inf\n');
    assert.deepEqual(metrics.get("a_total"), [{ labels: { model: 'm "x" {1}, y', place: "p" }, value: 3.5 }]);
    assert.equal(sum(metrics, "vllm:b"), 2);
    assert.equal(sum(metrics, "c"), Infinity);
    assert.equal(sum(metrics, "missing"), 0);
});

test("counters grow, and begin at zero after a restart", () => {
    const [before, now] = [parseMetrics('a{m="x"} 5\na{m="y"} 1'), parseMetrics('a{m="x"} 9\na{m="y"} 1')];
    assert.equal(growth(before, now, "a"), 4);
    assert.equal(growth(before, now, "a", { m: "y" }), 0);
    assert.equal(growth(now, before, "a"), 0);
});

test("quantiles are interpolated as Prometheus does", () => {
    const page = (...counts) => parseMetrics(counts.map((count, at) => `h_bucket{le="${["0.1", "0.2", "0.4", "+Inf"][at]}"} ${count}`).join("\n"));
    const histogram = observations(page(1, 1, 1, 1), page(11, 31, 41, 41), "h");
    assert.deepEqual(histogram.map(({ count }) => count), [10, 30, 40, 40]);
    assert.ok(Math.abs(quantile(histogram, 0.5) - 0.15) < 1e-12);
    assert.ok(Math.abs(quantile(histogram, 1) - 0.4) < 1e-12);
    assert.equal(quantile(observations(page(0, 0, 0, 0), page(0, 0, 0, 5), "h"), 0.5), 0.4, "the last bound is the most that is known");
    assert.equal(quantile(observations(page(1, 1, 1, 1), page(1, 1, 1, 1), "h"), 0.5), undefined);
    assert.deepEqual(bars(observations(page(0, 0, 0, 0), page(0, 3, 4, 4), "h")).map(({ bound, count }) => [bound, count]), [[0.2, 3], [0.4, 1]]);
});

test("an axis ends at a round number", () => {
    assert.deepEqual([0, 0.03, 1, 17, 50, 999].map(ceiling), [1, 0.05, 1, 20, 50, 1000]);
});
