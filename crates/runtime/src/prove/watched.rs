//! Cases on a thread of this program, with a note on disk of what is underway: if the program dies, the next
//! start reads the note.

use std::fs;
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
        let note = self.note(&question.placement);
        if let Ok(case) = fs::read_to_string(&note) {
            let _ = fs::remove_file(&note);
            return vec![Err(Obstacle::Crashed {
                case,
                how: "an earlier run of this program ended there".to_owned(),
            })];
        }
        let _ = fs::create_dir_all(&self.folder);
        let (sender, lines) = mpsc::channel();
        let (engine, asked, noted) = (Arc::clone(engine), question.clone(), note.clone());
        thread::spawn(move || {
            for case in &asked.cases {
                let _ = fs::write(&noted, case.to_string());
                let answer = child::answer(engine.as_ref(), &asked, case);
                let stop = answer.is_err() && !super::stands_alone(case);
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
            let stop = answer.is_err() && !super::stands_alone(case);
            answers.push(answer);
            answered(answers.len());
            if stop {
                break;
            }
        }
        let _ = fs::remove_file(note);
        answers
    }
}
