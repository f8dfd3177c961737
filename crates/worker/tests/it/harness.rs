//! The test harness: servers with tiny models on real engines, and on fake engines with injected faults.

use std::net::{SocketAddr, TcpListener};
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use sconce::core::device::DeviceKind;
use sconce::core::engine::Engine;
use sconce::core::hardware::{Cpu, Gpu, Hardware};
use sconce::{Device, Dtype, EngineId, Model, ModelBuilder, Runtime, RuntimeBuilder};
use sconce_http::Settings as HttpSettings;
use sconce_testkit::fake::FakeEngine;
use sconce_testkit::goldens;
use sconce_worker::{LoadPolicy, Serve, Server, Settings};
use tempfile::TempDir;

use crate::client::get;

pub(crate) const METAL: Device = Device::Metal(0);

/// A server that is stopped on drop.
pub(crate) struct TestServer {
    server: Option<Server>,
    pub(crate) address: SocketAddr,
    _home: Option<TempDir>,
}

impl Deref for TestServer {
    type Target = SocketAddr;

    fn deref(&self) -> &SocketAddr {
        &self.address
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        if let Some(server) = self.server.take() {
            server.stop();
            let ended = server.wait();
            assert!(std::thread::panicking() || ended.is_ok(), "{ended:?}");
        }
    }
}

/// Settings for servers that stop quickly.
pub(crate) fn settings() -> Settings {
    Settings {
        http: HttpSettings {
            linger: Duration::from_millis(10),
            grace: Duration::from_secs(5),
            ..sconce_http::Settings::default()
        },
        load_wait: Duration::ZERO,
        ..Settings::default()
    }
}

/// Starts a server whose model is named `model` and accepts token ids. Does not wait until it is ready.
pub(crate) fn start(builder: ModelBuilder, settings: Settings, home: Option<TempDir>) -> TestServer {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let aliases = vec!["alias".to_owned()];
    let serve =
        Serve { name: "model".to_owned(), aliases, builder, load: LoadPolicy::Startup, token_ids: true };
    let server = Server::start(listener, vec![serve], settings).expect("it starts");
    TestServer { address: server.address(), server: Some(server), _home: home }
}

impl TestServer {
    /// The server itself.
    pub(crate) fn running(&self) -> &Server {
        self.server.as_ref().expect("it runs until it is dropped")
    }

    /// Waits until it is ready.
    pub(crate) fn ready(self) -> TestServer {
        let began = Instant::now();
        while get(*self, "/readyz").status != 200 {
            assert!(began.elapsed() < Duration::from_mins(4), "{}", get(*self, "/readyz").text());
            std::thread::sleep(Duration::from_millis(5));
        }
        self
    }
}

/// Evidence of real models, shared between tests.
pub(crate) fn shared_home() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("server-evidence")
}

/// A server with a tiny model on Candle, CPU and f32.
pub(crate) fn tiny(name: &str) -> TestServer {
    tiny_with(name, settings())
}

pub(crate) fn tiny_with(name: &str, settings: Settings) -> TestServer {
    start(tiny_builder(name), settings, None).ready()
}

pub(crate) fn tiny_builder(name: &str) -> ModelBuilder {
    let runtime = Runtime::builder().home(shared_home()).offline(true).build();
    let folder = goldens::folder(name);
    Model::builder(&folder.to_string_lossy()).runtime(&runtime).engine(EngineId::Candle).dtype(Dtype::F32)
}

/// tiny-bert on `engine`, on a fake Mac with one GPU.
pub(crate) fn fake_builder(engine: FakeEngine, timeout: Duration, home: &Path) -> ModelBuilder {
    let runtime = fake_runtime(engine, timeout, home).build();
    Model::builder(&goldens::folder("tiny-bert").to_string_lossy()).runtime(&runtime)
}

/// A runtime with `engine` on a fake Mac with one GPU.
pub(crate) fn fake_runtime(engine: FakeEngine, timeout: Duration, home: &Path) -> RuntimeBuilder {
    let gpu = Gpu {
        kind: Some(DeviceKind::Metal),
        index: 0,
        name: "Apple M9".to_owned(),
        memory: Some(12 << 30),
        driver: Some("Metal 4".to_owned()),
        seen_by: "a test".to_owned(),
    };
    let hardware = Hardware {
        os: "macos 15.5".to_owned(),
        arch: "aarch64".to_owned(),
        cpu: Cpu { model: "Apple M9".to_owned(), cores: 8, flags: vec!["neon".to_owned()] },
        memory: 16 << 30,
        gpus: vec![gpu],
        tools: Vec::new(),
    };
    Runtime::builder()
        .engines(vec![Arc::new(engine) as Arc<dyn Engine>])
        .hardware(hardware)
        .home(home)
        .threads(1)
        .timeout(timeout)
        .offline(true)
}

/// A server with tiny-bert on a fake engine.
pub(crate) fn fake(engine: FakeEngine, timeout: Duration) -> TestServer {
    let home = tempfile::tempdir().expect("a folder");
    let builder = fake_builder(engine, timeout, home.path());
    start(builder, settings(), Some(home)).ready()
}

/// The embeddings of tiny-bert on a fake engine without faults.
pub(crate) fn healthy(texts: &[String]) -> Vec<Vec<f32>> {
    let home = tempfile::tempdir().expect("a folder");
    let builder = fake_builder(FakeEngine::new(EngineId::Candle), Duration::from_secs(5), home.path());
    builder.open().expect("nothing is wrong").embed(texts).expect("nothing is wrong").into_vectors()
}
