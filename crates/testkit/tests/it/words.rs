//! Old names stay gone: identifiers, files and metrics that were renamed to the field's words.

use std::path::Path;

use crate::code::{code, has_word};
use crate::tree::{expect_none, files};

/// Files that may name old words: release notes, and this list.
const RECORDS: [&str; 2] = ["CHANGELOG.md", "crates/testkit/tests/it/words.rs"];

/// An old identifier and its replacement.
struct Old {
    word: &'static str,
    now: &'static str,
    /// Path prefixes in which the identifier is an old name; elsewhere it has its ordinary meaning.
    within: &'static [&'static str],
}

const fn old(word: &'static str, now: &'static str) -> Old {
    Old { word, now, within: &["crates/"] }
}

/// Crates below the runtime.
const LOWER: &[&str] =
    &["crates/core/", "crates/planner/", "crates/kernels/", "crates/engines/", "crates/testkit/src/"];
/// Crates of models and kernels.
const MODELS: &[&str] = &["crates/kernels/", "crates/engines/"];
/// Crates above the kernels, in which a lane is no SIMD lane.
const UPPER: &[&str] = &["crates/runtime/", "crates/worker/", "crates/http/", "crates/cli/"];

const IDENTIFIERS: &[Old] = &[
    old("hands", "concurrency"),
    old("max_numbers", "max_values"),
    old("least_seconds", "min_seconds"),
    Old { word: "Host", now: "LoadedModel", within: &["crates/worker/src/"] },
    old("Lane", "DeviceExecutor"),
    Old { word: "lane", now: "executor", within: UPPER },
    Old { word: "lanes", now: "executors", within: UPPER },
    old("crew", "worker pool"),
    old("hire", "spawn"),
    old("Chair", "Candidate"),
    old("chair", "candidate"),
    old("Seat", "ActivePlacement"),
    old("seat", "active placement"),
    old("Keeper", "ModelManager"),
    old("keeper", "model manager"),
    old("Room", "EvictionPolicy"),
    Old { word: "room", now: "scratch", within: LOWER },
    old("Ledger", "MemoryEstimator"),
    old("Purse", "RateLimiter"),
    old("purse", "rate limiter"),
    old("Shares", "FairQuota"),
    old("Owner", "Tenant"),
    old("Guest", "Principal"),
    old("guest", "principal"),
    old("Herald", "HeartbeatClient"),
    old("herald", "heartbeat"),
    old("door", "low_level"),
    old("Seeing", "Telemetry"),
    old("seeing", "telemetry"),
    old("Sight", "TelemetryConfig"),
    old("sight", "telemetry config"),
    old("Stretch", "BatchTiming"),
    old("Wish", "Constraints"),
    old("wish", "constraints"),
    old("NotWished", "NotRequested"),
    old("Sound", "Viable"),
    old("Receipt", "AccuracyReport"),
    old("receipt", "accuracy report"),
    old("Trip", "IncidentKind"),
    Old { word: "Span", now: "AttentionWindow", within: MODELS },
    Old { word: "span", now: "window", within: MODELS },
    old("Reach", "AttentionMask"),
    Old { word: "reach", now: "mask", within: MODELS },
    old("Turning", "BatchRope"),
    old("turning", "rope"),
    old("Angles", "RopeTable"),
    old("Places", "RelativeProjections"),
    Old { word: "places", now: "relative projections", within: MODELS },
    Old { word: "alike", now: "length_buckets", within: MODELS },
    old("telling", "probe_pooling"),
    old("GLANCE", "POLL_INTERVAL"),
    old("patience", "timeout"),
    old("Said", "Sourced"),
    old("Subject", "ModelSpec"),
    old("Want", "OutputKind"),
    old("Mishap", "BatchFault"),
    old("Spread", "NormStatistics"),
    old("Finish", "EpilogueBf16"),
    old("soften", "softmax"),
    old("Unfit", "Unsupported"),
    old("give_back", "release_free_memory"),
];

/// Old stems of files and names of folders in `src`.
const FILES: &[&str] = &[
    "lane",
    "crew",
    "chair",
    "seat",
    "keeper",
    "room",
    "ledger",
    "purse",
    "shares",
    "owner",
    "guest",
    "herald",
    "returning",
    "opening",
    "asks",
    "call",
    "door",
    "seeing",
    "sight",
    "stretch",
    "wish",
    "sound",
    "receipt",
    "reach",
    "turning",
    "places",
    "alike",
    "telling",
    "finish",
    "harmless",
];

/// Old metrics, codes and fields, in every text file.
const TEXTS: &[&str] = &["sconce_hands", "not_wished", "said_by", "docs/seeing.md"];

fn is_exempt(path: &str) -> bool {
    RECORDS.contains(&path)
}

#[test]
fn no_code_uses_an_old_identifier() {
    let mut complaints = Vec::new();
    for file in files().iter().filter(|file| file.is_rust() && !is_exempt(&file.path)) {
        let within = |old: &&Old| old.within.iter().any(|prefix| file.path.starts_with(prefix));
        let words: Vec<&Old> = IDENTIFIERS.iter().filter(within).collect();
        for (number, line) in code(&file.text).lines().enumerate() {
            for Old { word, now, .. } in words.iter().filter(|old| has_word(line, old.word)) {
                complaints.push(format!("{}:{}: `{word}` is now {now}", file.path, number + 1));
            }
        }
    }
    expect_none(&complaints);
}

#[test]
fn no_file_has_an_old_name() {
    let mut complaints = Vec::new();
    for file in files().iter().filter(|file| file.is_in("src") && !is_exempt(&file.path)) {
        let stem = Path::new(&file.path).with_extension("");
        let mut parts = stem.iter().filter_map(|part| part.to_str());
        if let Some(name) = parts.find(|part| FILES.contains(part)) {
            complaints.push(format!("{}: `{name}` is an old name: use the field's word", file.path));
        }
    }
    expect_none(&complaints);
}

#[test]
fn no_text_names_an_old_metric_or_code() {
    let mut complaints = Vec::new();
    for file in files().iter().filter(|file| !is_exempt(&file.path)) {
        for (number, line) in file.text.lines().enumerate() {
            for text in TEXTS.iter().filter(|text| line.contains(*text)) {
                complaints.push(format!("{}:{}: `{text}` was renamed", file.path, number + 1));
            }
        }
    }
    expect_none(&complaints);
}
