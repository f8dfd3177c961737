// Metrics in the text format of Prometheus: parsing, rates and quantiles.

/** One value with its labels. */
export interface Series {
    labels: Record<string, string>;
    value: number;
}

/** The metrics of one answer, by name. */
export type Metrics = Map<string, Series[]>;

/** A cumulative histogram: upper bounds with the number of observations up to each, in ascending order. */
export type Histogram = { bound: number; count: number }[];

/** Parses the answer of `/metrics`. Comments and invalid lines are skipped. */
export function parseMetrics(text: string): Metrics {
    const metrics: Metrics = new Map();
    for (const line of text.split("\n")) {
        const match = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)/.exec(line);
        if (!match) continue;
        const [, name = "", labels = "", value = ""] = match;
        const series = { labels: parseLabels(labels), value: parseValue(value) };
        if (Number.isNaN(series.value)) continue;
        const known = metrics.get(name);
        if (known) known.push(series);
        else metrics.set(name, [series]);
    }
    return metrics;
}

function parseValue(text: string): number {
    return text === "+Inf" ? Infinity : text === "-Inf" ? -Infinity : Number(text);
}

function parseLabels(text: string): Record<string, string> {
    const labels: Record<string, string> = {};
    for (const [, name = "", value = ""] of text.matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)) {
        labels[name] = value.replace(/\\(.)/g, (_, letter) => (letter === "n" ? "\n" : letter));
    }
    return labels;
}

/** The sum of a metric over all series that have these labels. */
export function sum(metrics: Metrics, name: string, labels: Record<string, string> = {}): number {
    const wanted = Object.entries(labels);
    return (metrics.get(name) ?? [])
        .filter((series) => wanted.every(([label, value]) => series.labels[label] === value))
        .reduce((all, series) => all + series.value, 0);
}

/** The growth of a counter. The counters of a server that was restarted begin at zero. */
export function growth(before: Metrics, now: Metrics, name: string, labels: Record<string, string> = {}): number {
    return Math.max(0, sum(now, name, labels) - sum(before, name, labels));
}

/** The observations of a histogram between two answers, over all its series. */
export function observations(before: Metrics, now: Metrics, name: string): Histogram {
    const counts = (metrics: Metrics) => {
        const all = new Map<number, number>();
        for (const { labels, value } of metrics.get(`${name}_bucket`) ?? []) {
            const bound = parseValue(labels["le"] ?? "");
            all.set(bound, (all.get(bound) ?? 0) + value);
        }
        return all;
    };
    const earlier = counts(before);
    return [...counts(now)]
        .sort(([a], [b]) => a - b)
        .map(([bound, count]) => ({ bound, count: Math.max(0, count - (earlier.get(bound) ?? 0)) }));
}

/** Number of observations. */
export function total(histogram: Histogram): number {
    return histogram.at(-1)?.count ?? 0;
}

/** The quantile of a histogram, interpolated within its bucket as Prometheus does. None without observations. */
export function quantile(histogram: Histogram, share: number): number | undefined {
    const all = total(histogram);
    if (all === 0) return undefined;
    const rank = share * all;
    const at = histogram.findIndex(({ count }) => count >= rank);
    const bucket = histogram[at];
    if (!bucket) return undefined;
    const { bound: lower, count: below } = histogram[at - 1] ?? { bound: 0, count: 0 };
    // The last bucket has no upper bound.
    if (bucket.bound === Infinity) return lower;
    const inside = bucket.count - below;
    return inside === 0 ? bucket.bound : lower + (bucket.bound - lower) * ((rank - below) / inside);
}

/** The number of observations in each bucket, without empty ones at both ends. */
export function bars(histogram: Histogram): { bound: number; count: number }[] {
    const all = histogram.map(({ bound, count }, at) => ({ bound, count: count - (histogram[at - 1]?.count ?? 0) }));
    const used = all.map(({ count }) => count > 0);
    const first = used.indexOf(true);
    return first < 0 ? [] : all.slice(first, used.lastIndexOf(true) + 1);
}
