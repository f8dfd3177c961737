//! Output heads of the families as data: classifiers and masked language models.

use sconce_core::card::PoolingMode;
use sconce_core::head::{Dense, DenseActivation, LayerNorm, RowSelection, Step};
use serde_json::Value;

/// Output heads of a family.
struct FamilyHeads {
    /// Values of `model_type`.
    model_types: &'static [&'static str],
    /// Default pooling of the classifier.
    pooled: PoolingMode,
    /// Layers of the classifier; the last one outputs the labels.
    classifier: &'static [ClassifierLayer],
    /// The masked language model head.
    masked: Option<MaskedLm>,
}

/// A linear layer of a classifier, optionally followed by a norm.
struct ClassifierLayer {
    /// Name prefixes of the tensors; the first that exists is read.
    names: &'static [&'static str],
    bias: Bias,
    activation: DenseActivation,
    norm: Option<&'static str>,
}

/// Whether a layer has a bias.
#[derive(Clone, Copy)]
enum Bias {
    Always,
    Never,
    /// If this config key is true; false by default.
    FromConfig(&'static str),
}

impl Bias {
    fn is_there(self, config: &Value) -> bool {
        match self {
            Bias::Always => true,
            Bias::Never => false,
            Bias::FromConfig(key) => config[key].as_bool().unwrap_or(false),
        }
    }
}

/// A masked language model head: a linear layer, a norm, and the vocabulary projection.
struct MaskedLm {
    layer: &'static str,
    layer_bias: Bias,
    norm: &'static [&'static str],
    norm_bias: Bias,
    /// Config key of the activation; none if it is always exact GELU.
    activation_key: Option<&'static str>,
    /// The vocabulary projection, unless it is tied to the token embeddings.
    words: &'static str,
    words_bias: &'static [&'static str],
    /// The token embeddings, after any prefix.
    table: &'static str,
    /// Epsilon of the norm, if the config does not contain it.
    fixed_epsilon: Option<f64>,
}

const fn layer(names: &'static [&'static str], activation: DenseActivation) -> ClassifierLayer {
    ClassifierLayer { names, bias: Bias::Always, activation, norm: None }
}

/// Token embeddings of most families.
const WORDS: &str = "embeddings.word_embeddings.weight";

const HEADS: &[FamilyHeads] = &[
    FamilyHeads {
        model_types: &["bert"],
        pooled: PoolingMode::Cls,
        classifier: &[
            layer(&["bert.pooler.dense", "pooler.dense"], DenseActivation::Tanh),
            layer(&["classifier"], DenseActivation::Identity),
        ],
        masked: Some(MaskedLm {
            layer: "cls.predictions.transform.dense",
            layer_bias: Bias::Always,
            norm: &["cls.predictions.transform.LayerNorm"],
            norm_bias: Bias::Always,
            table: WORDS,
            activation_key: Some("hidden_act"),
            words: "cls.predictions.decoder.weight",
            words_bias: &["cls.predictions.bias", "cls.predictions.decoder.bias"],
            fixed_epsilon: None,
        }),
    },
    FamilyHeads {
        model_types: &["roberta", "xlm-roberta", "camembert", "mpnet"],
        pooled: PoolingMode::Cls,
        classifier: &[
            layer(&["classifier.dense"], DenseActivation::Tanh),
            layer(&["classifier.out_proj"], DenseActivation::Identity),
        ],
        masked: Some(MaskedLm {
            layer: "lm_head.dense",
            layer_bias: Bias::Always,
            norm: &["lm_head.layer_norm"],
            norm_bias: Bias::Always,
            table: WORDS,
            activation_key: None,
            words: "lm_head.decoder.weight",
            words_bias: &["lm_head.bias", "lm_head.decoder.bias"],
            fixed_epsilon: None,
        }),
    },
    FamilyHeads {
        model_types: &["distilbert"],
        pooled: PoolingMode::Cls,
        classifier: &[
            layer(&["pre_classifier"], DenseActivation::Relu),
            layer(&["classifier"], DenseActivation::Identity),
        ],
        masked: Some(MaskedLm {
            layer: "vocab_transform",
            layer_bias: Bias::Always,
            norm: &["vocab_layer_norm"],
            norm_bias: Bias::Always,
            table: WORDS,
            activation_key: Some("activation"),
            words: "vocab_projector.weight",
            words_bias: &["vocab_projector.bias"],
            fixed_epsilon: Some(1e-12),
        }),
    },
    FamilyHeads {
        model_types: &["new", "gte"],
        pooled: PoolingMode::Cls,
        classifier: &[
            layer(&["new.pooler.dense", "gte.pooler.dense", "pooler.dense"], DenseActivation::Tanh),
            layer(&["classifier"], DenseActivation::Identity),
        ],
        masked: Some(MaskedLm {
            layer: "lm_head.dense",
            layer_bias: Bias::Always,
            norm: &["lm_head.norm", "lm_head.layer_norm"],
            norm_bias: Bias::Always,
            table: WORDS,
            activation_key: Some("hidden_act"),
            words: "lm_head.decoder.weight",
            words_bias: &["lm_head.decoder.bias"],
            fixed_epsilon: None,
        }),
    },
    FamilyHeads {
        model_types: &["nomic_bert"],
        pooled: PoolingMode::Cls,
        classifier: &[
            layer(&["bert.pooler.dense", "nomic_bert.pooler.dense", "pooler.dense"], DenseActivation::Tanh),
            layer(&["classifier"], DenseActivation::Identity),
        ],
        masked: None,
    },
    FamilyHeads {
        model_types: &["deberta", "deberta-v2"],
        pooled: PoolingMode::Cls,
        classifier: &[
            layer(&["pooler.dense"], DenseActivation::Gelu),
            layer(&["classifier"], DenseActivation::Identity),
        ],
        masked: None,
    },
    FamilyHeads {
        model_types: &["modernbert"],
        pooled: PoolingMode::Cls,
        classifier: &[
            ClassifierLayer {
                names: &["head.dense"],
                bias: Bias::FromConfig("classifier_bias"),
                activation: DenseActivation::Gelu,
                norm: Some("head.norm"),
            },
            layer(&["classifier"], DenseActivation::Identity),
        ],
        masked: Some(MaskedLm {
            layer: "head.dense",
            layer_bias: Bias::FromConfig("classifier_bias"),
            norm: &["head.norm"],
            norm_bias: Bias::FromConfig("norm_bias"),
            activation_key: Some("classifier_activation"),
            words: "decoder.weight",
            words_bias: &["decoder.bias"],
            table: "embeddings.tok_embeddings.weight",
            fixed_epsilon: None,
        }),
    },
    FamilyHeads {
        model_types: &["qwen2", "qwen3", "llama", "mistral", "gemma3_text"],
        pooled: PoolingMode::LastToken,
        classifier: &[ClassifierLayer {
            names: &["score"],
            bias: Bias::Never,
            activation: DenseActivation::Identity,
            norm: None,
        }],
        masked: None,
    },
];

/// The LM head of decoders; the last two names are tied token embeddings.
const DECODER_WORDS: [&str; 3] = ["lm_head.weight", "model.embed_tokens.weight", "embed_tokens.weight"];

/// Name prefixes of the token embeddings that a masked language model head is tied to.
const TOKEN_TABLE: [&str; 8] = ["", "bert.", "roberta.", "distilbert.", "mpnet.", "model.", "new.", "gte."];

fn named(model_type: &str) -> Option<&'static FamilyHeads> {
    HEADS.iter().find(|heads| heads.model_types.contains(&model_type))
}

/// All values of `model_type` with an output head.
pub fn model_types() -> Vec<&'static str> {
    HEADS.iter().flat_map(|heads| heads.model_types).copied().collect()
}

/// The pooling and the layers of a classifier with `labels` labels; none if the config is not supported.
pub fn classifier(
    model_type: &str,
    config: &Value,
    hidden: usize,
    labels: usize,
) -> Option<(PoolingMode, Vec<Step>)> {
    let heads = named(model_type)?;
    let pooled = match config["classifier_pooling"].as_str() {
        None => heads.pooled,
        Some("cls") => PoolingMode::Cls,
        Some("mean") => PoolingMode::Mean,
        Some(_) => return None,
    };
    let usual = |key: &str| config[key].as_str().is_none_or(|activation| activation == "gelu");
    if !usual("pooler_hidden_act") || !usual("classifier_activation") {
        return None;
    }
    let last = heads.classifier.len() - 1;
    let mut steps = Vec::new();
    for (place, part) in heads.classifier.iter().enumerate() {
        let output = if place == last { labels } else { hidden };
        let bias = part.bias.is_there(config);
        steps.push(Step::Dense(dense(part.names, bias, hidden, output, part.activation)));
        if let Some(name) = part.norm {
            steps.push(norm(&[name], Bias::FromConfig("norm_bias").is_there(config), config, None));
        }
    }
    Some((pooled, steps))
}

/// The token layers of a masked language model head, up to the vocabulary projection; none if the config is not
/// supported.
pub fn masked_lm(model_type: &str, config: &Value, hidden: usize, words: usize) -> Option<Vec<Step>> {
    let masked = named(model_type)?.masked.as_ref()?;
    let activation = match masked.activation_key.and_then(|key| config[key].as_str()).unwrap_or("gelu") {
        "gelu" => DenseActivation::Gelu,
        "gelu_new" | "gelu_pytorch_tanh" => DenseActivation::GeluTanh,
        "relu" => DenseActivation::Relu,
        _ => return None,
    };
    let table = TOKEN_TABLE.map(|prefix| format!("{prefix}{}", masked.table));
    let decoder = Dense {
        folder: None,
        weight: std::iter::once(masked.words.to_owned()).chain(table).collect(),
        bias: masked.words_bias.iter().map(|&name| name.to_owned()).collect(),
        selected_rows: None,
        input: hidden,
        output: words,
        activation: DenseActivation::Identity,
    };
    Some(vec![
        Step::Dense(dense(&[masked.layer], masked.layer_bias.is_there(config), hidden, hidden, activation)),
        norm(masked.norm, masked.norm_bias.is_there(config), config, masked.fixed_epsilon),
        Step::Dense(decoder),
    ])
}

/// A layer norm in the model's own weights.
fn norm(names: &[&str], bias: bool, config: &Value, fixed: Option<f64>) -> Step {
    let said = ["layer_norm_eps", "norm_eps"].iter().find_map(|key| config[*key].as_f64());
    let name = names.iter().map(|&name| name.to_owned()).collect();
    Step::Norm(LayerNorm { name, bias, epsilon: fixed.or(said).unwrap_or(1e-12) })
}

/// The next-token logits of a few tokens of a decoder, by their ids.
pub fn next_token_logits(hidden: usize, words: usize, ids: &[u32]) -> Step {
    Step::Dense(Dense {
        folder: None,
        weight: DECODER_WORDS.map(str::to_owned).to_vec(),
        bias: Vec::new(),
        selected_rows: Some(RowSelection { of: words, rows: ids.to_vec() }),
        input: hidden,
        output: ids.len(),
        activation: DenseActivation::Identity,
    })
}

/// A linear layer in the model's own weights, under the first of `names`.
fn dense(names: &[&str], bias: bool, input: usize, output: usize, activation: DenseActivation) -> Dense {
    let part = |part: &str| names.iter().map(|name| format!("{name}.{part}")).collect();
    let bias = if bias { part("bias") } else { Vec::new() };
    Dense { folder: None, weight: part("weight"), bias, selected_rows: None, input, output, activation }
}
