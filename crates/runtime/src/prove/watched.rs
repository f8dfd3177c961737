//! Cases on a thread of this program, with a note on disk of what is underway: if the program dies, the next
//! start reads the note.

use std::fs::{self, File};
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use sconce_core::engine::Engine;
use sconce_core::obstacle::Obstacle;
use sconce_core::placement::Placement;

use super::{Answers, Question, child};
use crate::fingerprint::hash;

/// Cases on a watched thread.
pub(crate) struct Watched {
    folder: PathBuf,
}

impl Watched {
    pub(super) fn new(folder: &Path) -> Watched {
        Watched { folder: folder.to_owned() }
    }

    fn note(&self, placement: &Placement) -> PathBuf {
        self.folder.join(format!("underway-{}.txt", hash(placement)))
    }

    pub(super) fn ask(
        &self,
        engine: &Arc<dyn Engine>,
        question: &Question,
        limit: Duration,
        answered: &mut dyn FnMut(usize),
    ) -> Answers {
        let path = self.note(&question.placement);
        let note = Note::take(&path);
        if let Some(case) = note.as_ref().and_then(|note| note.read()) {
            let _ = fs::remove_file(&path);
            return vec![Err(Obstacle::Crashed {
                case,
                how: "an earlier run of this program ended there".to_owned(),
            })];
        }
        let (sender, lines) = mpsc::channel();
        let (engine, asked, noted) = (Arc::clone(engine), question.clone(), note.clone());
        thread::spawn(move || {
            for case in &asked.cases {
                if let Some(note) = &noted {
                    note.write(&case.to_string());
                }
                let answer = child::answer(engine.as_ref(), &asked, case);
                let stop = super::is_last(case, &answer);
                // What this process holds is not what the model alone would.
                let answer = answer.map(|sample| sconce_core::probe::Sample { memory: None, ..sample });
                if sender.send(answer).is_err() || stop {
                    return;
                }
            }
        });
        let mut answers = Answers::new();
        for case in &question.cases {
            let answer = match lines.recv_timeout(limit) {
                Ok(answer) => answer,
                Err(RecvTimeoutError::Timeout) => {
                    Err(Obstacle::TimedOut { case: case.to_string(), seconds: limit.as_secs_f64() })
                }
                Err(RecvTimeoutError::Disconnected) => break,
            };
            let stop = super::is_last(case, &answer);
            answers.push(answer);
            answered(answers.len());
            if stop {
                break;
            }
        }
        if let Some(note) = note {
            note.write("");
            let _ = fs::remove_file(path);
        }
        answers
    }
}

/// A note of what is underway. It is locked as long as its writer lives, so that a run beside this one is not
/// taken for an earlier one that died.
struct Note(File);

impl Note {
    /// The note at `path`; none where somebody holds it or it can't be written, and then none is kept.
    fn take(path: &Path) -> Option<Arc<Note>> {
        fs::create_dir_all(path.parent()?).ok()?;
        let file = File::options().read(true).write(true).create(true).truncate(false).open(path).ok()?;
        file.try_lock().ok()?;
        Some(Arc::new(Note(file)))
    }

    /// What a run that died has left in it.
    fn read(&self) -> Option<String> {
        let mut text = String::new();
        (&self.0).read_to_string(&mut text).ok()?;
        Some(text).filter(|text| !text.is_empty())
    }

    fn write(&self, text: &str) {
        let mut file = &self.0;
        // A note that can't be written is missed only by whoever starts after a crash.
        let _ = file.set_len(0).and_then(|()| file.rewind()).and_then(|()| file.write_all(text.as_bytes()));
    }
}
