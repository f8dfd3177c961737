// One answer of a model in a conversation: request, stream and measurements.
import { send } from "../server/client";
import { events } from "../server/event-stream";
import { type Answer, type Chunk, Meter } from "./meter";

export interface Message {
    role: "system" | "user" | "assistant";
    content: string;
}

/** Sampling parameters by the names of the API. */
export type Sampling = Record<string, number>;

export interface ChatRequest {
    model: string;
    messages: Message[];
    sampling: Sampling;
    signal: AbortSignal;
}

/** Streams an answer. `update` gets all of it after every piece. Throws the error of the server, or of the abort. */
export async function chat(request: ChatRequest, update: (answer: Answer) => void): Promise<void> {
    const started = performance.now();
    const response = await send("/v1/chat/completions", {
        signal: request.signal,
        body: {
            model: request.model,
            messages: request.messages,
            ...request.sampling,
            stream: true,
            stream_options: { include_usage: true },
        },
    });
    const meter = new Meter(started);
    for await (const data of events(response.body as ReadableStream<Uint8Array>)) {
        const chunk: Chunk = JSON.parse(data);
        if (chunk.error) throw new Error(chunk.error.message ?? "the stream ended with an error");
        meter.read(chunk, performance.now());
        update(meter.answer());
    }
}
