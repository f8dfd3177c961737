// Types of `/v1/report`, `/v1/fit` and `/startupz`.

export interface Placement {
    engine: string;
    device: string;
    weights: string;
    dtype: string;
}

export interface Obstacle {
    code: string;
    message: string;
    remedy: string;
}

/** A result as the server writes it. */
export interface Outcome<T> {
    Ok?: T;
    Err?: Obstacle;
}

export interface Accuracy {
    texts: number;
    min_cosine?: number;
    max_error?: number;
    perplexity?: number;
    reference_perplexity?: number;
    top1_agreement?: number;
    rank_correlation: number;
}

export interface Findings {
    twin: Outcome<{ error: number | null; cases: number }> | null;
    speed: Outcome<unknown[]> | null;
    canary: Outcome<{
        error: number | null;
        accuracy: Accuracy | null;
        tokens_per_second: number;
        memory: number | null;
    }> | null;
}

export interface Viable {
    placement: Placement;
    band: string;
    seconds: number;
    texts_per_second: number;
    note: Obstacle | null;
    findings: Findings;
}

export type Refusal =
    | { obstacle: Obstacle }
    | { band: { band: string; error: number | null; accuracy: Accuracy | null } }
    | "not_requested"
    | "not_tried";

export interface Plan {
    reference: Placement | null;
    chosen: Viable | null;
    fallbacks: Viable[];
    refused: { placement: Placement; why: Refusal }[];
    downgrades: { from: Placement; to: Placement | null; why: Obstacle }[];
}

export interface Serving {
    placement: string | null;
    band: string | null;
    class: string | null;
    task: string;
    max_length: number;
    width: number;
    tokens_per_second: number;
    min_seconds: number;
    queued_texts: number;
    queued_tokens: number;
}

export interface ModelReport {
    model: string;
    aliases: string[];
    phase: string;
    memory: { predicted: Footprint; measured: Footprint; load_seconds: number } | null;
    serving: Serving | null;
    plan: Plan | null;
}

export interface Footprint {
    resident: number;
    peak: number;
}

export interface Report {
    version: string;
    state: string;
    ready: boolean;
    memory: { resident: number | null; provers: number; limit: number | null };
    models: ModelReport[];
}

/** What a load would take. */
export interface Fit {
    source: string;
    task: string;
    max_length: number;
    fits: boolean;
    fits_alone: boolean;
    loaded: boolean;
    proved: boolean;
    placement?: string;
    bytes?: Footprint;
    free_bytes?: number;
    tokens_per_second?: number;
    load_seconds?: number;
    placements: { placement: string; band?: string | null; obstacle?: { code: string; message: string } | null }[];
}

/** The phase of a model that is being loaded. */
export interface Phase {
    phase: string;
    file?: string;
    placement?: string;
    bytes?: number;
    cases?: number;
    of?: number;
    texts?: number;
    why?: string;
}

/** Engine, device and dtype, as the server's headers name a placement. */
export function placementName({ engine, device, dtype }: Placement): string {
    return `${engine}/${device}/${dtype}`;
}
