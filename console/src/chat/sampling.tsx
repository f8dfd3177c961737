// The settings of a chat: system prompt and sampling parameters.
import { Field } from "../ui/parts";
import type { Sampling } from "./conversation";

export interface ChatSettings {
    system: string;
    /** What was typed, by the name of the parameter. Empty is the server's default. */
    parameters: Record<string, string>;
}

export const DEFAULT_SETTINGS: ChatSettings = { system: "", parameters: { temperature: "0.7" } };

interface Parameter {
    name: string;
    label: string;
    unset: string;
    min: number;
    max?: number;
    step: number;
}

const PARAMETERS: Parameter[] = [
    { name: "temperature", label: "Temperature", unset: "1", min: 0, max: 2, step: 0.1 },
    { name: "top_p", label: "Top p", unset: "1", min: 0.01, max: 1, step: 0.01 },
    { name: "top_k", label: "Top k", unset: "all", min: 1, step: 1 },
    { name: "min_p", label: "Min p", unset: "0", min: 0, max: 1, step: 0.01 },
    { name: "repetition_penalty", label: "Repetition penalty", unset: "1", min: 0.1, max: 2, step: 0.05 },
    { name: "max_tokens", label: "Max tokens", unset: "context", min: 1, step: 1 },
    { name: "seed", label: "Seed", unset: "random", min: 0, step: 1 },
];

/** The parameters that are set, as numbers. */
export function samplingOf({ parameters }: ChatSettings): Sampling {
    const set = PARAMETERS.map(({ name }) => [name, (parameters[name] ?? "").trim()] as const);
    return Object.fromEntries(set.filter(([, text]) => text !== "").map(([name, text]) => [name, Number(text)]));
}

export function Settings({ value, onChange }: { value: ChatSettings; onChange: (next: ChatSettings) => void }) {
    return (
        <details class="card settings">
            <summary>System prompt and sampling</summary>
            <Field label="System prompt">
                <textarea
                    rows={3}
                    value={value.system}
                    onInput={(event) => onChange({ ...value, system: event.currentTarget.value })}
                />
            </Field>
            <div class="grid">
                {PARAMETERS.map(({ name, label, unset, min, max, step }) => (
                    <Field key={name} label={label}>
                        <input
                            type="number"
                            inputMode="decimal"
                            {...{ min, max, step }}
                            placeholder={unset}
                            value={value.parameters[name] ?? ""}
                            onInput={(event) => {
                                const parameters = { ...value.parameters, [name]: event.currentTarget.value };
                                onChange({ ...value, parameters });
                            }}
                        />
                    </Field>
                ))}
            </div>
        </details>
    );
}
