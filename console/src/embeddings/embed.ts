// Embeddings and rankings of many texts.
import { decodeFloats } from "../math/vectors";
import { json } from "../server/client";
import type { LabeledText } from "./texts";

/** Texts of one request. */
const BATCH = 100;

/** Texts with their vectors. */
export interface Embedded {
    model: string;
    texts: LabeledText[];
    vectors: Float32Array[];
    seconds: number;
}

export interface EmbedRequest {
    model: string;
    texts: string[];
    /** Whether the texts are queries or documents, which selects the prompt of the model. */
    inputType: "search_query" | "search_document";
    signal: AbortSignal;
    progress?: (done: number) => void;
}

/** The vectors of texts, in their order. */
export async function embed({ model, texts, inputType, signal, progress }: EmbedRequest): Promise<Float32Array[]> {
    const vectors: Float32Array[] = [];
    for (let at = 0; at < texts.length; at += BATCH) {
        const batch = texts.slice(at, at + BATCH);
        const body = { model, texts: batch, input_type: inputType, embedding_types: ["base64"], truncate: "END" };
        // A model that is not loaded yet is waited for.
        const headers = { prefer: "wait=60" };
        const { embeddings } = await json<{ embeddings: { base64: string[] } }>("/v2/embed", { body, headers, signal });
        vectors.push(...embeddings.base64.map(decodeFloats));
        progress?.(vectors.length);
    }
    return vectors;
}

export interface Ranked {
    /** Place of the document among the texts. */
    index: number;
    score: number;
}

/** Ranks documents by a reranker, best first. */
export async function rerank(model: string, query: string, documents: string[], signal: AbortSignal): Promise<Ranked[]> {
    const body = { model, query, documents };
    const headers = { prefer: "wait=60" };
    const { results } = await json<{ results: { index: number; relevance_score: number }[] }>("/v2/rerank", { body, headers, signal });
    return results.map(({ index, relevance_score: score }) => ({ index, score }));
}
