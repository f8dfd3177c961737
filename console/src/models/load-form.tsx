// Adds a model of a source: what a load would take, and the load itself.
import { useState } from "preact/hooks";
import { explain, json, send } from "../server/client";
import type { Fit } from "../server/report";
import { bytes, number, seconds } from "../ui/format";
import { Field, Problem } from "../ui/parts";

export function LoadForm({ onLoaded }: { onLoaded: () => void }) {
    const [source, setSource] = useState("");
    const [name, setName] = useState("");
    const [fit, setFit] = useState<Fit>();
    const [problem, setProblem] = useState<string>();
    const [busy, setBusy] = useState(false);
    const attempt = async (work: () => Promise<void>) => {
        setBusy(true);
        setProblem(undefined);
        setFit(undefined);
        try {
            await work();
        } catch (error) {
            setProblem(explain(error));
        } finally {
            setBusy(false);
        }
    };
    const check = () => attempt(async () => setFit(await json<Fit>("/v1/fit", { body: { source: source.trim() } })));
    const load = () =>
        attempt(async () => {
            const body = { source: source.trim(), ...(name.trim() ? { name: name.trim() } : {}) };
            await send("/v1/models", { body });
            setSource("");
            setName("");
            onLoaded();
        });
    return (
        <details class="card">
            <summary>Add a model</summary>
            <form
                onSubmit={(event) => {
                    event.preventDefault();
                    void load();
                }}
            >
                <p class="note">
                    A folder or a GGUF file on the server, or an id on the hub, which is downloaded. The server must allow it with{" "}
                    <code>--model-sources</code>.
                </p>
                <div class="bar">
                    <Field label="Source">
                        <input
                            value={source}
                            placeholder="sentence-transformers/all-MiniLM-L6-v2"
                            spellcheck={false}
                            onInput={(event) => setSource(event.currentTarget.value)}
                        />
                    </Field>
                    <Field label="Name in requests">
                        <input value={name} placeholder="that of the source" spellcheck={false} onInput={(event) => setName(event.currentTarget.value)} />
                    </Field>
                    <button type="button" class="quiet" disabled={!source.trim() || busy} onClick={() => void check()}>
                        Check
                    </button>
                    <button type="submit" disabled={!source.trim() || busy}>
                        Load
                    </button>
                </div>
            </form>
            <Problem message={problem} />
            {fit && <FitResult fit={fit} />}
        </details>
    );
}

function FitResult({ fit }: { fit: Fit }) {
    const verdict = fit.loaded
        ? "It is loaded already."
        : fit.fits
          ? "It fits beside the loaded models."
          : fit.fits_alone
            ? "It fits once other models are unloaded."
            : "It does not fit in memory.";
    const facts = [
        `task ${fit.task}`,
        fit.placement && `placement ${fit.placement}`,
        fit.bytes && `${fit.proved ? "about" : "at most"} ${bytes(fit.bytes.peak)} while it loads, ${bytes(fit.bytes.resident)} then`,
        fit.free_bytes !== undefined && `${bytes(fit.free_bytes)} are free`,
        fit.tokens_per_second !== undefined && `${number(fit.tokens_per_second)} tokens/s`,
        fit.load_seconds !== undefined && `loads in ${seconds(fit.load_seconds)}`,
        !fit.proved && "this machine has proved no placement of it yet",
    ];
    const obstacles = fit.placements.filter(({ obstacle }) => obstacle);
    return (
        <div role="status">
            <p class={fit.fits ? "good" : "bad"}>{verdict}</p>
            <p>{facts.filter(Boolean).join(" · ")}</p>
            {obstacles.length > 0 && (
                <details>
                    <summary>{obstacles.length} placements have an obstacle</summary>
                    <ul>
                        {obstacles.map(({ placement, obstacle }) => (
                            <li>
                                <code>{placement}</code> {obstacle?.message}
                            </li>
                        ))}
                    </ul>
                </details>
            )}
        </div>
    );
}
