//! Keys of `config.json` that do not affect hidden states. Any other key that no family reads is rejected, because it
//! may change the result.

/// Whether a key does not affect hidden states, whatever its value.
pub(crate) fn is_ignored(key: &str) -> bool {
    key.starts_with('_') || PARTS.iter().any(|part| key.contains(part)) || KEYS.contains(&key)
}

/// Substrings of keys.
const PARTS: &[&str] = &[
    // training
    "dropout",
    "layerdrop",
    "pdrop",
    "initializer",
    "checkpointing",
    // how weights are stored, and what wrote the file
    "torch",
    "dtype",
    "transformers",
    "name_or_path",
    "architectures",
    "auto_map",
    "model_type",
    // ids of special tokens, which the tokenizer adds
    "token_id",
    // heads, which read the config themselves
    "label",
    "classifier",
    "pool",
    "summary_",
    "tie_",
    // how attention is implemented
    "flash_attn",
    "attn_implementation",
    "efficient_attention",
    // generation
    "use_cache",
    "cache_implementation",
    "beam",
    "penalty",
    "suppress_tokens",
    "output_",
    "matryoshka",
];

/// Whole keys.
const KEYS: &[&str] = &[
    // training
    "sparse_pred_ignore_index",
    "sparse_prediction",
    "repad_logits_with_grad",
    "last_layer_subset",
    "use_xentropy",
    "loss_function",
    // other tasks
    "finetuning_task",
    "problem_type",
    "task_specific_params",
    "projection_dim",
    "logit_scale_init_value",
    "router_aux_loss_coef",
    "sentence_transformers",
    "sbert_ce_default_activation_function",
    "decoder_bias",
    "num_decoder_layers",
    "scale_decoder_outputs",
    "is_encoder_decoder",
    "cross_attention_hidden_size",
    "legacy",
    // generation
    "bad_words_ids",
    "do_sample",
    "early_stopping",
    "max_length",
    "min_length",
    "no_repeat_ngram_size",
    "encoder_no_repeat_ngram_size",
    "num_return_sequences",
    "prefix",
    "remove_invalid_values",
    "return_dict",
    "return_dict_in_generate",
    "temperature",
    "top_k",
    "top_p",
    "typical_p",
    // how the work is split and laid out, with the same result
    "chunk_size_feed_forward",
    "dense_seq_output",
    "fused_bias_fc",
    "pack_qkv",
    "pad_vocab_size_multiple",
    "pad_vocab_to_multiple_of",
    "reference_compile",
    "reorder_and_upcast_attn",
    "tf_legacy_loss",
    "unpad_inputs",
    "use_bfloat16",
    // bookkeeping
    "directionality",
    "export_model_type",
    "is_llama_config",
    "language",
    "license",
    "neuron",
    "padding_idx",
    "tokenizer_class",
    "version",
    // the tokenizer's limit, which the card reads from its own file
    "max_seq_length",
    "max_sequence_length",
    "model_max_length",
    "seq_length",
    // repeated by a key that is read
    "dense_act_fn",
    "is_gated_act",
    // token types, in families without a token type table
    "type_vocab_size",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_training_and_bookkeeping_are_harmless_and_others_are_not() {
        for key in ["hidden_dropout_prob", "torch_dtype", "_name_or_path", "bos_token_id", "directionality"] {
            assert!(is_ignored(key), "{key}");
        }
        for key in ["rope_theta", "memory_tokens", "hidden_size", "attention_window", "scale_attn_weights"] {
            assert!(!is_ignored(key), "{key}");
        }
    }
}
