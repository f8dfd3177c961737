//! A plan in words.

use std::fmt::Write;

use sconce_core::obstacle::Obstacle;
use sconce_core::placement::Placement;

use crate::band::Band;
use crate::plan::{Constraints, Plan, Refusal, Refused, Viable};

/// A plan in words: what was chosen, what comes next, and every refusal with its remedy.
pub fn explain(plan: &Plan) -> String {
    let mut text = String::new();
    match &plan.chosen {
        Some(chosen) => {
            let rate = chosen.texts_per_second;
            let band = band(chosen);
            let _ = writeln!(text, "chosen: {} ({band}, about {rate:.0} texts/s)", chosen.placement);
        }
        None => text.push_str("chosen: none\n"),
    }
    for fallback in &plan.fallbacks {
        let use_ = if fallback.replays { "next" } else { "also works" };
        let note = fallback.note.as_ref().map(|note| format!(", {note}")).unwrap_or_default();
        let _ = writeln!(text, "{use_}: {} ({}{note})", fallback.placement, band(fallback));
    }
    text += &lines(&grouped(plan));
    if let Some(beaten) = plan.beaten_accelerator() {
        let _ = writeln!(text, "{} works here and is slower than the processor", beaten.placement.device);
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

/// Why nothing that `constraints` admits works: what was asked for, why it can't be used, and what can be used instead.
/// Placements that were not asked for are left out.
pub fn unmet(plan: &Plan, constraints: &Constraints) -> String {
    let asked: Vec<String> =
        flags(constraints).into_iter().map(|(flag, value)| format!("`{flag} {value}`")).collect();
    let limits = if asked.is_empty() { String::new() } else { format!(" with {}", asked.join(" ")) };
    let mut refused: Vec<&Refused> =
        plan.refused.iter().filter(|refused| constraints.admits(&refused.placement)).collect();
    // Where the device itself is missing, no engine and no weights would help.
    let is_absent =
        |refused: &Refused| matches!(refused.why, Refusal::Obstacle(Obstacle::NoSuchDevice { .. }));
    if constraints.device.is_some() && refused.iter().any(|refused| is_absent(refused)) {
        refused.retain(|refused| is_absent(refused));
    }
    let groups = groups(refused);
    let mut text = match groups.as_slice() {
        [] => format!("this model has no placement{limits}\n"),
        [first, rest @ ..] if !asked.is_empty() && rest.iter().all(|group| group.reason == first.reason) => {
            let remedy = first.remedy.as_ref().filter(|remedy| !remedy.starts_with("none"));
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

/// What the constraints limits placements to, as the flags of the command.
fn flags(constraints: &Constraints) -> Vec<(&'static str, String)> {
    let flags = [
        ("--engine", constraints.engine.map(|engine| engine.to_string())),
        ("--device", constraints.device.map(|device| device.to_string())),
        ("--dtype", constraints.dtype.map(|dtype| dtype.to_string())),
        ("--weights", constraints.weights.clone()),
    ];
    flags.into_iter().filter_map(|(flag, value)| Some((flag, value?))).collect()
}

/// Flags that lead to a placement nothing is known against, each in the place of one that was given.
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

/// The band of a placement. An unknown one is told with what it was compared with.
fn band(viable: &Viable) -> String {
    match viable.band {
        Band::Unknown if viable.is_own_reference => "band unknown, reference: itself".to_owned(),
        Band::Unknown => "band unknown, the reference is not f32".to_owned(),
        Band::Exact | Band::Half | Band::Coarse => viable.band.to_string(),
    }
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
    groups(&plan.refused)
}

fn groups<'a>(all: impl IntoIterator<Item = &'a Refused>) -> Vec<Group<'a>> {
    let mut groups: Vec<Group<'a>> = Vec::new();
    for refused in all {
        let (code, reason, remedy) = match &refused.why {
            Refusal::Obstacle(obstacle) => (obstacle.code(), obstacle.to_string(), Some(obstacle.remedy())),
            Refusal::Band { band: Band::Unknown, .. } => {
                let reason =
                    "nothing says how near its numbers lie to f32: the reference is not f32".to_owned();
                let remedy = "allow it with `--band half`, or put f32 weights of the model into its folder";
                ("band", reason, Some(remedy.to_owned()))
            }
            Refusal::Band { band, error, accuracy } => {
                let cosines = accuracy.map(|accuracy| format!(", {accuracy}")).unwrap_or_default();
                let reason = format!("its numbers are {band}: {error} from the reference's{cosines}");
                ("band", reason, Some(format!("allow it with `--band {band}`")))
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
