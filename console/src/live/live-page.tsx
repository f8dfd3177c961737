// What the server does now: throughput, queue, latency, batches, incidents.
import { useState } from "preact/hooks";
import { explain } from "../server/client";
import { bytes, number, seconds } from "../ui/format";
import { usePolling } from "../ui/hooks";
import { Problem } from "../ui/parts";
import { BarChart, type Line, LineChart } from "./charts";
import { appended, distribution, gauges, incidents, quantiles, rates, type Sample, takeSample, type Values, WINDOW } from "./samples";

export function LivePage({ active }: { active: boolean }) {
    const [samples, setSamples] = useState<Sample[]>([]);
    const [problem, setProblem] = useState<string>();
    const sample = async () => {
        try {
            const taken = await takeSample();
            setSamples((before) => appended(before, taken));
            setProblem(undefined);
        } catch (error) {
            setProblem(explain(error));
        }
    };
    usePolling(sample, 1000, active);
    const last = samples.at(-1);
    if (!last) return problem ? <Problem message={problem} /> : <p class="empty">Reading metrics…</p>;
    return (
        <>
            <Problem message={problem} />
            <Numbers samples={samples} last={last} />
            <Charts samples={samples} last={last} />
            <Incidents last={last} />
        </>
    );
}

const latest = (values: Values) => values.at(-1);

function Numbers({ samples, last }: { samples: Sample[]; last: Sample }) {
    const queued = last.report.models.reduce((all, { serving }) => all + (serving?.queued_tokens ?? 0), 0);
    const shown = [
        ["Requests/s", number(latest(rates(samples, "te_request_success")))],
        ["Tokens/s", number(latest(rates(samples, "sconce_tokens_computed_total")))],
        ["Queued tokens", number(queued)],
        ["p95 latency", seconds(latest(quantiles(samples, "te_request_duration", 0.95)))],
        ["State", last.report.state],
    ];
    return (
        <dl class="numbers">
            {shown.map(([name, value]) => (
                <div key={name}>
                    <dt>{name}</dt>
                    <dd>{value}</dd>
                </div>
            ))}
        </dl>
    );
}

/** p50, p95 and p99 of a histogram. */
function percentiles(samples: Sample[], name: string): Line[] {
    return [0.5, 0.95, 0.99].map((share) => ({ name: `p${share * 100}`, values: quantiles(samples, name, share) }));
}

function Charts({ samples, last }: { samples: Sample[]; last: Sample }) {
    const times = samples.map(({ at }) => at);
    const models = last.report.models.map(({ model }) => model);
    const tokens = models.map((model) => ({ name: model, values: rates(samples, "sconce_tokens_computed_total", { model }) }));
    const queue = models.map((model) => ({ name: model, values: gauges(samples, "sconce_queue_tokens", { model }) }));
    const sizes = distribution(samples, "te_batch_next_size");
    const generates = last.report.models.some(({ serving }) => serving?.task === "generate");
    const memory: Line[] = [
        { name: "process", values: gauges(samples, "sconce_process_bytes", { kind: "resident" }) },
        { name: "provers", values: gauges(samples, "sconce_process_bytes", { kind: "provers" }) },
    ];
    return (
        <div class="charts">
            <LineChart title="Throughput, tokens/s" lines={tokens} times={times} format={number} />
            <LineChart
                title="Requests/s"
                lines={[
                    { name: "answered", values: rates(samples, "te_request_success") },
                    { name: "refused", values: rates(samples, "te_request_failure") },
                ]}
                times={times}
                format={number}
            />
            <LineChart title={`Latency of requests, last ${WINDOW} s`} lines={percentiles(samples, "te_request_duration")} times={times} format={seconds} />
            <LineChart title="Queue, tokens" lines={queue} times={times} format={number} />
            {generates && (
                <>
                    <LineChart title={`Time to first token, last ${WINDOW} s`} lines={percentiles(samples, "vllm:time_to_first_token_seconds")} times={times} format={seconds} />
                    <LineChart title={`Time between tokens, last ${WINDOW} s`} lines={percentiles(samples, "vllm:inter_token_latency_seconds")} times={times} format={seconds} />
                    <LineChart
                        title="Generations"
                        lines={[
                            { name: "running", values: gauges(samples, "vllm:num_requests_running") },
                            { name: "waiting", values: gauges(samples, "vllm:num_requests_waiting") },
                        ]}
                        times={times}
                        format={number}
                    />
                </>
            )}
            <BarChart
                title="Texts per batch"
                note={sizes.sinceStart ? "Batches since the start of the server, by upper bound." : "Batches while this page was open, by upper bound."}
                bars={sizes.bars.map(({ bound, count }) => ({ label: bound === Infinity ? "more" : `≤ ${number(bound)}`, count }))}
            />
            <LineChart title="Memory" lines={memory} times={times} format={bytes} most={last.report.memory.limit ?? undefined} />
        </div>
    );
}

function Incidents({ last }: { last: Sample }) {
    const rows = incidents(last);
    if (rows.length === 0) return <p class="summary">No incidents since the start of the server.</p>;
    return (
        <div class="card scroll" tabIndex={0} role="group" aria-label="Incidents">
            <table>
                <caption>Incidents since the start of the server</caption>
                <thead>
                    <tr>
                        {["What", "Model", "Placement", "Code"].map((name) => (
                            <th scope="col">{name}</th>
                        ))}
                        <th scope="col" class="number">
                            Count
                        </th>
                    </tr>
                </thead>
                <tbody>
                    {rows.map(({ what, model, where, detail, count }) => (
                        <tr>
                            <td>{what}</td>
                            <td>{model}</td>
                            <td>{where}</td>
                            <td>{detail}</td>
                            <td class="number">{number(count)}</td>
                        </tr>
                    ))}
                </tbody>
            </table>
        </div>
    );
}
