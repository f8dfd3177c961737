//! A plan in words.

use std::fmt::Write;

use sconce_core::placement::Placement;

use crate::plan::{Plan, Refusal};

/// A plan in words: what was chosen, what comes next, and every refusal with its remedy.
pub fn explain(plan: &Plan) -> String {
    let mut text = String::new();
    match &plan.chosen {
        Some(chosen) => {
            let rate = chosen.texts_per_second;
            let _ = writeln!(text, "chosen: {} ({}, about {rate:.0} texts/s)", chosen.placement, chosen.band);
        }
        None => text.push_str("chosen: none\n"),
    }
    for fallback in &plan.fallbacks {
        let use_ = if fallback.replays { "next" } else { "also works" };
        let note = fallback.note.as_ref().map(|note| format!(", {note}")).unwrap_or_default();
        let _ = writeln!(text, "{use_}: {} ({}{note})", fallback.placement, fallback.band);
    }
    for group in grouped(plan) {
        let _ = writeln!(text, "refused: {} [{}] {}", group.label, group.code, group.reason);
        if let Some(remedy) = group.remedy {
            let _ = writeln!(text, "  hint: {remedy}");
        }
    }
    if let Some(beaten) = plan.beaten_accelerator() {
        let _ = writeln!(text, "{} works here and is slower than the processor", beaten.placement.device);
    }
    text
}

/// Refusals that share their reason, as one line.
pub struct Group<'a> {
    /// Those refused.
    pub placements: Vec<&'a Placement>,
    /// Their common name: `candle/metal:0/*`.
    pub label: String,
    /// The stable code.
    pub code: &'static str,
    /// Why.
    pub reason: String,
    /// What would help, where there is an obstacle.
    pub remedy: Option<String>,
}

/// The plan's refusals, those of one engine and device with the same reason together.
pub fn grouped(plan: &Plan) -> Vec<Group<'_>> {
    let mut groups: Vec<Group<'_>> = Vec::new();
    for refused in &plan.refused {
        let (code, reason, remedy) = match &refused.why {
            Refusal::Obstacle(obstacle) => (obstacle.code(), obstacle.to_string(), Some(obstacle.remedy())),
            Refusal::Band { band, error, receipt } => {
                let cosines = receipt.map(|receipt| format!(", {receipt}")).unwrap_or_default();
                let reason = format!("its numbers are {band}: {error} from the reference's{cosines}");
                ("band", reason, Some(format!("allow it with `--band {band}`")))
            }
            Refusal::NotWished => ("not_wished", "was not asked for".to_owned(), None),
            Refusal::NotTried => ("not_tried", "was not tried".to_owned(), None),
        };
        let same = |group: &&mut Group<'_>| {
            let first = group.placements[0];
            let here = &refused.placement;
            group.reason == reason && first.engine == here.engine && first.device == here.device
        };
        if let Some(group) = groups.iter_mut().find(same) {
            group.placements.push(&refused.placement);
            let first = group.placements[0];
            group.label = format!("{}/{}/*", first.engine, first.device);
        } else {
            let label = refused.placement.to_string();
            groups.push(Group { placements: vec![&refused.placement], label, code, reason, remedy });
        }
    }
    groups
}
