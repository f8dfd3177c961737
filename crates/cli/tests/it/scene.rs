//! The command in a folder of its own, and what it answered.

use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use sconce_testkit::goldens;
use serde_json::Value;
use tempfile::TempDir;

/// A folder for evidence, the hub's cache and files; the models lie in the folder that commands run in.
pub(crate) struct Scene {
    folder: TempDir,
}

/// What a command answered.
pub(crate) struct Answer {
    pub(crate) code: i32,
    pub(crate) data: String,
    pub(crate) words: String,
}

impl Scene {
    pub(crate) fn new() -> Scene {
        Scene { folder: tempfile::tempdir().expect("a folder") }
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn with(&self, name: &str, content: impl AsRef<[u8]>) -> String {
        fs::write(self.file(name), content).expect("a file can be written");
        self.name(name)
    }

    pub(crate) fn name(&self, name: &str) -> String {
        self.file(name).to_str().expect("a path that is text").to_owned()
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sconce"));
        command
            .args(arguments)
            .current_dir(goldens::folder(""))
            .env("SCONCE_HOME", self.file("home"))
            .env("HF_HOME", self.file("hub"))
            .env("COLUMNS", "100")
            .env("ORT_DYLIB_PATH", self.file("no-such-library"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        for name in ["HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_ENDPOINT", "HF_TOKEN", "HF_HUB_OFFLINE"] {
            command.env_remove(name);
        }
        command
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Answer {
        self.run_with(arguments, "")
    }

    pub(crate) fn run_with(&self, arguments: &[&str], input: impl AsRef<[u8]>) -> Answer {
        let mut child = self.command(arguments).spawn().expect("the command starts");
        let mut stdin = child.stdin.take().expect("an input");
        // A command that fails early does not read on.
        let _ = stdin.write_all(input.as_ref());
        drop(stdin);
        let output = child.wait_with_output().expect("the command ends");
        let text = |bytes| String::from_utf8(bytes).expect("text");
        let code = output.status.code().expect("an exit code");
        Answer { code, data: text(output.stdout), words: text(output.stderr) }
    }
}

impl Answer {
    #[track_caller]
    pub(crate) fn succeeds(self) -> Answer {
        assert_eq!(self.code, 0, "{}", self.words);
        self
    }

    /// It ends with `code`, no data, and all of `words`.
    #[track_caller]
    pub(crate) fn fails(&self, code: i32, words: &[&str]) {
        assert_eq!((self.code, self.data.as_str()), (code, ""), "{}", self.words);
        assert!(self.words.starts_with("error: ") && !self.words.contains("panicked"), "{}", self.words);
        for word in words {
            assert!(self.words.contains(word), "no `{word}` in: {}", self.words);
        }
    }

    pub(crate) fn lines(&self) -> Vec<Value> {
        self.data.lines().map(|line| serde_json::from_str(line).expect("a line is JSON")).collect()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.data).expect("the data is JSON")
    }
}

pub(crate) fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().expect("a list").iter().map(|x| x.as_f64().expect("a number")).collect()
}
