// Samples of the server's metrics and report over time, and what follows from two of them.
import { json, send } from "../server/client";
import { bars, growth, type Histogram, type Metrics, observations, parseMetrics, quantile, sum, total } from "../server/metrics";
import type { Report } from "../server/report";

/** Samples that are kept: two minutes, one per second. */
const KEPT = 120;
/** Percentiles are of the requests of so many seconds. */
export const WINDOW = 10;

export interface Sample {
    /** Seconds. */
    at: number;
    metrics: Metrics;
    report: Report;
}

/** Takes a sample. */
export async function takeSample(): Promise<Sample> {
    const metrics = parseMetrics(await (await send("/metrics")).text());
    const at = performance.now() / 1000;
    return { at, metrics, report: await json<Report>("/v1/report") };
}

/** Appends a sample and drops the oldest. */
export function appended(samples: Sample[], sample: Sample): Sample[] {
    return [...samples, sample].slice(-KEPT);
}

/** The latest sample that is at least `seconds` older than the one at `at`, or the first. */
export function earlier(samples: Sample[], at: number, seconds: number): Sample | undefined {
    const now = samples[at];
    if (!now || at === 0) return undefined;
    const found = samples.slice(0, at).findLast((sample) => now.at - sample.at >= seconds - 0.05);
    return found ?? samples[0];
}

/** One value per sample; none where it is not known. */
export type Values = (number | undefined)[];

/** The rate of a counter per second, at each sample. */
export function rates(samples: Sample[], name: string, labels: Record<string, string> = {}): Values {
    return samples.map((now, at) => {
        const before = samples[at - 1];
        return before && growth(before.metrics, now.metrics, name, labels) / Math.max(0.001, now.at - before.at);
    });
}

/** A gauge at each sample. */
export function gauges(samples: Sample[], name: string, labels: Record<string, string> = {}): Values {
    return samples.map(({ metrics }) => (metrics.has(name) ? sum(metrics, name, labels) : undefined));
}

/** A quantile of a histogram at each sample, over the window before it. */
export function quantiles(samples: Sample[], name: string, share: number): Values {
    return samples.map((now, at) => {
        const before = earlier(samples, at, WINDOW);
        return before && quantile(observations(before.metrics, now.metrics, name), share);
    });
}

/** The observations of a histogram over all samples, or since the start of the server if there were none. */
export function distribution(samples: Sample[], name: string): { bars: Histogram; sinceStart: boolean } {
    const [first, last] = [samples[0], samples.at(-1)];
    if (!first || !last) return { bars: [], sinceStart: true };
    const recent = observations(first.metrics, last.metrics, name);
    const sinceStart = total(recent) === 0;
    return { bars: bars(sinceStart ? observations(new Map(), last.metrics, name) : recent), sinceStart };
}

export interface Incident {
    what: string;
    model: string;
    where: string;
    detail: string;
    count: number;
}

/** Counters of what went wrong since the start of the server, the most frequent first. */
export function incidents({ metrics }: Sample): Incident[] {
    const rows = (name: string, what: string, where: string[], detail: string): Incident[] =>
        (metrics.get(name) ?? []).map(({ labels, value }) => ({
            what,
            model: labels["model"] ?? "",
            where: where.map((label) => labels[label]).filter(Boolean).join(" → "),
            detail: labels[detail] ?? "",
            count: value,
        }));
    const all = [
        ...rows("sconce_guard_trips_total", "placement quarantined", ["placement"], "kind"),
        ...rows("sconce_downgrades_total", "placement downgraded", ["from", "to"], "reason"),
        ...rows("sconce_fallbacks_total", "batches replayed", ["placement"], ""),
        ...rows("sconce_batch_splits_total", "batches split", ["placement"], ""),
        ...rows("sconce_recoveries_total", "recovery attempts", ["placement"], "outcome"),
        ...rows("sconce_cancelled_total", "requests cancelled", [], ""),
        ...rows("te_request_failure", "requests refused", [], "err"),
    ];
    return all.filter(({ count }) => count > 0).sort((a, b) => b.count - a.count);
}
