//! Names of the tensors of a checkpoint. `{}` stands for the layer index, `{e}` for that of an expert; of several names the first one that the
//! file has is read.

/// Tensor names of a family.
#[derive(Debug, PartialEq, Eq)]
pub struct TensorNames {
    /// Prefixes that a checkpoint may put before every name.
    pub prefixes: &'static [&'static str],
    /// Token embeddings. The prefix is detected by this name.
    pub token_embeddings: &'static [&'static str],
    /// Position embeddings.
    pub position_embeddings: &'static str,
    /// Token type embeddings.
    pub token_type_embeddings: &'static str,
    /// The norm after the embeddings.
    pub embedding_norm: &'static [&'static str],
    /// Query, key and value projections.
    pub qkv: &'static [TensorLayout],
    /// Biases of `qkv` where their names do not follow from those of the matrices; an empty name means zeros.
    pub qkv_bias: Option<[&'static str; 3]>,
    /// The norms of queries and keys.
    pub qk_norms: [&'static str; 2],
    /// The output projection of attention.
    pub output: &'static [&'static str],
    /// The router of a mixture of experts.
    pub router: &'static str,
    /// The up projection of the feed-forward block, the gate first.
    pub up: &'static [TensorLayout],
    /// The down projection of the feed-forward block.
    pub down: &'static [&'static str],
    /// The norms before and after attention.
    pub attention_norms: [&'static [&'static str]; 2],
    /// The norms before and after the feed-forward block.
    pub output_norms: [&'static [&'static str]; 2],
    /// The norm after all layers.
    pub final_norm: &'static str,
    /// The table of relative position biases or embeddings.
    pub relative: &'static str,
    /// The norm of the relative position embeddings.
    pub relative_norm: &'static str,
    /// The projections of relative position embeddings to keys and to queries.
    pub relative_projections: [&'static str; 2],
    /// Substrings of names of layer tensors that the computation does not use.
    pub ignored: &'static [&'static str],
}

/// How a checkpoint stores a matrix that consists of several parts.
#[derive(Debug, PartialEq, Eq)]
pub enum TensorLayout {
    /// One tensor per part, or one tensor of all parts, concatenated by rows.
    Stacked(&'static [&'static str]),
    /// One tensor whose two halves are swapped.
    Swapped(&'static str),
    /// One tensor with the queries that share a KV head, its keys and its values, KV head by KV head.
    PerHead(&'static str),
}
