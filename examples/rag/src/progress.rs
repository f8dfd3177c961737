//! Progress bars.

use indicatif::{ProgressBar, ProgressStyle};
use sconce::hub::Progress;
use sconce::{Event, Model};

/// A bar of `total` steps. Without a terminal nothing is drawn.
pub fn bar(message: String, total: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg} {wide_bar} {human_pos}/{human_len}");
    let bar = ProgressBar::new(total).with_message(message);
    match style {
        Ok(style) => bar.with_style(style.progress_chars("=> ")),
        Err(_) => bar,
    }
}

/// Opens a model and shows downloads and proofs.
pub fn open(name: &str) -> Result<Model, sconce::Error> {
    let progress = bar(name.to_owned(), 0);
    let show = |message: String, done: u64, total: u64| {
        progress.set_message(message);
        progress.set_length(total);
        progress.set_position(done);
    };
    let model = Model::builder(name).open_with_progress(&mut |event| match event {
        Event::Proving { placement, done, total } => {
            show(format!("proving {placement} for {name}"), done as u64, total as u64);
        }
        Event::Hashing { file, done, total } => show(format!("hashing {file}"), done, total),
        Event::Loading { done, total, .. } => show(format!("loading {name}"), done, total),
        Event::Hub(Progress::File { name, done, total }) => show(format!("downloading {name}"), done, total),
        Event::Retrying { .. } | Event::Hub(_) => {}
    });
    progress.finish_and_clear();
    model
}
