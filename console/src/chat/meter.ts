// Measures an answer while its chunks arrive.

export interface Measurements {
    /** Seconds from the request to the first token. */
    firstToken?: number;
    /** Generated tokens; the number of pieces until the server has told it. */
    tokens: number;
    /** Whether the server counted the tokens. */
    counted: boolean;
    /** Tokens per second after the first one. */
    rate?: number;
    promptTokens?: number;
    cachedTokens?: number;
    finish?: string;
}

export interface Answer extends Measurements {
    content: string;
    reasoning: string;
}

/** A chunk of a chat completion. */
export interface Chunk {
    choices?: { delta?: { content?: string; reasoning_content?: string }; finish_reason?: string | null }[];
    usage?: {
        prompt_tokens: number;
        completion_tokens: number;
        prompt_tokens_details?: { cached_tokens?: number };
    } | null;
    error?: { message?: string };
}

/** Turns the chunks of a stream into an answer with its measurements. Times are in milliseconds. */
export class Meter {
    #content = "";
    #reasoning = "";
    #pieces = 0;
    #first: number | undefined;
    #last = 0;
    #finish: string | undefined;
    #usage: Chunk["usage"];

    constructor(readonly started: number) {}

    read({ choices, usage }: Chunk, now: number): void {
        const [choice] = choices ?? [];
        const { content = "", reasoning_content: reasoning = "" } = choice?.delta ?? {};
        if (content || reasoning) {
            this.#content += content;
            this.#reasoning += reasoning;
            this.#pieces += 1;
            this.#first ??= now;
            this.#last = now;
        }
        this.#finish = choice?.finish_reason ?? this.#finish;
        this.#usage = usage ?? this.#usage;
    }

    answer(): Answer {
        const tokens = this.#usage?.completion_tokens ?? this.#pieces;
        const seconds = this.#first === undefined ? 0 : (this.#last - this.#first) / 1000;
        return {
            content: this.#content,
            reasoning: this.#reasoning,
            tokens,
            counted: Boolean(this.#usage),
            ...(this.#first === undefined ? {} : { firstToken: (this.#first - this.started) / 1000 }),
            ...(seconds > 0 && tokens > 1 ? { rate: (tokens - 1) / seconds } : {}),
            ...(this.#finish ? { finish: this.#finish } : {}),
            ...(this.#usage
                ? {
                      promptTokens: this.#usage.prompt_tokens,
                      cachedTokens: this.#usage.prompt_tokens_details?.cached_tokens ?? 0,
                  }
                : {}),
        };
    }
}
