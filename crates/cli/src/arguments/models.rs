//! Commands on the hub's cache and the catalogue.

use clap::Args;
use sconce::Task;

use super::model::task;
use crate::model_name::ModelName;

#[derive(Args)]
pub(crate) struct Models {
    /// List the catalogue: models with a short name, and what each is good for
    #[arg(long)]
    pub(crate) recommended: bool,
    /// With --recommended: models of this task only: embed, rerank, chat
    #[arg(long, requires = "recommended", value_parser = task)]
    pub(crate) task: Option<Task>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
pub(crate) struct Pull {
    /// Short names (`sconce models --recommended`) or ids on the Hugging Face Hub; `NAME:Q4_K_M` is a quantization
    #[arg(required = true, value_name = "MODEL", value_parser = ModelName, hide_possible_values = true)]
    pub(crate) models: Vec<String>,
    /// Branch, tag or commit
    #[arg(long)]
    pub(crate) revision: Option<String>,
}

#[derive(Args)]
pub(crate) struct Remove {
    /// Short names or ids of models in the hub's cache; `NAME:Q4_K_M` is a quantization
    #[arg(required = true, value_name = "MODEL", value_parser = ModelName, hide_possible_values = true)]
    pub(crate) models: Vec<String>,
    /// Remove only this branch, tag or commit
    #[arg(long)]
    pub(crate) revision: Option<String>,
}
