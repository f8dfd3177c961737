//! Throughput of the server against the library on the same texts and placement, interleaved:
//!
//! ```sh
//! cargo run --release --example against_library -- MODEL TEXTS.jsonl [DTYPE]
//! ```
//!
//! The clients run in a separate process, whose CPU usage is reported.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use sconce::{Model, Runtime};
use sconce_worker::{LoadPolicy, Serve, Server, Settings};

const CLIENTS: usize = 64;
const ROUNDS: usize = 5;
const SHORT: &str = "how do I place a model on the right device?";

type Failure = Box<dyn std::error::Error + Send + Sync>;

fn main() -> Result<(), Failure> {
    sconce::init();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["generate", address, file, clients] => generate(address.parse()?, file, clients.parse()?),
        [model, file] => compare(model, file, None),
        [model, file, dtype] => compare(model, file, Some(dtype)),
        _ => Err("expected MODEL TEXTS.jsonl [DTYPE]".into()),
    }
}

fn texts(file: &str) -> Result<Vec<String>, Failure> {
    let text = |line: &str| -> Result<String, Failure> {
        let value: serde_json::Value = serde_json::from_str(line)?;
        Ok(value["text"].as_str().unwrap_or_default().to_owned())
    };
    std::fs::read_to_string(file)?.lines().map(text).collect()
}

fn compare(name: &str, file: &str, dtype: Option<&str>) -> Result<(), Failure> {
    let texts = texts(file)?;
    let runtime = Runtime::builder().offline(true).build();
    let builder = || -> Result<_, Failure> {
        let builder = Model::builder(name).runtime(&runtime);
        Ok(match dtype {
            Some(dtype) => builder.dtype(dtype.parse()?),
            None => builder,
        })
    };
    let model = builder()?.open()?;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let serve = Serve {
        name: "model".to_owned(),
        aliases: Vec::new(),
        builder: builder()?,
        load: LoadPolicy::Startup,
        token_ids: false,
    };
    let settings = Settings { queue_seconds: 30.0, ..Settings::default() };
    let server = Server::start(listener, vec![serve], settings)?;
    let address = server.address();
    let ready = || ask(&mut connect(address)?, b"GET /readyz HTTP/1.1\r\nhost: localhost\r\n\r\n");
    while ready()?.0 != 200 {
        std::thread::sleep(Duration::from_millis(50));
    }
    let placement = model.placement().ok_or("nothing serves")?;
    println!("{} texts, {CLIENTS} clients, one text a request, {placement}\n", texts.len());
    println!(
        "| round | library, texts/s | server, texts/s | ratio | p50, ms | p99, ms | clients, % of one core |"
    );
    println!("|---|---|---|---|---|---|---|");
    let mut ratios = Vec::new();
    for round in 0..=ROUNDS {
        let began = Instant::now();
        model.embed(&texts)?;
        let library = texts.len() as f64 / began.elapsed().as_secs_f64();
        let [through, p50, p99, share] = generator(address, file, CLIENTS)?;
        if round > 0 {
            let ratio = through / library;
            println!(
                "| {round} | {library:.0} | {through:.0} | {ratio:.3} | {p50:.1} | {p99:.1} | {share:.0} |"
            );
            ratios.push(ratio);
        }
    }
    ratios.sort_by(f64::total_cmp);
    println!("\nratio, median of {ROUNDS} rounds: {:.3} (bar: 0.9)", ratios[ROUNDS / 2]);
    latency(&model, address)?;
    server.stop();
    server.wait()?;
    Ok(())
}

/// Latency of single short texts through the library and the server, interleaved.
fn latency(model: &Model, address: SocketAddr) -> Result<(), Failure> {
    let body = format!("{{\"input\": \"{SHORT}\"}}");
    let bytes = request(&body);
    let mut stream = connect(address)?;
    let (mut library, mut served) = (Vec::new(), Vec::new());
    for round in 0..1100 {
        let began = Instant::now();
        model.embed(&[SHORT])?;
        let first = began.elapsed();
        let began = Instant::now();
        ask(&mut stream, bytes.as_bytes())?;
        if round >= 100 {
            library.push(first);
            served.push(began.elapsed());
        }
    }
    let middle = |list: &mut Vec<Duration>| {
        list.sort();
        list[list.len() / 2].as_secs_f64() * 1e3
    };
    let (library, served) = (middle(&mut library), middle(&mut served));
    println!(
        "one short text: library p50 {library:.3} ms, server p50 {served:.3} ms, added {:.3} ms (bar: 0.5)",
        served - library
    );
    Ok(())
}

fn generator(address: SocketAddr, file: &str, clients: usize) -> Result<[f64; 4], Failure> {
    let output = Command::new(std::env::current_exe()?)
        .args(["generate", &address.to_string(), file, &clients.to_string()])
        .stderr(Stdio::inherit())
        .output()?;
    let text = String::from_utf8(output.stdout)?;
    let numbers: Vec<f64> = text.split_whitespace().map(str::parse).collect::<Result<_, _>>()?;
    numbers.try_into().map_err(|_| format!("the clients failed: {text}").into())
}

/// Sends every text once with `clients` concurrent connections and prints texts/s, p50, p99 and its own CPU usage.
fn generate(address: SocketAddr, file: &str, clients: usize) -> Result<(), Failure> {
    let requests: Vec<String> = texts(file)?
        .iter()
        .map(|text| request(&serde_json::json!({ "input": text, "truncate": true }).to_string()))
        .collect();
    let (requests, next) = (Arc::new(requests), Arc::new(AtomicUsize::new(0)));
    let (spent, began) = (processor_seconds(), Instant::now());
    let threads: Vec<_> = (0..clients)
        .map(|_| {
            let (requests, next) = (Arc::clone(&requests), Arc::clone(&next));
            std::thread::spawn(move || -> Result<Vec<Duration>, Failure> {
                let (mut stream, mut times) = (connect(address)?, Vec::new());
                while let Some(request) = requests.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let asked_at = Instant::now();
                    let (status, _) = ask(&mut stream, request.as_bytes())?;
                    if status != 200 {
                        return Err(format!("status {status}").into());
                    }
                    times.push(asked_at.elapsed());
                }
                Ok(times)
            })
        })
        .collect();
    let mut times = Vec::new();
    for thread in threads {
        times.extend(thread.join().map_err(|_| "a client panicked")??);
    }
    let seconds = began.elapsed().as_secs_f64();
    times.sort();
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize].as_secs_f64() * 1e3;
    let share = 100.0 * (processor_seconds() - spent) / seconds;
    println!("{} {} {} {share}", requests.len() as f64 / seconds, at(0.5), at(0.99));
    Ok(())
}

/// CPU time of this process in seconds, on Linux.
fn processor_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let after = text.rsplit(')').next().unwrap_or_default();
    after.split_whitespace().skip(11).take(2).filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>()
        / 100.0
}

fn request(body: &str) -> String {
    let length = body.len();
    format!(
        "POST /v1/embeddings HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
    )
}

fn connect(address: SocketAddr) -> Result<BufReader<TcpStream>, Failure> {
    let stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    Ok(BufReader::new(stream))
}

fn ask(stream: &mut BufReader<TcpStream>, bytes: &[u8]) -> Result<(u16, Vec<u8>), Failure> {
    stream.get_mut().write_all(bytes)?;
    let mut line = String::new();
    stream.read_line(&mut line)?;
    let status = line.split(' ').nth(1).ok_or("no status")?.parse()?;
    let mut length = 0;
    loop {
        line.clear();
        stream.read_line(&mut line)?;
        let Some((name, value)) = line.trim_end().split_once(": ") else { break };
        if name.eq_ignore_ascii_case("content-length") {
            length = value.parse()?;
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body)?;
    Ok((status, body))
}
