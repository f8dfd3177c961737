// Small elements that pages share.
import type { ComponentChildren } from "preact";
import type { ListedModel } from "../server/models";

/** A refusal or failure: the message, and its hint as a line of its own. */
export function Problem({ message }: { message: string | undefined }) {
    if (!message) return null;
    const [what, ...hints] = message.split(/\n?hint: /);
    return (
        <div class="problem" role="alert">
            <p>{what}</p>
            {hints.map((hint) => (
                <p>
                    <strong>Hint:</strong> <HintText text={hint} />
                </p>
            ))}
        </div>
    );
}

/** Text with literals in backticks. */
export function HintText({ text }: { text: string }) {
    return <>{text.split("`").map((part, at) => (at % 2 === 1 ? <code>{part}</code> : part))}</>;
}

export function Field({ label, children, hint }: { label: string; children: ComponentChildren; hint?: string }) {
    return (
        <label class="field">
            <span>{label}</span>
            {children}
            {hint && <small>{hint}</small>}
        </label>
    );
}

interface ModelSelectProps {
    label: string;
    models: ListedModel[];
    value: string;
    onChange: (model: string) => void;
}

/** A choice of models. */
export function ModelSelect({ label, models, value, onChange }: ModelSelectProps) {
    return (
        <Field label={label}>
            <select value={value} onChange={(event) => onChange(event.currentTarget.value)}>
                {models.map(({ id, ready }) => (
                    <option key={id} value={id} selected={id === value}>
                        {ready ? id : `${id} (not loaded)`}
                    </option>
                ))}
            </select>
        </Field>
    );
}

/** The chosen model if it is still there, else the first. */
export function chosenOf(models: ListedModel[], chosen: string): string {
    return models.some(({ id }) => id === chosen) ? chosen : (models[0]?.id ?? "");
}

/** What to do where no model has the task of a page. */
export function NoModel({ task, example, known }: { task: string; example: string; known: boolean }) {
    if (!known) return <p class="empty">Asking the server for its models…</p>;
    return (
        <div class="empty">
            <p>No model of this server {task}.</p>
            <p>
                Start the server with one, such as <code>sconce serve {example}</code>, or add one on the page <a href="/#models">Models</a>.
            </p>
        </div>
    );
}

/** Tabs by the pattern of ARIA: arrow keys move, one tab is in the order of focus. */
export function Tabs<T extends string>({ label, tabs, value, onChange }: {
    label: string;
    tabs: [T, string][];
    value: T;
    onChange: (tab: T) => void;
}) {
    const move = (event: KeyboardEvent) => {
        const step = event.key === "ArrowRight" ? 1 : event.key === "ArrowLeft" ? -1 : 0;
        if (step === 0) return;
        const at = tabs.findIndex(([tab]) => tab === value);
        const [next] = tabs[(at + step + tabs.length) % tabs.length] as [T, string];
        onChange(next);
        (event.currentTarget as HTMLElement).querySelector<HTMLElement>(`[data-tab="${next}"]`)?.focus();
    };
    return (
        <div class="tabs" role="tablist" aria-label={label} onKeyDown={move}>
            {tabs.map(([tab, title]) => (
                <button
                    type="button"
                    role="tab"
                    data-tab={tab}
                    aria-selected={tab === value}
                    tabIndex={tab === value ? 0 : -1}
                    onClick={() => onChange(tab)}
                >
                    {title}
                </button>
            ))}
        </div>
    );
}
