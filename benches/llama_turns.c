/* llama.cpp, loaded and waiting for its turn: benches/generate.py runs it beside sconce.
 *
 *     GGML_DIR=FOLDER_OF_ONE_CPU_VARIANT llama_turns MODEL.gguf THREADS
 *     GGML_DIR=… llama_turns quantize IN.gguf OUT.gguf FILE_TYPE
 *
 * Prints a line of JSON once the model is loaded, then answers each line of its standard input as the example
 * `generate_turns` of sconce does: `prompt TOKENS`, `decode SEQUENCES CACHED STEPS`. Every sequence has a KV cache of its
 * own. Tokens of the cache are computed before the clock starts. `perplexity ID…` answers with the negative log-likelihood of
 * all tokens but the first, and `tokenize TEXT` with token ids. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "ggml-backend.h"
#include "llama.h"

enum { CONTEXT = 768, SEQUENCES = 32, BATCH = 512, VOCABULARY = 100, LINE = 1 << 17 };

static struct llama_batch batch;

static void quiet(enum ggml_log_level level, const char *text, void *unused) {
    (void)unused;
    if (level >= GGML_LOG_LEVEL_ERROR) fputs(text, stderr);
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + 1e-9 * time.tv_nsec;
}

static long resident(void) {
    long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (file) {
        if (fscanf(file, "%*d %ld", &pages) != 1) pages = 0;
        fclose(file);
    }
    return pages * 4096;
}

/* The token of a sequence at a position: any will do, and all steps of all engines have the same. */
static void add(int sequence, int position, int has_logits) {
    int i = batch.n_tokens++;
    batch.token[i] = (position * 7919 + sequence * 31 + 11) % VOCABULARY;
    batch.pos[i] = position;
    batch.n_seq_id[i] = 1;
    batch.seq_id[i][0] = sequence;
    batch.logits[i] = has_logits;
}

static void compute(struct llama_context *ctx) {
    if (llama_decode(ctx, batch)) {
        fprintf(stderr, "llama_decode failed\n");
        exit(1);
    }
    llama_synchronize(ctx);
    batch.n_tokens = 0;
}

static void prompt(struct llama_context *ctx, int tokens) {
    for (int i = 0; i < tokens; i++) add(0, i, i == tokens - 1);
    compute(ctx);
}

/* Gives all sequences this many tokens. */
static void fill(struct llama_context *ctx, int sequences, int cached) {
    llama_memory_t memory = llama_get_memory(ctx);
    llama_memory_clear(memory, true);
    if (!cached) return;
    prompt(ctx, cached);
    for (int sequence = 1; sequence < sequences; sequence++) llama_memory_seq_cp(memory, 0, sequence, -1, -1);
}

/* The negative log-likelihood of a token. */
static double surprise(const float *logits, int count, llama_token token) {
    double largest = logits[0], sum = 0;
    for (int i = 1; i < count; i++) largest = fmax(largest, logits[i]);
    for (int i = 0; i < count; i++) sum += exp(logits[i] - largest);
    return largest + log(sum) - logits[token];
}

/* Answers `perplexity ID…`. */
static void perplexity(struct llama_context *ctx, int vocabulary, char *ids) {
    llama_memory_clear(llama_get_memory(ctx), true);
    llama_token tokens[BATCH];
    int count = 0;
    for (char *id = strtok(ids, " \n"); id && count < BATCH; id = strtok(NULL, " \n")) {
        tokens[count] = atoi(id);
        add(0, count, 1);
        batch.token[count] = tokens[count];
        count++;
    }
    compute(ctx);
    double sum = 0;
    for (int i = 1; i < count; i++) sum += surprise(llama_get_logits_ith(ctx, i - 1), vocabulary, tokens[i]);
    printf("{\"tokens\": %d, \"nll\": %.9f}\n", count - 1, sum);
}

/* Answers `tokenize TEXT`. */
static void tokenize(const struct llama_vocab *vocab, const char *text) {
    static llama_token tokens[LINE];
    int count = llama_tokenize(vocab, text, strcspn(text, "\n"), tokens, LINE, true, false);
    printf("[");
    for (int i = 0; i < count; i++) printf(i ? ", %d" : "%d", tokens[i]);
    printf("]\n");
}

int main(int argc, char **argv) {
    if (argc < 3) return 2;
    llama_log_set(quiet, NULL);
    ggml_backend_load_all_from_path(getenv("GGML_DIR"));
    llama_backend_init();
    if (!strcmp(argv[1], "quantize")) {
        struct llama_model_quantize_params params = llama_model_quantize_default_params();
        params.ftype = atoi(argv[4]);
        params.allow_requantize = true;
        return llama_model_quantize(argv[2], argv[3], &params);
    }
    double start = now();
    struct llama_model *model = llama_model_load_from_file(argv[1], llama_model_default_params());
    if (!model) return 1;
    double loaded = now() - start;
    struct llama_context_params params = llama_context_default_params();
    params.n_ctx = CONTEXT * SEQUENCES;
    params.n_batch = params.n_ubatch = BATCH;
    params.n_seq_max = SEQUENCES;
    params.kv_unified = false;
    params.n_threads = params.n_threads_batch = atoi(argv[2]);
    struct llama_context *ctx = llama_init_from_model(model, params);
    if (!ctx) return 1;
    batch = llama_batch_init(BATCH, 0, 1);
    prompt(ctx, BATCH);
    printf("{\"name\": \"llama.cpp\", \"load_seconds\": %.3f, \"resident_bytes\": %ld}\n", loaded, resident());
    fflush(stdout);
    const struct llama_vocab *vocab = llama_model_get_vocab(model);
    static char line[LINE];
    while (fgets(line, sizeof line, stdin)) {
        int sequences, cached, steps, tokens;
        if (sscanf(line, "prompt %d", &tokens) == 1) {
            llama_memory_clear(llama_get_memory(ctx), true);
            start = now();
            prompt(ctx, tokens);
        } else if (sscanf(line, "decode %d %d %d", &sequences, &cached, &steps) == 3) {
            fill(ctx, sequences, cached);
            start = now();
            for (int done = 0; done < steps; done++) {
                for (int sequence = 0; sequence < sequences; sequence++) add(sequence, cached + done, 1);
                compute(ctx);
            }
            tokens = sequences * steps;
        } else if (!strncmp(line, "perplexity ", 11) || !strncmp(line, "tokenize ", 9)) {
            if (*line == 'p') perplexity(ctx, llama_vocab_n_tokens(vocab), line + 11);
            else tokenize(vocab, line + 9);
            fflush(stdout);
            continue;
        } else {
            fprintf(stderr, "unknown turn: %s", line);
            return 2;
        }
        printf("{\"tokens\": %d, \"seconds\": %.6f}\n", tokens, now() - start);
        fflush(stdout);
    }
    return 0;
}
