//! A NATS server for tests.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::parts;

/// A NATS server with JetStream in a temporary folder, on a port of its own. It is killed when it is dropped.
pub struct NatsServer {
    folder: TempDir,
    child: Child,
    port: u16,
}

impl NatsServer {
    /// Starts a server; `config` is added to its configuration.
    ///
    /// # Panics
    /// If it does not start.
    pub fn start(config: &str) -> NatsServer {
        let folder = tempfile::tempdir().expect("a folder");
        let store = folder.path().join("store");
        let config =
            format!("jetstream {{ store_dir: \"{}\", sync_interval: always }}\n{config}\n", store.display());
        fs::write(folder.path().join("nats.conf"), config).expect("a file");
        let child = spawn(folder.path(), "-1");
        let port = wait_for_port(folder.path(), child.id());
        NatsServer { folder, child, port }
    }

    /// Its URL.
    pub fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    /// Kills the server with SIGKILL.
    ///
    /// # Panics
    /// If it can't be killed.
    pub fn kill(&mut self) {
        self.child.kill().expect("a signal");
        self.child.wait().expect("an end");
    }

    /// Starts the server again, on the same port with the same store.
    ///
    /// # Panics
    /// If it does not start.
    pub fn restart(&mut self) {
        self.child = spawn(self.folder.path(), &self.port.to_string());
        assert_eq!(wait_for_port(self.folder.path(), self.child.id()), self.port);
    }

    /// Removes the store of a server that was killed.
    ///
    /// # Panics
    /// If it can't be removed.
    pub fn erase(&self) {
        fs::remove_dir_all(self.folder.path().join("store")).expect("the store is removed");
    }

    /// Sends a signal, such as `STOP`.
    ///
    /// # Panics
    /// If it can't be sent.
    pub fn signal(&self, name: &str) {
        let status = Command::new("kill")
            .args(["-s", name, &self.child.id().to_string()])
            .status()
            .expect("`kill` runs");
        assert!(status.success());
    }
}

impl Drop for NatsServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn spawn(folder: &Path, port: &str) -> Child {
    Command::new(parts::nats_server())
        .args(["--addr", "127.0.0.1", "--port", port, "--config", "nats.conf", "--log", "nats.log"])
        .args(["--ports_file_dir", "."])
        .current_dir(folder)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("NATS starts")
}

/// Waits until the server listens, and reads its port from the file that it writes.
fn wait_for_port(folder: &Path, pid: u32) -> u16 {
    let (file, start) = (folder.join(format!("nats-server_{pid}.ports")), Instant::now());
    while start.elapsed() < Duration::from_secs(20) {
        let url = fs::read_to_string(&file).ok().and_then(|text| {
            let ports: serde_json::Value = serde_json::from_str(&text).ok()?;
            Some(ports["nats"][0].as_str()?.to_owned())
        });
        if let Some(url) = url {
            return url.rsplit_once(':').and_then(|(_, port)| port.parse().ok()).expect("a port");
        }
        sleep(Duration::from_millis(10));
    }
    let log = fs::read_to_string(folder.join("nats.log")).unwrap_or_default();
    panic!("the NATS server does not start:\n{log}");
}
