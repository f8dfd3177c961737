// Server-sent events of a response.

/** The `data` of each event, until `[DONE]` or the end. */
export async function* events(body: ReadableStream<Uint8Array>): AsyncGenerator<string> {
    const reader = body.getReader();
    const decoder = new TextDecoder();
    let pending = "";
    try {
        for (;;) {
            const { done, value } = await reader.read();
            pending += decoder.decode(value, { stream: !done });
            const parts = pending.split(/\r?\n\r?\n/);
            pending = done ? "" : (parts.pop() ?? "");
            for (const part of parts) {
                const data = dataOf(part);
                if (data === "[DONE]") return;
                if (data) yield data;
            }
            if (done) return;
        }
    } finally {
        await reader.cancel().catch(() => undefined);
    }
}

function dataOf(event: string): string {
    const lines = event.split(/\r?\n/).filter((line) => line.startsWith("data:"));
    return lines.map((line) => line.slice(5).replace(/^ /, "")).join("\n");
}
