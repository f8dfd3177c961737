//! Terminal output: data and tables on standard output; errors and progress bars on standard error.

use std::fmt::Write as _;
use std::io::{self, Write};

use comfy_table::{ContentArrangement, Table, presets};
use indicatif::{ProgressBar, ProgressStyle};
use sconce::hub::Progress;
use sconce::planner::explain::{Group, grouped};
use sconce::{Event, Plan};
use serde::Serialize;

/// Prints an error with its causes and hints to standard error.
pub(crate) fn print_error(error: &anyhow::Error) {
    eprint_line(&format!("error: {error:#}"));
}

/// Writes a line to standard error. Ignores a closed pipe, where `eprintln!` would panic.
pub(crate) fn eprint_line(line: &str) {
    let _ = writeln!(io::stderr().lock(), "{line}");
}

/// Writes text to standard error, without a line break.
pub(crate) fn eprint_text(text: &str) {
    let mut output = io::stderr().lock();
    let _ = output.write_all(text.as_bytes()).and_then(|()| output.flush());
}

/// Writes text to standard output.
pub(crate) fn print(text: &str) -> io::Result<()> {
    let mut output = io::stdout().lock();
    output.write_all(text.as_bytes())?;
    output.flush()
}

/// Writes a value to standard output as JSON.
pub(crate) fn print_json(value: &impl Serialize) -> anyhow::Result<()> {
    Ok(print(&format!("{}\n", serde_json::to_string_pretty(value)?))?)
}

/// Whether the reader of standard output closed the pipe, as `head` does. That is not reported as an error.
pub(crate) fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let io = |cause: &(dyn std::error::Error + 'static)| {
        let json = cause.downcast_ref::<serde_json::Error>().and_then(serde_json::Error::io_error_kind);
        json.or_else(|| cause.downcast_ref::<io::Error>().map(io::Error::kind))
    };
    error.chain().filter_map(io).any(|kind| kind == io::ErrorKind::BrokenPipe)
}

/// `1 text`, `2 texts`.
pub(crate) fn pluralize(count: usize, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}

/// A text on one line, shortened to fit a table column.
pub(crate) fn shorten(text: &str) -> String {
    const MAX_CHARS: usize = 70;
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if line.chars().count() <= MAX_CHARS {
        return line;
    }
    line.chars().take(MAX_CHARS - 1).chain(['…']).collect()
}

/// The refused placements of a plan, grouped by engine and reason.
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

/// A table without borders or colors.
pub(crate) fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table
        .load_style(presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_header(header.to_vec());
    table
}

/// Renders a table without trailing spaces.
pub(crate) fn rendered(table: &Table) -> String {
    table.to_string().lines().map(str::trim_end).collect::<Vec<_>>().join("\n")
}

/// Progress bars for runtime events on standard error. Hidden if it is not a terminal.
#[derive(Default)]
pub(crate) struct ProgressBars {
    current: Option<(String, ProgressBar)>,
    download: Option<Download>,
}

/// A bar over all files of a download.
struct Download {
    bar: ProgressBar,
    /// Bytes of the files before the current one.
    before: u64,
    /// Name and size of the current file.
    file: (String, u64),
}

impl Download {
    fn new(bytes: u64) -> Download {
        let template = "{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec}, {eta} left";
        Download { bar: styled(ProgressBar::new(bytes), template), before: 0, file: (String::new(), 0) }
    }

    fn advance(&mut self, name: &str, done: u64, total: u64) {
        if self.file.0 != name {
            self.before += self.file.1;
            self.file = (name.to_owned(), total);
            self.bar.set_message(name.to_owned());
        }
        self.bar.set_position(self.before + done);
    }
}

fn styled(bar: ProgressBar, template: &str) -> ProgressBar {
    match ProgressStyle::with_template(template) {
        Ok(style) => bar.with_style(style.progress_chars("=> ")),
        Err(_) => bar,
    }
}

impl ProgressBars {
    pub(crate) fn draw(&mut self, event: &Event<'_>) {
        match event {
            Event::Proving { placement, done, total } => {
                let name = format!("proving {}/{}/{}", placement.engine, placement.device, placement.dtype);
                self.bar(&name, *total as u64, "{msg} {wide_bar} {pos}/{len}").set_position(*done as u64);
            }
            Event::Retrying { placement, attempt, why } => {
                self.clear();
                let place = format!("{}/{}/{}", placement.engine, placement.device, placement.dtype);
                eprintln!("note: retrying {place} (attempt {attempt}); the last attempt failed with: {why}");
            }
            Event::Hashing { file, done, total } => {
                self.bar(
                    &format!("hashing {file}"),
                    *total,
                    "{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec}",
                )
                .set_position(*done);
            }
            Event::Loading { placement, done, total } => {
                let name = format!("loading {}/{}/{}", placement.engine, placement.device, placement.dtype);
                self.bar(&name, *total, "{msg} {wide_bar} {bytes}/{total_bytes}").set_position(*done);
            }
            Event::Hub(Progress::File { name, done, total }) => {
                if let Some(download) = &mut self.download {
                    download.advance(name, *done, *total);
                    return;
                }
                self.bar(name, *total, "{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec}")
                    .set_position(*done);
            }
            Event::Hub(Progress::Listed { files: 0, .. }) => {}
            Event::Hub(Progress::Listed { files, bytes }) => {
                let size = bytes
                    .map(|bytes| format!(", {}", sconce::core::obstacle::bytes(bytes)))
                    .unwrap_or_default();
                eprintln!("downloading {}{size}", pluralize(*files, "file"));
                self.download = bytes.map(Download::new);
            }
            Event::Hub(Progress::Waiting { name }) => {
                eprintln!("waiting for another process that downloads `{name}`");
            }
            Event::Hub(Progress::FromCache { why }) => eprintln!("note: using the cache, because {why}"),
        }
    }

    fn bar(&mut self, name: &str, total: u64, template: &str) -> &ProgressBar {
        if self.current.as_ref().is_none_or(|(current, bar)| current != name || bar.length() != Some(total)) {
            self.clear();
            let bar = styled(ProgressBar::new(total).with_message(name.to_owned()), template);
            self.current = Some((name.to_owned(), bar));
        }
        &self.current.as_ref().expect("a bar was just created").1
    }

    pub(crate) fn clear(&mut self) {
        if let Some((_, bar)) = self.current.take() {
            bar.finish_and_clear();
        }
        if let Some(download) = self.download.take() {
            download.bar.finish_and_clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bar_of_a_download_covers_all_files() {
        let mut download = Download::new(100);
        for (name, done, total, position) in
            [("a", 0, 30, 0), ("a", 30, 30, 30), ("b", 10, 70, 40), ("b", 70, 70, 100)]
        {
            download.advance(name, done, total);
            assert_eq!(download.bar.position(), position, "{name} {done}");
        }
    }
}
