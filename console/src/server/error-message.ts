// The message of a refusal in any of the server's dialects.

/** The message in the body of an answer: OpenAI's `error.message`, TEI's `error`, Cohere's `message`, or the text. */
export function errorMessage(body: string, status: number): string {
    try {
        const { error, message } = JSON.parse(body) ?? {};
        const found = typeof error === "string" ? error : (error?.message ?? message);
        if (typeof found === "string" && found) return found;
    } catch {
        // Not JSON.
    }
    return body.trim().slice(0, 500) || `status ${status}`;
}
