// One turn of a conversation.
import { Markdown } from "../markdown/markdown";
import { CopyButton } from "../ui/copy-button";
import { number, seconds } from "../ui/format";
import { Problem } from "../ui/parts";
import type { Answer } from "./meter";

export interface TurnState {
    role: "user" | "assistant";
    content: string;
    state: "running" | "done" | "stopped" | "failed";
    answer?: Answer;
    error?: string;
}

export function Turn({ turn, onAgain }: { turn: TurnState; onAgain: (() => void) | undefined }) {
    const { role, content, state, answer, error } = turn;
    if (role === "user") {
        return (
            <article class="turn user" aria-label="You">
                <p>{content}</p>
            </article>
        );
    }
    return (
        <article class="turn assistant" aria-label="Model">
            {answer?.reasoning && (
                <details class="reasoning" open={!content}>
                    <summary>Reasoning</summary>
                    <Markdown text={answer.reasoning} />
                </details>
            )}
            {content && <Markdown text={content} />}
            {state === "running" && !content && !answer?.reasoning && <p class="waiting">Waiting for the first token…</p>}
            <Problem message={error} />
            <footer>
                {answer && <Stats answer={answer} state={state} />}
                {content && state !== "running" && <CopyButton text={content} label="Copy the answer" />}
                {onAgain && (
                    <button type="button" class="quiet" onClick={onAgain}>
                        Again
                    </button>
                )}
            </footer>
        </article>
    );
}

function Stats({ answer, state }: { answer: Answer; state: TurnState["state"] }) {
    const { tokens, counted, rate, firstToken, promptTokens, cachedTokens, finish } = answer;
    const parts = [
        rate !== undefined && `${number(rate)} tokens/s`,
        firstToken !== undefined && `first token after ${seconds(firstToken)}`,
        `${counted ? "" : "about "}${number(tokens)} tokens`,
        promptTokens !== undefined && `prompt ${number(promptTokens)}${cachedTokens ? `, ${number(cachedTokens)} cached` : ""}`,
        state === "stopped" && "stopped",
        finish === "length" && "ended by the token limit",
    ];
    return <span class="stats">{parts.filter(Boolean).join(" · ")}</span>;
}
