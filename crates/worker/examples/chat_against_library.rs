//! Output tokens per second of streams over HTTP against the library's step loop, with the same prompts and placement,
//! interleaved:
//!
//! ```sh
//! cargo run --release --example chat_against_library -- MODEL [ROUNDS] [DTYPE]
//! ```

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use sconce::{GenerateOptions, Model, ModelBuilder, Runtime, Task};
use sconce_worker::{LoadPolicy, Serve, Server, Settings};

const LEVELS: [usize; 3] = [1, 8, 32];
const PROMPT: usize = 256;
const OUTPUT: usize = 128;

type Failure = Box<dyn std::error::Error + Send + Sync>;

fn main() -> Result<(), Failure> {
    sconce::init();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let Some(name) = arguments.first() else { return Err("expected MODEL [ROUNDS] [DTYPE]".into()) };
    let rounds: usize = arguments.get(1).map_or(Ok(5), |rounds| rounds.parse())?;
    let dtype = arguments.get(2).map(|dtype| dtype.parse()).transpose()?;
    let runtime = Runtime::builder().offline(true).build();
    let builder = || {
        let builder = Model::builder(name).runtime(&runtime).task(Task::Generate);
        dtype.into_iter().fold(builder, ModelBuilder::dtype)
    };
    let model = builder().open()?;
    let serve = Serve {
        name: "model".to_owned(),
        aliases: Vec::new(),
        builder: builder(),
        load: LoadPolicy::Startup,
        token_ids: true,
    };
    let settings = Settings { load_wait: Duration::from_mins(10), ..Settings::default() };
    let server = Server::start(TcpListener::bind("127.0.0.1:0")?, vec![serve], settings)?;
    let address = server.address();
    stream(address, &prompt(0))?;
    println!(
        "prompts of {PROMPT} tokens, outputs of {OUTPUT}, {}\n",
        model.placement().ok_or("nothing serves")?
    );
    println!("| streams | library, tokens/s | server, tokens/s | ratio: median | least | most |");
    println!("|---|---|---|---|---|---|");
    let mut seed = 1;
    for level in LEVELS {
        let mut found = Vec::new();
        for round in 0..=rounds {
            let library = measure(level, &mut seed, |ids| generate(&model, ids))?;
            let over_http = measure(level, &mut seed, |ids| stream(address, &ids))?;
            if round > 0 {
                found.push((over_http / library, library, over_http));
            }
        }
        found.sort_by(|a, b| a.0.total_cmp(&b.0));
        let (ratio, library, over_http) = found[found.len() / 2];
        let (least, most) = (found[0].0, found[found.len() - 1].0);
        println!("| {level} | {library:.1} | {over_http:.1} | {ratio:.3} | {least:.3} | {most:.3} |");
    }
    server.stop();
    server.wait()?;
    Ok(())
}

/// Token ids that no other prompt begins with.
fn prompt(seed: usize) -> Vec<u32> {
    (0..PROMPT).map(|at| (100 + (seed * 7919 + at * 31 + at * at * (seed % 97)) % 5000) as u32).collect()
}

/// Tokens per second of `level` generations at once.
fn measure(
    level: usize,
    seed: &mut usize,
    run: impl Fn(Vec<u32>) -> Result<(), Failure> + Sync,
) -> Result<f64, Failure> {
    let prompts: Vec<Vec<u32>> = (*seed..*seed + level).map(prompt).collect();
    *seed += level;
    let began = Instant::now();
    thread::scope(|scope| {
        let run = &run;
        let all: Vec<_> = prompts.into_iter().map(|ids| scope.spawn(move || run(ids))).collect();
        all.into_iter().try_for_each(|one| one.join().map_err(|_| "a thread panicked")?)
    })?;
    Ok((level * OUTPUT) as f64 / began.elapsed().as_secs_f64())
}

fn generate(model: &Model, ids: Vec<u32>) -> Result<(), Failure> {
    let options = GenerateOptions {
        max_tokens: Some(OUTPUT),
        temperature: 0.0,
        ignore_eos: true,
        ..GenerateOptions::default()
    };
    let mut tokens = 0;
    for piece in model.generate_from_ids(ids, &options)? {
        tokens += usize::from(piece?.token.is_some());
    }
    if tokens == OUTPUT { Ok(()) } else { Err(format!("{tokens} tokens").into()) }
}

/// Reads a stream over HTTP to its end.
fn stream(address: SocketAddr, ids: &[u32]) -> Result<(), Failure> {
    let body = serde_json::json!({
        "prompt": ids, "max_tokens": OUTPUT, "temperature": 0, "ignore_eos": true, "stream": true,
        "stream_options": { "include_usage": true },
    });
    let (body, mut connection) = (body.to_string(), TcpStream::connect(address)?);
    connection.set_nodelay(true)?;
    write!(
        connection,
        "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    )?;
    let mut usage = None;
    for line in BufReader::new(connection).lines() {
        let Some(data) = line?.strip_prefix("data: {").map(|data| format!("{{{data}")) else { continue };
        if data.contains("\"completion_tokens\"") {
            let event: serde_json::Value = serde_json::from_str(&data)?;
            usage = event["usage"]["completion_tokens"].as_u64();
        }
    }
    if usage == Some(OUTPUT as u64) { Ok(()) } else { Err(format!("{usage:?} tokens").into()) }
}
