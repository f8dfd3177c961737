//! Writes a tiny random language model with the chat template of a real one, for tests of clients.
//!
//!     byte_model FOLDER TEMPLATE

use std::fs;
use std::path::PathBuf;

use sconce_testkit::{byte_model, goldens};

fn main() {
    let mut arguments = std::env::args().skip(1);
    let (Some(folder), Some(template)) = (arguments.next().map(PathBuf::from), arguments.next()) else {
        panic!("usage: byte_model FOLDER TEMPLATE");
    };
    fs::create_dir_all(&folder).expect("a folder");
    byte_model::write(&folder, Some(&goldens::chat_template(&template)));
}
