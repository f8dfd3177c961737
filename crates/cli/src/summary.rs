//! Summary of a command that processed texts: count, throughput, placements, and truncated texts.

use sconce::{Model, OutputMetadata};
use serde_json::{Value, json};

use crate::terminal::pluralize;

/// Totals over all batches.
#[derive(Default)]
pub(crate) struct Summary {
    texts: usize,
    tokens: usize,
    truncated: usize,
    placements: Vec<String>,
    classes: Vec<String>,
    warnings: Vec<String>,
}

impl Summary {
    pub(crate) fn add(&mut self, texts: usize, account: &OutputMetadata) {
        self.texts += texts;
        self.tokens += account.tokens;
        self.truncated += account.truncated.len();
        for placement in account.placements.iter().map(ToString::to_string) {
            if !self.placements.contains(&placement) {
                self.placements.push(placement);
            }
        }
        for class in &account.classes {
            if !self.classes.contains(class) {
                self.classes.push(class.clone());
            }
        }
    }

    fn texts_per_second(&self, seconds: f64) -> f64 {
        self.texts as f64 / seconds.max(1e-9)
    }

    /// Adds a warning to the JSON.
    pub(crate) fn warn(&mut self, warning: String) {
        self.warnings.push(warning);
    }

    /// The summary as JSON.
    pub(crate) fn json(&self, seconds: f64) -> Value {
        json!({
            "texts": self.texts, "tokens": self.tokens, "truncated": self.truncated, "seconds": seconds,
            "texts_per_s": self.texts_per_second(seconds), "placements": self.placements, "classes": self.classes,
            "warnings": self.warnings,
        })
    }

    /// Prints the summary on standard error.
    pub(crate) fn print(&self, seconds: f64, model: &Model, as_json: bool) {
        if as_json {
            eprintln!("{}", self.json(seconds));
            return;
        }
        let texts_per_second = self.texts_per_second(seconds);
        let Summary { texts, tokens, truncated, .. } = self;
        if *texts == 0 {
            eprintln!("no texts");
            return;
        }
        let (texts, tokens) = (pluralize(*texts, "text"), pluralize(*tokens, "token"));
        let places = self.placements.join(", then ");
        eprintln!("{texts}, {tokens} in {seconds:.2} s ({texts_per_second:.1} texts/s) on {places}");
        if *truncated > 0 {
            let most = model.card().max_length.value;
            let (is, was) = if *truncated == 1 { ("is", "was") } else { ("are", "were") };
            let truncated = pluralize(*truncated, "text");
            eprintln!("note: {truncated} {is} longer than the model's {most} tokens and {was} truncated");
        }
        if self.classes.len() > 1 {
            let classes = self.classes.join(", ");
            eprintln!("note: the outputs have {} numerics classes: {classes}", self.classes.len());
            eprintln!("hint: use a separate index per class; each output line names its `class`");
        }
        for refused in model.plan().refused.iter().filter_map(|refused| match &refused.why {
            sconce::planner::plan::Refusal::Obstacle(obstacle @ sconce::Obstacle::Quarantined { .. }) => {
                Some(format!("{}: {obstacle}", refused.placement))
            }
            sconce::planner::plan::Refusal::Obstacle(_)
            | sconce::planner::plan::Refusal::Band { .. }
            | sconce::planner::plan::Refusal::NotRequested
            | sconce::planner::plan::Refusal::NotTried => None,
        }) {
            eprintln!("note: {refused}");
        }
    }
}
