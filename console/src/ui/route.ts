// Pages and their addresses: `/docs` is the page of the API, all others are fragments of `/`.
import { Store } from "./store";

export const PAGES = ["chat", "embeddings", "models", "live", "api"] as const;
export type Page = (typeof PAGES)[number];

export const TITLES: Record<Page, string> = {
    chat: "Chat",
    embeddings: "Embeddings",
    models: "Models",
    live: "Live",
    api: "API",
};

export function addressOf(page: Page): string {
    return page === "api" ? "/docs" : `/#${page}`;
}

/** The page of an address. */
export function pageAt(path: string, fragment: string): Page {
    if (path.endsWith("/docs")) return "api";
    return PAGES.find((page) => `#${page}` === fragment) ?? "chat";
}

const current = () => pageAt(location.pathname, location.hash);

/** The page that is shown. */
export const page = new Store<Page>(current());

addEventListener("popstate", () => page.set(current()));
addEventListener("hashchange", () => page.set(current()));

/** Shows a page without loading it again: other pages keep their state. */
export function open(next: Page): void {
    if (next === page.get()) return;
    history.pushState(null, "", addressOf(next));
    page.set(next);
    // Screen readers and keyboards continue at the page.
    requestAnimationFrame(() => document.getElementById("main")?.focus({ preventScroll: true }));
    scrollTo(0, 0);
}
