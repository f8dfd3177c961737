//! Runs the built command in a temporary folder and captures its output.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use sconce_testkit::goldens;
use serde_json::Value;
use tempfile::TempDir;

/// A temporary folder for evidence, hub cache and files. Commands run in the folder of the golden models.
pub(crate) struct Sandbox {
    folder: TempDir,
    home: PathBuf,
}

/// Exit code and output of a command.
pub(crate) struct CommandOutput {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Sandbox {
    /// Evidence is shared between tests: each model is proved once.
    pub(crate) fn new() -> Sandbox {
        let home = Path::new(env!("CARGO_TARGET_TMPDIR")).join("evidence");
        Sandbox { folder: tempfile::tempdir().expect("a folder"), home }
    }

    /// With evidence of its own, in `home`.
    pub(crate) fn unproved() -> Sandbox {
        let folder = tempfile::tempdir().expect("a folder");
        let home = folder.path().join("home");
        Sandbox { folder, home }
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
            .env("SCONCE_HOME", &self.home)
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

    pub(crate) fn run(&self, arguments: &[&str]) -> CommandOutput {
        self.run_with(arguments, "")
    }

    pub(crate) fn run_with(&self, arguments: &[&str], input: impl AsRef<[u8]>) -> CommandOutput {
        let mut child = self.command(arguments).spawn().expect("the command starts");
        let mut stdin = child.stdin.take().expect("an input");
        // A command that fails early closes its standard input.
        let _ = stdin.write_all(input.as_ref());
        drop(stdin);
        let output = child.wait_with_output().expect("the command ends");
        let text = |bytes| String::from_utf8(bytes).expect("text");
        let code = output.status.code().expect("an exit code");
        CommandOutput { code, stdout: text(output.stdout), stderr: text(output.stderr) }
    }
}

impl CommandOutput {
    #[track_caller]
    pub(crate) fn succeeds(self) -> CommandOutput {
        assert_eq!(self.code, 0, "{}", self.stderr);
        self
    }

    /// Exits with `code`, an empty standard output, and all of `words` on standard error.
    #[track_caller]
    pub(crate) fn fails(&self, code: i32, words: &[&str]) {
        assert_eq!((self.code, self.stdout.as_str()), (code, ""), "{}", self.stderr);
        assert!(self.stderr.starts_with("error: ") && !self.stderr.contains("panicked"), "{}", self.stderr);
        for word in words {
            assert!(self.stderr.contains(word), "no `{word}` in: {}", self.stderr);
        }
    }

    pub(crate) fn lines(&self) -> Vec<Value> {
        self.stdout.lines().map(|line| serde_json::from_str(line).expect("a line is JSON")).collect()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).expect("the data is JSON")
    }
}

pub(crate) fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().expect("a list").iter().map(|x| x.as_f64().expect("a number")).collect()
}
