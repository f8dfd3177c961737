//! What a person sees: tables, bars and complaints. Data goes to standard output, all else to standard error.

use std::fmt::Write as _;
use std::io::{self, Write};

use comfy_table::{ContentArrangement, Table, presets};
use indicatif::{ProgressBar, ProgressStyle};
use sconce::hub::Progress;
use sconce::planner::explain::{Group, grouped};
use sconce::{Event, Plan};
use serde::Serialize;

/// Prints an error with its causes, and hints on lines of their own.
pub(crate) fn complain(error: &anyhow::Error) {
    say(&format!("error: {error:#}"));
}

/// Writes a line to standard error. A reader that has gone is ignored, where `eprintln!` would panic.
pub(crate) fn say(line: &str) {
    let _ = writeln!(io::stderr().lock(), "{line}");
}

/// Puts data on standard output.
pub(crate) fn print(text: &str) -> io::Result<()> {
    let mut output = io::stdout().lock();
    output.write_all(text.as_bytes())?;
    output.flush()
}

/// Puts a value on standard output as JSON.
pub(crate) fn print_json(value: &impl Serialize) -> anyhow::Result<()> {
    Ok(print(&format!("{}\n", serde_json::to_string_pretty(value)?))?)
}

/// Whether whoever read the output has gone, as `head` does: nothing that anybody wants to hear of.
pub(crate) fn nobody_reads(error: &anyhow::Error) -> bool {
    let io = |cause: &(dyn std::error::Error + 'static)| {
        let json = cause.downcast_ref::<serde_json::Error>().and_then(serde_json::Error::io_error_kind);
        json.or_else(|| cause.downcast_ref::<io::Error>().map(io::Error::kind))
    };
    error.chain().filter_map(io).any(|kind| kind == io::ErrorKind::BrokenPipe)
}

/// `1 text`, `2 texts`.
pub(crate) fn counted(count: usize, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}

/// A text as far as it fits beside figures.
pub(crate) fn shortened(text: &str) -> String {
    const LETTERS: usize = 70;
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if line.chars().count() <= LETTERS {
        return line;
    }
    line.chars().take(LETTERS - 1).chain(['…']).collect()
}

/// A plan's refusals, those of one engine that share a reason together.
pub(crate) fn refusals(plan: &Plan) -> String {
    let mut groups: Vec<Group<'_>> = Vec::new();
    for group in grouped(plan) {
        let engine = group.placements[0].engine;
        let same =
            |other: &&mut Group<'_>| other.reason == group.reason && other.placements[0].engine == engine;
        match groups.iter_mut().find(same) {
            Some(other) => {
                other.label = format!("{}, {}", other.label.trim_end(), group.label);
                other.placements.extend(group.placements);
            }
            None => groups.push(group),
        }
    }
    let mut text = String::new();
    for group in groups {
        let engine = group.placements[0].engine;
        let all = plan.viable().map(|viable| &viable.placement);
        let all = all.chain(plan.refused.iter().map(|refused| &refused.placement));
        let whole = all.filter(|placement| placement.engine == engine).count() == group.placements.len();
        let label = if whole { format!("{engine}/*") } else { group.label };
        let _ = writeln!(text, "refused  {}  [{}]", label.trim_end(), group.code);
        let _ = writeln!(text, "         {}", group.reason);
        if let Some(remedy) = group.remedy {
            let _ = writeln!(text, "         hint: {remedy}");
        }
    }
    text
}

/// A plain table that is readable without colour.
pub(crate) fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table
        .load_style(presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_header(header.to_vec());
    table
}

/// A table as text, without the spaces at the ends of lines.
pub(crate) fn rendered(table: &Table) -> String {
    table.to_string().lines().map(str::trim_end).collect::<Vec<_>>().join("\n")
}

/// Draws events as bars on standard error; nothing is drawn where that is no terminal.
#[derive(Default)]
pub(crate) struct Bars {
    current: Option<(String, ProgressBar)>,
}

impl Bars {
    pub(crate) fn draw(&mut self, event: &Event<'_>) {
        match event {
            Event::Proving { placement, done, total } => {
                let name = format!("proving {}/{}/{}", placement.engine, placement.device, placement.dtype);
                self.bar(&name, *total as u64, "{msg} {wide_bar} {pos}/{len}").set_position(*done as u64);
            }
            Event::Retrying { placement, attempt, why } => {
                self.clear();
                let place = format!("{}/{}/{}", placement.engine, placement.device, placement.dtype);
                eprintln!(
                    "note: {place} is tried again (attempt {attempt}); the last attempt ended with: {why}"
                );
            }
            Event::Hashing { file, done, total } => {
                self.bar(
                    &format!("hashing {file}"),
                    *total,
                    "{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec}",
                )
                .set_position(*done);
            }
            Event::Hub(Progress::File { name, done, total }) => {
                self.bar(name, *total, "{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec}")
                    .set_position(*done);
            }
            Event::Hub(Progress::Listed { files: 0, .. }) => {}
            Event::Hub(Progress::Listed { files, bytes }) => {
                let bytes = bytes
                    .map(|bytes| format!(", {}", sconce::core::obstacle::bytes(bytes)))
                    .unwrap_or_default();
                eprintln!("fetching {files} files{bytes}");
            }
            Event::Hub(Progress::Waiting { name }) => {
                eprintln!("waiting for another process that fetches `{name}`");
            }
            Event::Hub(Progress::FromCache { why }) => eprintln!("note: taken from the cache, because {why}"),
        }
    }

    fn bar(&mut self, name: &str, total: u64, template: &str) -> &ProgressBar {
        if self.current.as_ref().is_none_or(|(current, bar)| current != name || bar.length() != Some(total)) {
            self.clear();
            let bar = ProgressBar::new(total).with_message(name.to_owned());
            if let Ok(style) = ProgressStyle::with_template(template) {
                bar.set_style(style.progress_chars("=> "));
            }
            self.current = Some((name.to_owned(), bar));
        }
        &self.current.as_ref().expect("a bar was just made").1
    }

    pub(crate) fn clear(&mut self) {
        if let Some((_, bar)) = self.current.take() {
            bar.finish_and_clear();
        }
    }
}
