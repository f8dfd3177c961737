//! Plans as text.

use std::fmt::Write;

use sconce_core::obstacle::Obstacle;
use sconce_core::placement::Placement;
use sconce_core::remedy::Remedy;

use crate::band::Band;
use crate::plan::{Constraints, Plan, Refusal, Refused, Viable};

impl Plan {
    /// The plan as text: the chosen placement, the fallbacks, and every refusal with its remedy.
    pub fn explain(&self) -> String {
        explain(self)
    }
}

fn explain(plan: &Plan) -> String {
    let mut text = String::new();
    match &plan.chosen {
        Some(chosen) => {
            let rate = chosen.texts_per_second;
            let (band, unit) = (band(chosen), if chosen.findings.generates() { "tokens" } else { "texts" });
            let _ = writeln!(text, "chosen: {} ({band}, about {rate:.0} {unit}/s)", chosen.placement);
        }
        None => text.push_str("chosen: none\n"),
    }
    for fallback in &plan.fallbacks {
        let use_ = if fallback.replays { "next" } else { "also works" };
        let note = fallback.note.as_ref().map(|note| format!(", {note}")).unwrap_or_default();
        let _ = writeln!(text, "{use_}: {} ({}{note})", fallback.placement, band(fallback));
    }
    text += &lines(&grouped(plan));
    if let Some(slower) = plan.slower_accelerator() {
        let _ = writeln!(text, "{} works here and is slower than the processor", slower.placement.device);
    }
    text
}

fn lines(groups: &[Group<'_>]) -> String {
    let mut text = String::new();
    for group in groups {
        let _ = writeln!(text, "refused: {} [{}] {}", group.label, group.code, group.reason);
        if let Some(remedy) = &group.remedy {
            let _ = writeln!(text, "  hint: {remedy}");
        }
    }
    text
}

/// Why no placement that `constraints` admits works, with the obstacles and the alternatives. Placements outside the
/// constraints are left out.
pub fn unmet(plan: &Plan, constraints: &Constraints) -> String {
    let asked: Vec<String> =
        flags(constraints).into_iter().map(|(flag, value)| format!("`{flag} {value}`")).collect();
    let limits = if asked.is_empty() { String::new() } else { format!(" with {}", asked.join(" ")) };
    let mut refused: Vec<&Refused> =
        plan.refused.iter().filter(|refused| constraints.admits(&refused.placement)).collect();
    // A missing device comes first: no engine and no weights would help.
    let is_absent =
        |refused: &Refused| matches!(refused.why, Refusal::Obstacle(Obstacle::NoSuchDevice { .. }));
    if constraints.device.is_some() && refused.iter().any(|refused| is_absent(refused)) {
        refused.retain(|refused| is_absent(refused));
    }
    let groups = groups(refused);
    let mut text = match groups.as_slice() {
        [] => format!("this model has no placement{limits}\n"),
        [first, rest @ ..] if !asked.is_empty() && rest.iter().all(|group| group.reason == first.reason) => {
            let remedy = first.remedy.as_ref().filter(|remedy| remedy.is_actionable());
            let remedy = remedy.map(|remedy| format!("hint: {remedy}\n")).unwrap_or_default();
            format!("no placement works for this model{limits}: {}\n{remedy}", first.reason)
        }
        groups => format!("no placement works for this model{limits}\n{}", lines(groups)),
    };
    let instead = instead(plan, constraints);
    if !instead.is_empty() {
        let _ = writeln!(text, "hint: use {}", instead.join(" or "));
    }
    text
}

/// The constraints as command-line flags.
fn flags(constraints: &Constraints) -> Vec<(&'static str, String)> {
    let flags = [
        ("--engine", constraints.engine.map(|engine| engine.to_string())),
        ("--device", constraints.device.map(|device| device.to_string())),
        ("--dtype", constraints.dtype.map(|dtype| dtype.to_string())),
        ("--weights", constraints.weights.clone()),
    ];
    flags.into_iter().filter_map(|(flag, value)| Some((flag, value?))).collect()
}

/// Flags that lead to a placement without obstacles, each a replacement of one that was given.
fn instead(plan: &Plan, constraints: &Constraints) -> Vec<String> {
    let open = plan.refused.iter().filter(|refused| matches!(refused.why, Refusal::NotRequested));
    let open: Vec<&Placement> = open.map(|refused| &refused.placement).collect();
    let without = |flag: &str| {
        let mut constraints = constraints.clone();
        match flag {
            "--engine" => constraints.engine = None,
            "--device" => constraints.device = None,
            "--dtype" => constraints.dtype = None,
            _ => constraints.weights = None,
        }
        constraints
    };
    let value = |flag: &str, placement: &Placement| match flag {
        "--engine" => placement.engine.to_string(),
        "--device" => placement.device.to_string(),
        "--dtype" => placement.dtype.to_string(),
        _ => placement.weights.clone(),
    };
    let mut found: Vec<String> = Vec::new();
    for (flag, _) in flags(constraints) {
        let wider = without(flag);
        for placement in open.iter().filter(|placement| wider.admits(placement)) {
            let line = format!("`{flag} {}`", value(flag, placement));
            if !found.contains(&line) {
                found.push(line);
            }
        }
    }
    found
}

/// The band of a placement; an unknown band names its reference.
fn band(viable: &Viable) -> String {
    match viable.band {
        Band::Unknown if viable.is_own_reference => "band unknown, reference: itself".to_owned(),
        Band::Unknown => "band unknown, the reference is not f32".to_owned(),
        Band::Exact | Band::Half | Band::Coarse => viable.band.to_string(),
    }
}

/// Refusals with the same engine, device and reason.
pub struct Group<'a> {
    /// The refused placements.
    pub placements: Vec<&'a Placement>,
    /// The placement, or a pattern for several: `candle/metal:0/*`.
    pub label: String,
    /// The stable code.
    pub code: &'static str,
    /// The reason.
    pub reason: String,
    /// What would remove the obstacle.
    pub remedy: Option<Remedy>,
}

/// The plan's refusals, grouped by engine, device and reason.
pub fn grouped(plan: &Plan) -> Vec<Group<'_>> {
    groups(&plan.refused)
}

fn groups<'a>(all: impl IntoIterator<Item = &'a Refused>) -> Vec<Group<'a>> {
    let mut groups: Vec<Group<'a>> = Vec::new();
    for refused in all {
        let (code, reason, remedy) = match &refused.why {
            Refusal::Obstacle(obstacle) => (obstacle.code(), obstacle.to_string(), Some(obstacle.remedy())),
            Refusal::Band { band: Band::Unknown, .. } => {
                let reason = "its accuracy against f32 is unknown: the reference is not f32".to_owned();
                let remedy = Remedy::AllowBand { band: Band::Half.to_string(), or_f32_weights: true };
                ("band", reason, Some(remedy))
            }
            Refusal::Band { band, error, accuracy } => {
                let cosines = accuracy.map(|accuracy| format!(", {accuracy}")).unwrap_or_default();
                let reason = format!("its accuracy is {band}: {error} from the reference's{cosines}");
                let remedy = Remedy::AllowBand { band: band.to_string(), or_f32_weights: false };
                ("band", reason, Some(remedy))
            }
            Refusal::NotRequested => ("not_requested", "was not asked for".to_owned(), None),
            Refusal::NotTried => ("not_tried", "was not tried".to_owned(), None),
        };
        let same = |group: &&mut Group<'a>| {
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
