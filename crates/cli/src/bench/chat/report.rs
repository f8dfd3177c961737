//! The report of a chat benchmark, as text, as JSON and as a figure.

use std::fmt::Write as _;

use sconce::Placement;
use serde_json::{Value, json};

use super::level::Level;
use crate::bench::plot::{COLORS, Figure, Line, Panel};
use crate::bench::server::Server;
use crate::terminal::{pluralize, rendered, table};

/// All measurements.
pub(super) struct Report<'a> {
    pub(super) model: &'a str,
    /// Tokens of each prompt.
    pub(super) input: usize,
    /// Tokens of each answer.
    pub(super) output: usize,
    /// Chats per client.
    pub(super) rounds: usize,
    pub(super) all: Vec<Measured>,
}

/// The measurements of one server.
pub(super) struct Measured {
    target: Target,
    pub(super) levels: Vec<Level>,
    /// Why it could not be measured further.
    pub(super) error: Option<String>,
}

enum Target {
    Placement(Placement),
    Server { kind: &'static str, url: String },
}

impl Measured {
    pub(super) fn of_placement(placement: Placement) -> Measured {
        Measured { target: Target::Placement(placement), levels: Vec::new(), error: None }
    }

    pub(super) fn of_server(server: &Server) -> Measured {
        let target = Target::Server { kind: server.kind(), url: server.url().to_owned() };
        Measured { target, levels: Vec::new(), error: None }
    }

    pub(super) fn name(&self) -> String {
        match &self.target {
            Target::Placement(placement) => placement.to_string(),
            Target::Server { kind, url } => format!("{kind} {url}"),
        }
    }

    fn json(&self) -> Value {
        let mut value = match &self.target {
            Target::Placement(placement) => json!({ "placement": placement }),
            Target::Server { kind, url } => json!({ "server": kind, "url": url }),
        };
        value["levels"] = self.levels.iter().map(Level::json).collect();
        if let Some(error) = &self.error {
            value["error"] = json!(error);
        }
        value
    }
}

impl Report<'_> {
    pub(super) fn text(&self) -> String {
        let header = [
            "server",
            "concurrency",
            "requests",
            "output tokens/s",
            "TTFT p50",
            "TTFT p95",
            "ITL p50",
            "ITL p95",
        ];
        let mut rows = table(&header);
        let ms = |ms: f64| format!("{ms:.1} ms");
        for measured in &self.all {
            for level in &measured.levels {
                rows.add_row([
                    measured.name(),
                    level.concurrency.to_string(),
                    level.requests.to_string(),
                    format!("{:.1}", level.tokens_per_s()),
                    ms(level.first.percentile(50)),
                    ms(level.first.percentile(95)),
                    ms(level.between.percentile(50)),
                    ms(level.between.percentile(95)),
                ]);
            }
        }
        let mut text = format!(
            "chats of {} and {} of output, {} per client, over HTTP\n\n{}\n\n\
             TTFT: time to first token; ITL: inter-token latency\n",
            pluralize(self.input, "token"),
            pluralize(self.output, "token"),
            self.rounds,
            rendered(&rows)
        );
        for measured in &self.all {
            if let Some(error) = &measured.error {
                let (name, error) = (measured.name(), error.replace('\n', "\n        "));
                let _ = writeln!(text, "\nfailed  {name}\n        {error}");
            }
        }
        text
    }

    pub(super) fn json(&self) -> Value {
        let is_own = |measured: &&Measured| matches!(measured.target, Target::Placement(_));
        let (own, others): (Vec<_>, Vec<_>) = self.all.iter().partition(is_own);
        json!({
            "model": self.model,
            "input_tokens": self.input,
            "output_tokens": self.output,
            "rounds": self.rounds,
            "placements": own.into_iter().map(Measured::json).collect::<Vec<_>>(),
            "servers": others.into_iter().map(Measured::json).collect::<Vec<_>>(),
        })
    }

    pub(super) fn figure(&self) -> Figure {
        let panel = |title: &str, y_label: &'static str, value: &dyn Fn(&Level) -> f64| {
            let point = |level: &Level| (level.concurrency as f64, value(level));
            let line = |(measured, color): (&Measured, _)| Line {
                color,
                points: measured.levels.iter().map(point).collect(),
            };
            Panel {
                title: title.to_owned(),
                x_label: "concurrency",
                y_label,
                lines: self.all.iter().zip(COLORS.into_iter().cycle()).map(line).collect(),
                bounds: Vec::new(),
            }
        };
        let legend = self.all.iter().map(Measured::name).zip(COLORS.into_iter().cycle()).collect();
        Figure {
            title: format!(
                "sconce bench: {}, chats of {} and {} tokens",
                self.model, self.input, self.output
            ),
            legend,
            panels: [
                panel("throughput", "output tokens/s", &Level::tokens_per_s),
                panel("time to first token, p50", "ms", &|level| level.first.percentile(50)),
                panel("inter-token latency, p50", "ms", &|level| level.between.percentile(50)),
                panel("inter-token latency, p95", "ms", &|level| level.between.percentile(95)),
            ],
        }
    }
}
