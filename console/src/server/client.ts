// Requests to the server of this page, with the API key of the session.
import { Store } from "../ui/store";
import { errorMessage } from "./error-message";

const STORED_KEY = "sconce-api-key";

/** The API key, kept until the tab is closed. */
export const apiKey = new Store<string>(sessionStorage.getItem(STORED_KEY) ?? "");

/** Why the server refused the last request for lack of a valid key; empty if it did not. */
export const keyProblem = new Store<string>("");

apiKey.subscribe((key) => {
    if (key) sessionStorage.setItem(STORED_KEY, key);
    else sessionStorage.removeItem(STORED_KEY);
});

/** A request that the server refused. */
export class RequestError extends Error {
    constructor(
        message: string,
        readonly status: number,
        /** The stable code of the refusal. */
        readonly code: string,
    ) {
        super(message);
    }
}

export interface RequestOptions {
    method?: string;
    /** Sent as JSON. */
    body?: unknown;
    headers?: Record<string, string>;
    signal?: AbortSignal;
}

/** Sends a request. Throws a `RequestError` unless the answer is a success or its status is in `accepted`. */
export async function send(path: string, options: RequestOptions = {}, accepted: number[] = []): Promise<Response> {
    const response = await fetch(path, {
        method: options.method ?? (options.body === undefined ? "GET" : "POST"),
        headers: {
            ...(apiKey.get() ? { authorization: `Bearer ${apiKey.get()}` } : {}),
            ...(options.body === undefined ? {} : { "content-type": "application/json" }),
            ...options.headers,
        },
        ...(options.body === undefined ? {} : { body: JSON.stringify(options.body) }),
        ...(options.signal ? { signal: options.signal } : {}),
    });
    if (response.ok || accepted.includes(response.status)) {
        keyProblem.set("");
        return response;
    }
    const message = errorMessage(await response.text(), response.status);
    if (response.status === 401) {
        keyProblem.set(apiKey.get() ? "The server does not know this API key." : "This server requires an API key.");
    }
    throw new RequestError(message, response.status, response.headers.get("x-sconce-code") ?? "");
}

/** Sends a request and reads its answer as JSON. */
export async function json<T>(path: string, options: RequestOptions = {}, accepted: number[] = []): Promise<T> {
    return (await send(path, options, accepted)).json() as Promise<T>;
}

/** Whether a failure is that of a request which was aborted. */
export function isAbort(error: unknown): boolean {
    return error instanceof DOMException && error.name === "AbortError";
}

/** A failure as a sentence for people. */
export function explain(error: unknown): string {
    if (error instanceof RequestError) return error.message;
    if (error instanceof TypeError) return `The server does not answer: ${error.message}`;
    return error instanceof Error ? error.message : String(error);
}
