// The models of the server: memory, phases, plans; load and unload.
import { useState } from "preact/hooks";
import { explain, json, send } from "../server/client";
import { refreshModels } from "../server/models";
import type { ModelReport, Phase, Report } from "../server/report";
import { bytes, number, seconds } from "../ui/format";
import { usePolling } from "../ui/hooks";
import { Problem } from "../ui/parts";
import { LoadForm } from "./load-form";
import { MemoryBar } from "./memory-bar";
import { PlanTable } from "./plan-table";

export function ModelsPage({ active }: { active: boolean }) {
    const [report, setReport] = useState<Report>();
    const [phases, setPhases] = useState<Record<string, Phase>>({});
    const [problem, setProblem] = useState<string>();
    const refresh = async () => {
        try {
            const [reported, { models }] = await Promise.all([
                json<Report>("/v1/report"),
                // 503 until every model is loaded.
                json<{ models: Record<string, Phase> }>("/startupz", {}, [503]),
            ]);
            setReport(reported);
            setPhases(models);
            setProblem(undefined);
        } catch (error) {
            setProblem(explain(error));
        }
    };
    usePolling(refresh, 2000, active);
    const act = async (work: () => Promise<unknown>) => {
        try {
            await work();
            await Promise.all([refresh(), refreshModels()]);
        } catch (error) {
            setProblem(explain(error));
        }
    };
    return (
        <>
            <Problem message={problem} />
            {report && <MemoryBar memory={report.memory} models={report.models} />}
            <LoadForm onLoaded={() => void act(async () => undefined)} />
            {report?.models.map((model) => (
                <Model key={model.model} model={model} phase={phases[model.model]} act={(work) => void act(work)} />
            ))}
            {report?.models.length === 0 && <p class="empty">This server has no models yet.</p>}
            {!report && !problem && <p class="empty">Asking the server for its report…</p>}
        </>
    );
}

interface ModelProps {
    model: ModelReport;
    phase: Phase | undefined;
    act: (work: () => Promise<unknown>) => void;
}

function Model({ model, phase, act }: ModelProps) {
    const { model: name, serving, memory, plan } = model;
    const unload = () => {
        const question = `Unload ${name}? Requests in flight finish, and later ones do not find it.`;
        if (confirm(question)) act(() => send(`/v1/models/${pathOf(name)}`, { method: "DELETE" }));
    };
    // Any request for a model loads it; this one does not wait for it.
    const load = () => act(() => send("/info", { headers: { "x-sconce-model": name, prefer: "wait=0" } }, [503]));
    return (
        <article class="card model" aria-label={name}>
            <header>
                <h2>{name}</h2>
                <span class={`chip ${phase?.phase === "ready" ? "good" : phase?.phase === "failed" ? "bad" : ""}`}>
                    {phase?.phase.replaceAll("_", " ") ?? "unknown"}
                </span>
                {phase?.phase === "unloaded" && (
                    <button type="button" onClick={load} aria-label={`Load ${name}`}>
                        Load
                    </button>
                )}
                <button type="button" class="quiet" onClick={unload} aria-label={`Unload ${name}`}>
                    Unload
                </button>
            </header>
            {phase && phase.phase !== "ready" && <Progress reason={model.phase} phase={phase} />}
            {serving && (
                <dl class="facts">
                    <Fact name="Task" value={serving.task} />
                    <Fact name="Placement" value={serving.placement ?? "none"} />
                    <Fact name="Band" value={serving.band ?? "–"} />
                    <Fact name="Numerics class" value={serving.class ?? "–"} />
                    <Fact name="Tokens/s" value={number(serving.tokens_per_second)} />
                    <Fact name="One short text" value={seconds(serving.min_seconds)} />
                    <Fact name="Longest text" value={`${number(serving.max_length)} tokens`} />
                    <Fact name="Width" value={number(serving.width)} />
                    <Fact name="Memory" value={bytes(memory?.measured.resident)} />
                    <Fact name="Load time" value={seconds(memory?.load_seconds)} />
                </dl>
            )}
            {plan && (
                <details>
                    <summary>
                        Plan: {1 + plan.fallbacks.length - (plan.chosen ? 0 : 1)} placements work, {plan.refused.length} do not
                    </summary>
                    <PlanTable plan={plan} generates={serving?.task === "generate"} />
                </details>
            )}
        </article>
    );
}

/** A name in a path; ids of the hub have a slash. */
const pathOf = (name: string) => name.split("/").map(encodeURIComponent).join("/");

function Fact({ name, value }: { name: string; value: string }) {
    return (
        <div>
            <dt>{name}</dt>
            <dd>{value}</dd>
        </div>
    );
}

function Progress({ reason, phase }: { reason: string; phase: Phase }) {
    const done = phase.bytes ?? phase.cases;
    if (phase.phase === "failed") return <Problem message={reason} />;
    const isCounted = done !== undefined && Boolean(phase.of);
    const count = isCounted && phase.bytes !== undefined ? `: ${bytes(phase.bytes)} of ${bytes(phase.of)}` : "";
    const text = count ? `${phase.phase} ${phase.file}${count}` : reason;
    return (
        <p class="progress">
            <span>{text}</span>
            {isCounted && <progress aria-label={text} value={done} max={phase.of} />}
        </p>
    );
}
