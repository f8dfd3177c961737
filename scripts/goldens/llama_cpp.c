/* Logits of llama.cpp on given tokens, for llama_cpp.py.
 *
 *     GGML_DIR=FOLDER_OF_ONE_CPU_VARIANT llama_cpp MODEL.gguf tokenize < texts
 *     GGML_DIR=… llama_cpp MODEL.gguf generate COUNT < tokens
 *     GGML_DIR=… llama_cpp MODEL.gguf logits OUT < tokens
 *
 * `tokenize` reads texts that end with a zero byte and prints a line of token ids for each. `generate` reads such lines and
 * prints each with COUNT greedy tokens more. `logits` writes the logits of all tokens to OUT, f32, in order. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ggml-backend.h"
#include "llama.h"

/* One thread: a busy machine stalls the spinning barriers of more. */
enum { CONTEXT = 1024, THREADS = 1 };

static void quiet(enum ggml_log_level level, const char *text, void *unused) {
    (void)unused;
    if (level >= GGML_LOG_LEVEL_ERROR) fputs(text, stderr);
}

static struct llama_context *context(struct llama_model *model) {
    struct llama_context_params params = llama_context_default_params();
    params.n_ctx = params.n_batch = params.n_ubatch = CONTEXT;
    params.n_threads = params.n_threads_batch = THREADS;
    return llama_init_from_model(model, params);
}

/* Computes `count` tokens from position `first` on, with all logits. */
static void decode(struct llama_context *ctx, const llama_token *tokens, int first, int count) {
    struct llama_batch batch = llama_batch_init(count, 0, 1);
    for (int i = 0; i < count; i++) {
        batch.token[i] = tokens[first + i];
        batch.pos[i] = first + i;
        batch.n_seq_id[i] = 1;
        batch.seq_id[i][0] = 0;
        batch.logits[i] = 1;
    }
    batch.n_tokens = count;
    if (llama_decode(ctx, batch)) {
        fprintf(stderr, "llama_decode failed\n");
        exit(1);
    }
    llama_batch_free(batch);
}

static int argmax(const float *logits, int count) {
    int best = 0;
    for (int i = 1; i < count; i++)
        if (logits[i] > logits[best]) best = i;
    return best;
}

/* The token ids of a line; returns their count. */
static int parse(char *line, llama_token *tokens) {
    int count = 0;
    for (char *part = strtok(line, " \n"); part && count < CONTEXT; part = strtok(NULL, " \n")) tokens[count++] = atoi(part);
    return count;
}

static void print(const llama_token *tokens, int count) {
    for (int i = 0; i < count; i++) printf(i ? " %d" : "%d", tokens[i]);
    puts("");
}

int main(int argc, char **argv) {
    if (argc < 3) return 2;
    llama_log_set(quiet, NULL);
    ggml_backend_load_all_from_path(getenv("GGML_DIR"));
    llama_backend_init();
    struct llama_model *model = llama_model_load_from_file(argv[1], llama_model_default_params());
    if (!model) return 1;
    const struct llama_vocab *vocab = llama_model_get_vocab(model);
    int vocabulary = llama_vocab_n_tokens(vocab);
    llama_token tokens[CONTEXT];
    char *line = NULL;
    size_t size = 0;
    ssize_t length;
    if (!strcmp(argv[2], "tokenize")) {
        while ((length = getdelim(&line, &size, 0, stdin)) > 0) {
            if (!line[length - 1]) length--;
            int count = llama_tokenize(vocab, line, length, tokens, CONTEXT, true, true);
            if (count < 0) return 1;
            print(tokens, count);
        }
        return 0;
    }
    struct llama_context *ctx = context(model);
    FILE *out = !strcmp(argv[2], "logits") ? fopen(argv[3], "wb") : NULL;
    int more = out ? 0 : atoi(argv[3]);
    while (getline(&line, &size, stdin) > 0) {
        int count = parse(line, tokens);
        llama_memory_clear(llama_get_memory(ctx), true);
        decode(ctx, tokens, 0, count);
        if (out) {
            for (int i = 0; i < count; i++) fwrite(llama_get_logits_ith(ctx, i), sizeof(float), vocabulary, out);
            continue;
        }
        tokens[count] = argmax(llama_get_logits_ith(ctx, count - 1), vocabulary);
        for (int i = 1; i < more; i++) {
            decode(ctx, tokens, count + i - 1, 1);
            tokens[count + i] = argmax(llama_get_logits_ith(ctx, 0), vocabulary);
        }
        print(tokens, count + more);
    }
    return out ? fclose(out) : 0;
}
