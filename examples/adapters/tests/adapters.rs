//! The adapters, and unmodified clients of `sconce serve`, return the vectors of the library.
//!
//! `SCONCE_MINILM` is the folder of `all-MiniLM-L6-v2` (`scripts/parts minilm`), `SCONCE` the path of the command.

use std::env;
use std::error::Error;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use async_openai::Client;
use async_openai::config::OpenAIConfig as SwiftideConfig;
use rig_core::embeddings::{Embedding, EmbeddingsBuilder};
use rig_core::providers::openai::OpenAIConfig;
use sconce::{Device, Dtype, Model, Prompt};
use swiftide_core::EmbeddingModel;
use swiftide_core::chat_completion::errors::LanguageModelError;
use swiftide_integrations::openai::OpenAI;
use tokio::runtime::Runtime;

/// The name of the served model.
const NAME: &str = "minilm";

/// The time until the server is ready. The first start proves placements.
const STARTUP: Duration = Duration::from_mins(4);

/// The largest difference of a value over HTTP. The server may compose other batches.
const TOLERANCE: f32 = 1e-6;

type Outcome = Result<(), Box<dyn Error>>;

/// Texts of several lengths. All fit into 256 tokens: OpenAI's API rejects longer ones.
fn texts() -> Vec<String> {
    let short = ["how do I sort a list?", "list.sort() orders it in place", "the harbour at night", ""];
    short.into_iter().map(str::to_owned).chain(["a long text ".repeat(60)]).collect()
}

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|_| panic!("`{name}` is not set\nhint: README.md has the command"))
}

/// The model in f32, as the server runs it.
fn model() -> &'static Model {
    static MODEL: OnceLock<Model> = OnceLock::new();
    MODEL.get_or_init(|| {
        let builder = Model::builder(&variable("SCONCE_MINILM")).device(Device::Cpu).dtype(Dtype::F32);
        builder.open().expect("MiniLM opens")
    })
}

/// The vectors of the library.
fn expected() -> Vec<Vec<f32>> {
    model().embed(&texts()).expect("MiniLM embeds").into_vectors()
}

fn bits(vectors: &[Vec<f32>]) -> Vec<Vec<u32>> {
    vectors.iter().map(|vector| vector.iter().map(|value| value.to_bits()).collect()).collect()
}

/// The values of rig, as the library computes them.
#[expect(clippy::cast_possible_truncation, reason = "the values were f32 before")]
fn vectors(embeddings: &[Embedding]) -> Vec<Vec<f32>> {
    embeddings.iter().map(|embedding| embedding.vec.iter().map(|value| *value as f32).collect()).collect()
}

fn assert_close(actual: &[Vec<f32>], expected: &[Vec<f32>]) {
    assert_eq!(actual.len(), expected.len());
    for (index, (actual, expected)) in actual.iter().zip(expected).enumerate() {
        assert_eq!(actual.len(), expected.len());
        let differences = actual.iter().zip(expected).map(|(a, b)| (a - b).abs());
        // NaN fails.
        let close = differences.clone().all(|difference| difference <= TOLERANCE);
        assert!(close, "text {index} differs by {}", differences.fold(0.0, f32::max));
    }
}

/// A running `sconce serve`. It is terminated when the test ends.
struct Server {
    process: Child,
    address: SocketAddr,
}

impl Server {
    fn start() -> Server {
        let arguments = ["--name", NAME, "--device", "cpu", "--dtype", "f32", "--offline", "--port", "0"];
        let mut command = Command::new(variable("SCONCE"));
        command.arg("serve").arg(variable("SCONCE_MINILM")).args(arguments);
        let mut process =
            command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().expect("the server starts");
        let mut log = BufReader::new(process.stderr.take().expect("stderr is a pipe"));
        let mut line = String::new();
        log.read_line(&mut line).expect("the server logs its address");
        let address = line.trim().strip_prefix("listening on http://").and_then(|text| text.parse().ok());
        // Drain the pipe so that the log never blocks.
        thread::spawn(move || io::copy(&mut log, &mut io::sink()));
        let Some(address) = address else {
            let _ = process.kill();
            panic!("no address in: {line}");
        };
        let server = Server { process, address };
        server.wait_until_ready();
        server
    }

    fn wait_until_ready(&self) {
        let began = Instant::now();
        while !self.is_ready().is_ok_and(|ready| ready) {
            assert!(began.elapsed() < STARTUP, "the server is not ready after {STARTUP:?}");
            thread::sleep(Duration::from_millis(50));
        }
    }

    fn is_ready(&self) -> io::Result<bool> {
        let mut stream = TcpStream::connect(self.address)?;
        write!(stream, "GET /readyz HTTP/1.0\r\n\r\n")?;
        let mut response = String::new();
        stream.read_to_string(&mut response)?;
        Ok(response.split(' ').nth(1) == Some("200"))
    }

    fn url(&self) -> String {
        format!("http://{}/v1", self.address)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let terminated = Command::new("kill").arg(self.process.id().to_string()).status();
        if !terminated.is_ok_and(|status| status.success()) {
            let _ = self.process.kill();
        }
        let _ = self.process.wait();
    }
}

#[test]
fn rig_gets_the_vectors_of_the_library() -> Outcome {
    let expected = expected();
    let rig = adapters::rig::embedding_model(model().clone(), Prompt::Default);
    assert_eq!((rig.name(), rig.capabilities().ndims), ("sconce", 384));
    let runtime = Runtime::new()?;
    let response = runtime.block_on(rig.call(texts()))?;
    assert_eq!(bits(&vectors(&response.embeddings)), bits(&expected));
    assert!(response.embeddings.iter().map(|embedding| &embedding.document).eq(&texts()));
    assert_eq!(response.usage.input_tokens, Some(model().embed(&texts())?.tokens as u64));
    let built = runtime.block_on(EmbeddingsBuilder::new(rig).documents(texts())?.build())?;
    let built: Vec<Embedding> = built.into_iter().flat_map(|(_, embeddings)| embeddings).collect();
    assert_eq!(bits(&vectors(&built)), bits(&expected));
    Ok(())
}

#[test]
fn swiftide_gets_the_vectors_of_the_library() -> Outcome {
    let swiftide: Box<dyn EmbeddingModel> =
        Box::new(adapters::swiftide::Sconce::new(model().clone(), Prompt::Default));
    let vectors = Runtime::new()?.block_on(swiftide.embed(texts()))?;
    assert_eq!(bits(&vectors), bits(&expected()));
    Ok(())
}

#[test]
fn errors_of_the_library_reach_the_caller() -> Outcome {
    let unknown = Prompt::Name("no-such-prompt".to_owned());
    let rig = adapters::rig::embedding_model(model().clone(), unknown.clone());
    let swiftide = adapters::swiftide::Sconce::new(model().clone(), unknown);
    let runtime = Runtime::new()?;
    let error = runtime.block_on(rig.embed_text("a text")).expect_err("the prompt is unknown");
    assert!(error.to_string().contains("no-such-prompt"), "{error}");
    let error = runtime.block_on(swiftide.embed(texts())).expect_err("the prompt is unknown");
    assert!(matches!(error, LanguageModelError::PermanentError(_)), "{error}");
    assert!(error.to_string().contains("no-such-prompt"), "{error}");
    Ok(())
}

#[test]
fn unmodified_clients_get_the_vectors_of_the_library() -> Outcome {
    let expected = expected();
    let server = Server::start();
    let runtime = Runtime::new()?;
    let rig = OpenAIConfig::new("any").with_base_url(server.url()).client();
    for dimensions in [None, Some(384)] {
        let response = runtime.block_on(rig.embedding(NAME, dimensions).call(texts()))?;
        assert_close(&vectors(&response.embeddings), &expected);
    }
    let config = SwiftideConfig::new().with_api_base(server.url()).with_api_key("any");
    let swiftide = OpenAI::builder().client(Client::with_config(config)).default_embed_model(NAME).build()?;
    assert_close(&runtime.block_on(swiftide.embed(texts()))?, &expected);
    Ok(())
}
