// Chat with a model.
import { useEffect, useRef, useState } from "preact/hooks";
import { explain, isAbort } from "../server/client";
import { connection, modelsFor } from "../server/models";
import { useStored } from "../ui/hooks";
import { chosenOf, ModelSelect, NoModel } from "../ui/parts";
import { useStore } from "../ui/store";
import { chat, type Message } from "./conversation";
import type { Answer } from "./meter";
import { DEFAULT_SETTINGS, Settings, samplingOf } from "./sampling";
import { Turn, type TurnState } from "./turn";

export function ChatPage({ active }: { active: boolean }) {
    const { models } = useStore(connection);
    const usable = modelsFor(models, "generate");
    const [chosen, setChosen] = useState("");
    const [settings, setSettings] = useStored("sconce-chat-settings", DEFAULT_SETTINGS);
    const [turns, setTurns] = useState<TurnState[]>([]);
    const [draft, setDraft] = useState("");
    const running = useRef<AbortController | null>(null);
    const input = useRef<HTMLTextAreaElement>(null);
    const model = chosenOf(usable, chosen);
    const busy = turns.at(-1)?.state === "running";
    const log = useFollowing(turns);

    useEffect(() => {
        if (active) input.current?.focus({ preventScroll: true });
    }, [active, usable.length > 0]);

    /** Asks the model for the next answer to these turns. */
    const ask = async (before: TurnState[]) => {
        const controller = new AbortController();
        running.current = controller;
        let turn: TurnState = { role: "assistant", content: "", state: "running" };
        let frame = 0;
        const show = () => setTurns([...before, turn]);
        // Pieces arrive faster than a screen shows them.
        const showSoon = () => (frame ||= requestAnimationFrame(() => ((frame = 0), show())));
        const end = (state: TurnState["state"], error?: string) => {
            cancelAnimationFrame(frame);
            turn = { ...turn, state, ...(error ? { error } : {}) };
            show();
        };
        show();
        const update = (answer: Answer) => {
            turn = { ...turn, content: answer.content, answer };
            showSoon();
        };
        try {
            const messages = messagesOf(settings.system, before);
            await chat({ model, messages, sampling: samplingOf(settings), signal: controller.signal }, update);
            end("done");
        } catch (error) {
            if (isAbort(error)) end("stopped");
            else end("failed", explain(error));
        }
    };
    const submit = () => {
        const content = draft.trim();
        if (!content || busy || !model) return;
        setDraft("");
        void ask([...turns, { role: "user", content, state: "done" }]);
    };
    const stop = () => running.current?.abort();
    const again = () => {
        const before = turns.slice(0, turns.findLastIndex(({ role }) => role === "user") + 1);
        void ask(before);
    };
    const onKeyDown = (event: KeyboardEvent) => {
        // Enter also confirms a composed character.
        if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
        event.preventDefault();
        submit();
    };

    return (
        <div class="chat" onKeyDown={(event) => event.key === "Escape" && busy && stop()}>
            <div class="bar">
                {usable.length > 0 && <ModelSelect label="Model" models={usable} value={model} onChange={setChosen} />}
                <button type="button" class="quiet" disabled={turns.length === 0 || busy} onClick={() => setTurns([])}>
                    New chat
                </button>
            </div>
            <Settings value={settings} onChange={setSettings} />
            <div class="log" role="log" aria-label="Conversation" aria-busy={busy} tabIndex={0} ref={log}>
                {turns.map((turn, at) => (
                    <Turn key={at} turn={turn} onAgain={at === turns.length - 1 && !busy ? again : undefined} />
                ))}
                {turns.length === 0 && usable.length > 0 && <p class="empty">Nothing was said yet. Messages stay in this tab.</p>}
                {turns.length === 0 && usable.length === 0 && (
                    <NoModel task="generates text" example="SmolLM2-135M-Instruct.Q4_1.gguf" known={models !== undefined} />
                )}
            </div>
            <form
                class="composer"
                onSubmit={(event) => {
                    event.preventDefault();
                    submit();
                }}
            >
                <textarea
                    ref={input}
                    aria-label="Message"
                    placeholder="Message: Enter sends, Shift and Enter begin a line, Escape stops"
                    rows={Math.min(8, draft.split("\n").length + 1)}
                    value={draft}
                    disabled={usable.length === 0}
                    onInput={(event) => setDraft(event.currentTarget.value)}
                    onKeyDown={onKeyDown}
                />
                {busy ? (
                    <button type="button" onClick={stop}>
                        Stop
                    </button>
                ) : (
                    <button type="submit" disabled={!draft.trim() || !model}>
                        Send
                    </button>
                )}
            </form>
        </div>
    );
}

/** The messages of a request. Turns that failed before their first token are left out. */
function messagesOf(system: string, turns: TurnState[]): Message[] {
    const said = turns.filter(({ content }) => content).map(({ role, content }) => ({ role, content }));
    return system.trim() ? [{ role: "system", content: system }, ...said] : said;
}

/** Keeps the end of a list in view, unless the user has scrolled away from it. */
function useFollowing(turns: TurnState[]) {
    const log = useRef<HTMLDivElement>(null);
    const follows = useRef(true);
    useEffect(() => {
        const element = log.current;
        const watch = () => {
            if (element) follows.current = element.scrollHeight - element.scrollTop - element.clientHeight < 60;
        };
        element?.addEventListener("scroll", watch, { passive: true });
        return () => element?.removeEventListener("scroll", watch);
    }, []);
    useEffect(() => {
        if (turns.at(-1)?.role === "user") follows.current = true;
        if (follows.current && log.current) log.current.scrollTop = log.current.scrollHeight;
    }, [turns]);
    return log;
}
