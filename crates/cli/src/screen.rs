//! What a person sees: tables, bars and complaints. Data goes to standard output, all else to standard error.

use comfy_table::{ContentArrangement, Table, presets};
use indicatif::{ProgressBar, ProgressStyle};
use sconce::Event;
use sconce::hub::Progress;

/// An error with its causes, and hints on lines of their own.
pub(crate) fn complain(error: &anyhow::Error) {
    eprintln!("error: {error:#}");
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
    table.to_string().lines().map(|line| line.trim_end()).collect::<Vec<_>>().join("\n")
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
                eprintln!("waiting for another process that fetches `{name}`")
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
