// The frame of the console: navigation, API key, theme, and the pages.
import type { ComponentType } from "preact";
import { useEffect, useState } from "preact/hooks";
import { ApiPage } from "./api/api-page";
import { ChatPage } from "./chat/chat-page";
import { EmbeddingsPage } from "./embeddings/embeddings-page";
import { LivePage } from "./live/live-page";
import { ModelsPage } from "./models/models-page";
import { apiKey, keyProblem } from "./server/client";
import { connection, refreshModels } from "./server/models";
import { Field } from "./ui/parts";
import { usePolling } from "./ui/hooks";
import { addressOf, open, PAGES, type Page, page, TITLES } from "./ui/route";
import { useStore } from "./ui/store";
import { THEMES, type Theme, theme } from "./ui/theme";

const COMPONENTS: Record<Page, ComponentType<{ active: boolean }>> = {
    chat: ChatPage,
    embeddings: EmbeddingsPage,
    models: ModelsPage,
    live: LivePage,
    api: ApiPage,
};

export function App() {
    const shown = useStore(page);
    const problem = useStore(keyProblem);
    // A page that was opened stays, so that a chat goes on while another page is shown.
    const [opened, setOpened] = useState<Page[]>([shown]);
    if (!opened.includes(shown)) setOpened([...opened, shown]);
    useEffect(() => {
        document.title = `${TITLES[shown]} · sconce`;
    }, [shown]);
    usePolling(refreshModels, 5000);
    return (
        <>
            <a class="skip" href="#main" onClick={skip}>
                Skip to the page
            </a>
            <header class="top">
                <h1>sconce</h1>
                <Navigation shown={shown} />
                <div class="status">
                    <ConnectionStatus />
                    <ThemeSelect />
                </div>
            </header>
            <main id="main" tabIndex={-1}>
                {problem ? <KeyForm problem={problem} /> : <ForgetKey />}
                {opened.map((name) => {
                    const Shown = COMPONENTS[name];
                    return (
                        <section key={name} aria-label={TITLES[name]} hidden={name !== shown || Boolean(problem)}>
                            <Shown active={name === shown} />
                        </section>
                    );
                })}
            </main>
        </>
    );
}

/** The fragment of the address names a page, so that the link moves the focus itself. */
function skip(event: Event): void {
    event.preventDefault();
    document.getElementById("main")?.focus();
}

function Navigation({ shown }: { shown: Page }) {
    const follow = (event: MouseEvent, name: Page) => {
        // Other clicks open a tab or a window.
        if (event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
        event.preventDefault();
        open(name);
    };
    return (
        <nav aria-label="Pages">
            {PAGES.map((name) => (
                <a
                    key={name}
                    href={addressOf(name)}
                    aria-current={name === shown ? "page" : undefined}
                    onClick={(event) => follow(event, name)}
                >
                    {TITLES[name]}
                </a>
            ))}
        </nav>
    );
}

function ConnectionStatus() {
    const { models, problem } = useStore(connection);
    const needsKey = Boolean(useStore(keyProblem));
    const ready = models?.filter((model) => model.ready).length ?? 0;
    const text = needsKey ? "API key needed" : problem ? "no answer" : models ? `${ready} of ${models.length} models loaded` : "connecting";
    const mood = problem ? "bad" : models && ready === models.length ? "good" : "";
    return (
        <span class={`chip ${mood}`} role="status" title={problem}>
            {text}
        </span>
    );
}

function ThemeSelect() {
    const chosen = useStore(theme);
    return (
        <select aria-label="Theme" value={chosen} onChange={(event) => theme.set(event.currentTarget.value as Theme)}>
            {THEMES.map((name) => (
                <option value={name} selected={name === chosen}>
                    {name}
                </option>
            ))}
        </select>
    );
}

/** Asks for the API key, once the server did. */
function KeyForm({ problem }: { problem: string }) {
    const [typed, setTyped] = useState("");
    const submit = (event: Event) => {
        event.preventDefault();
        apiKey.set(typed.trim());
        void refreshModels();
    };
    return (
        <form class="card key" onSubmit={submit}>
            <p role="alert">{problem}</p>
            <Field label="API key" hint="Kept in this tab until it is closed, and sent to this server only.">
                <input
                    type="password"
                    autocomplete="off"
                    value={typed}
                    onInput={(event) => setTyped(event.currentTarget.value)}
                />
            </Field>
            <button type="submit" disabled={!typed.trim()}>
                Use the key
            </button>
        </form>
    );
}

function ForgetKey() {
    const key = useStore(apiKey);
    if (!key) return null;
    const forget = () => {
        apiKey.set("");
        void refreshModels();
    };
    return (
        <p class="forget">
            Requests carry the API key of this tab.{" "}
            <button type="button" class="quiet" onClick={forget}>
                Forget it
            </button>
        </p>
    );
}
