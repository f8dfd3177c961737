// `/docs`: all routes of the server, with a form to try each.
import { useEffect, useMemo, useState } from "preact/hooks";
import { apiKey, explain, json } from "../server/client";
import { connection } from "../server/models";
import { CopyButton } from "../ui/copy-button";
import { chosenOf, Field, HintText, ModelSelect, Problem } from "../ui/parts";
import { useStore } from "../ui/store";
import { curl, type Description, pretty, type Route, routesByTag } from "./description";

/** Characters of an answer that are shown. */
const MOST_SHOWN = 20_000;
const SHOWN_HEADERS = /^(x-sconce-|server-timing|retry-after|traceparent|content-type)/;

export function ApiPage({ active }: { active: boolean }) {
    const { models } = useStore(connection);
    const key = useStore(apiKey);
    const [description, setDescription] = useState<Description>();
    const [problem, setProblem] = useState<string>();
    const [chosen, setChosen] = useState("");
    const groups = useMemo(() => description && routesByTag(description), [description]);
    useEffect(() => {
        if (!active || description) return;
        json<Description>("/openapi.json").then(setDescription, (error) => setProblem(explain(error)));
    }, [active, description, key]);
    if (!description || !groups) return problem ? <Problem message={problem} /> : <p class="empty">Reading the description of the API…</p>;
    const several = models && models.length > 1;
    return (
        <>
            <p class="summary">
                {description.info.description}. Version {description.info.version}. The description is{" "}
                <a href="/openapi.json">openapi.json</a>.
            </p>
            {several && <ModelSelect label="Model of requests" models={models} value={chosenOf(models, chosen)} onChange={setChosen} />}
            {[...groups].map(([tag, routes]) => (
                <section key={tag} class="tag">
                    <h2>{tag}</h2>
                    {routes.map((route) => (
                        <RouteForm key={route.method + route.path} route={route} model={several ? chosenOf(models, chosen) : ""} />
                    ))}
                </section>
            ))}
        </>
    );
}

interface Outcome {
    good: boolean;
    status: string;
    command: string;
    answer: string;
}

function RouteForm({ route, model }: { route: Route; model: string }) {
    const { method, path, summary, details, parameters } = route;
    const [body, setBody] = useState(route.body);
    const [values, setValues] = useState<Record<string, string>>({});
    const [outcome, setOutcome] = useState<Outcome>();
    const [busy, setBusy] = useState(false);
    const run = async () => {
        if (path === "/v1/drain" && !confirm("This shuts the server down. Continue?")) return;
        setBusy(true);
        setOutcome(await tryRoute(route, body, values, model));
        setBusy(false);
    };
    return (
        <details class="card route">
            <summary>
                <span class="method">{method.toUpperCase()}</span> <code>{path}</code> <span class="about">{summary}</span>
            </summary>
            <form
                onSubmit={(event) => {
                    event.preventDefault();
                    void run();
                }}
            >
                {details && (
                    <p class="note">
                        <HintText text={details} />
                    </p>
                )}
                {parameters.map((name) => (
                    <Field key={name} label={name}>
                        <input value={values[name] ?? ""} onInput={(event) => setValues({ ...values, [name]: event.currentTarget.value })} />
                    </Field>
                ))}
                {body !== undefined && (
                    <Field label="Body">
                        <textarea rows={Math.min(14, body.split("\n").length + 1)} spellcheck={false} value={body} onInput={(event) => setBody(event.currentTarget.value)} />
                    </Field>
                )}
                <button type="submit" disabled={busy} aria-label={`Send ${method.toUpperCase()} ${path}`}>
                    Send
                </button>
            </form>
            {outcome && (
                <>
                    <p class={outcome.good ? "good" : "bad"} role="status">
                        {outcome.status}
                    </p>
                    <div class="command">
                        <pre tabIndex={0}>{outcome.command}</pre>
                        <CopyButton text={outcome.command} label="Copy the command" />
                    </div>
                    <pre tabIndex={0} aria-label="Answer">
                        {outcome.answer}
                    </pre>
                </>
            )}
        </details>
    );
}

/** Sends a request as typed. Every answer is shown, also a refusal. */
async function tryRoute(route: Route, body: string | undefined, values: Record<string, string>, model: string): Promise<Outcome> {
    const to = route.parameters.reduce((path, name) => path.replace(`{${name}}`, encodeURIComponent(values[name] ?? "")), route.path);
    const shown: Record<string, string> = model ? { "x-sconce-model": model } : {};
    const command = curl(route, to, { ...shown, ...(apiKey.get() ? { authorization: "Bearer …" } : {}) }, body);
    const started = performance.now();
    try {
        const response = await fetch(to, {
            method: route.method.toUpperCase(),
            headers: {
                ...shown,
                ...(apiKey.get() ? { authorization: `Bearer ${apiKey.get()}` } : {}),
                ...(body === undefined ? {} : { "content-type": "application/json" }),
            },
            ...(body === undefined ? {} : { body }),
        });
        const text = await response.text();
        const took = (performance.now() - started).toFixed(0);
        const headers = [...response.headers].filter(([name]) => SHOWN_HEADERS.test(name));
        const lines = headers.map(([name, value]) => `${name}: ${value}\n`).join("");
        const answer = pretty(text);
        return {
            good: response.ok,
            status: `${response.status} in ${took} ms, ${text.length} characters`,
            command,
            answer: `${lines}\n${answer.slice(0, MOST_SHOWN)}${answer.length > MOST_SHOWN ? "\n…" : ""}`,
        };
    } catch (error) {
        return { good: false, status: explain(error), command, answer: "" };
    }
}
