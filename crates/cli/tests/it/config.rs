//! `sconce config`, and reloads of a running server.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::harness::Sandbox;
use crate::serve::{ask, connect, wait_until_ready};

#[test]
fn every_setting_has_its_origin() {
    let sandbox = Sandbox::new();
    let file = sandbox.with("some.toml", "port = 1\nstrict = true\n[models.small]\nsource = \"tiny-bert\"\n");
    let mut command = sandbox.command(&["config", "--config", &file, "--max-body", "9", "--json"]);
    let output = command.env("SCONCE_SERVE_PORT", "2").output().expect("it runs");
    let told: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let setting =
        |name: &str| (told["settings"][name]["value"].clone(), told["settings"][name]["from"].clone());
    assert_eq!(setting("port"), (2.into(), "`SCONCE_SERVE_PORT`".into()));
    assert_eq!(setting("strict"), (true.into(), format!("`{file}`").into()));
    assert_eq!(setting("max_body"), (9.into(), "`--max-body`".into()));
    assert_eq!(setting("host"), ("127.0.0.1".into(), "default".into()));
    assert_eq!(told["models"][0]["name"], "small");
    let table = sandbox.run(&["config", "--config", &file]).succeeds().stdout;
    let line = table.lines().find(|line| line.starts_with(" port")).expect("a line").to_owned();
    assert_eq!(line.split_whitespace().collect::<Vec<_>>(), ["port", "1", &format!("`{file}`")]);
}

#[test]
fn the_template_is_a_file_of_defaults() {
    let sandbox = Sandbox::new();
    let template = sandbox.run(&["config", "--template"]).succeeds().stdout;
    let file = sandbox.with("all.toml", &template);
    let told = sandbox.run(&["config", "--config", &file, "--json"]).succeeds().json();
    for (name, setting) in told["settings"].as_object().expect("settings") {
        assert_eq!(setting["value"], setting["default"], "{name}");
        assert_eq!(setting["from"], format!("`{file}`"), "{name}");
    }
}

#[test]
fn an_unknown_key_is_rejected_with_a_suggestion() {
    let sandbox = Sandbox::new();
    let file = sandbox.with("some.toml", "max_boddy = 1\n");
    let words = ["unknown setting in ", "`max_boddy`", &file, "did you mean `max_body`?"];
    sandbox.run(&["config", "--config", &file]).fails(2, &words);
    sandbox.run(&["serve", "tiny-bert", "--config", &file]).fails(2, &words);
    let file = sandbox.with("other.toml", "port = \"x\"\n");
    sandbox.run(&["config", "--config", &file]).fails(2, &["`port` must be an integer"]);
    sandbox.run(&["config", "--config", &sandbox.name("no-such.toml")]).fails(2, &["no-such.toml"]);
    sandbox.run(&["serve", "--offline"]).fails(2, &["no model to serve", "sconce serve MODEL"]);
}

/// A server and its standard error.
struct Served {
    child: Child,
    address: SocketAddr,
    stderr: BufReader<std::process::ChildStderr>,
}

fn serve(sandbox: &Sandbox, file: &str) -> Served {
    let mut child =
        sandbox.command(&["serve", "--config", file]).stdin(Stdio::null()).spawn().expect("it starts");
    let mut stderr = BufReader::new(child.stderr.take().expect("its words"));
    let mut line = String::new();
    stderr.read_line(&mut line).expect("it says where it listens");
    // As a word for people, or in a string of JSON.
    let address = line.split("://").nth(1).and_then(|rest| rest.split(['"', '\n']).next()?.parse().ok());
    Served { address: address.unwrap_or_else(|| panic!("no address in: {line}")), child, stderr }
}

fn signal(child: &Child, name: &str) {
    let sent = Command::new("kill").args([name, &child.id().to_string()]).status();
    assert!(sent.expect("kill runs").success());
}

fn embed(address: SocketAddr, key: &str, texts: usize) -> u16 {
    let body = serde_json::json!({ "input": vec!["a"; texts], "model": "small" }).to_string();
    let request = format!(
        "POST /v1/embeddings HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {key}\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    ask(&mut connect(address).expect("a connection"), request.as_bytes()).expect("an answer").0
}

#[test]
fn sighup_reloads_keys_and_limits_and_rejects_invalid_configuration() {
    let sandbox = Sandbox::new();
    let keys = sandbox.with("keys", "old\n");
    let settings = |rest: &str| {
        format!(
            "port = 0\noffline = true\napi_key_file = \"{keys}\"\n{rest}\n[models.small]\nsource = \"tiny-bert\"\n"
        )
    };
    let file = sandbox.with("sconce.toml", settings("max_inputs = 2"));
    let mut served = serve(&sandbox, &file);
    wait_until_ready(served.address);
    assert_eq!([embed(served.address, "old", 3), embed(served.address, "old", 2)], [400, 200]);
    // Lines of the log begin with a time.
    let mut next = || loop {
        let mut line = String::new();
        served.stderr.read_line(&mut line).expect("words");
        if !line.starts_with("20") {
            return line;
        }
    };
    assert_eq!(next(), format!("configuration file: {file}\n"));
    sandbox.with("keys", "new\n");
    sandbox.with("sconce.toml", settings("max_inputs = 3\ngrace = 5").replace("port = 0", "port = 1"));
    signal(&served.child, "-HUP");
    assert_eq!(next(), "configuration reloaded: 1 keys\n");
    assert_eq!(next(), "note: `port` requires a restart\n");
    let began = Instant::now();
    while embed(served.address, "new", 3) != 200 {
        assert!(began.elapsed() < Duration::from_mins(4), "the new key is not let in");
        thread::sleep(Duration::from_millis(10));
    }
    assert_eq!([embed(served.address, "old", 1), embed(served.address, "new", 4)], [401, 400]);
    fs::write(sandbox.file("sconce.toml"), "max_inptus = 9\n").expect("a file can be written");
    signal(&served.child, "-HUP");
    assert!(next().contains("the configuration is unchanged"));
    assert_eq!(embed(served.address, "new", 3), 200);
    signal(&served.child, "-TERM");
    assert_eq!(served.child.wait().expect("it ends").code(), Some(0));
}

#[test]
fn a_reload_cannot_remove_authentication() {
    let sandbox = Sandbox::new();
    let keys = sandbox.with("keys", "one\n");
    let settings = |rest: &str| {
        format!(
            "port = 0\nhost = \"0.0.0.0\"\noffline = true\n{rest}\n[models.small]\nsource = \"tiny-bert\"\n"
        )
    };
    let file = sandbox.with("sconce.toml", settings(&format!("api_key_file = \"{keys}\"")));
    let mut served = serve(&sandbox, &file);
    served.address.set_ip(std::net::Ipv4Addr::LOCALHOST.into());
    wait_until_ready(served.address);
    assert_eq!(embed(served.address, "none", 1), 401);
    sandbox.with("sconce.toml", settings("insecure_no_key = true"));
    signal(&served.child, "-HUP");
    let mut line = String::new();
    while !line.contains("the configuration is unchanged") {
        line.clear();
        assert!(served.stderr.read_line(&mut line).expect("words") > 0, "it ended");
    }
    assert!(line.contains("removing all API keys requires a restart"), "{line}");
    assert_eq!([embed(served.address, "none", 1), embed(served.address, "one", 1)], [401, 200]);
    signal(&served.child, "-TERM");
    assert_eq!(served.child.wait().expect("it ends").code(), Some(0));
}

#[test]
fn invalid_settings_are_rejected_and_the_environment_is_shown() {
    let sandbox = Sandbox::new();
    sandbox
        .run(&["config", "--tls-certificate", "a.pem"])
        .fails(2, &["`tls_certificate` and `tls_key` must be set together"]);
    sandbox
        .run(&["config", "--callback-url", "manager:9000"])
        .fails(2, &["`callback_url` must start with `http://`"]);
    sandbox.run(&["config", "--cors-origins", "https://slash.example/"]).fails(2, &["an origin must be `*`"]);
    let file = sandbox.with("list.toml", "models = [\"a\"]\n");
    sandbox.run(&["config", "--config", &file]).fails(2, &["`models`", "[models.NAME]"]);
    let same = "[models.a]\nsource = \"tiny-bert\"\naliases = [\"x\"]\n[models.b]\nsource = \"tiny-bert\"\naliases = [\"a\"]\n";
    let file = sandbox.with("same.toml", same);
    sandbox
        .run(&["serve", "--offline", "--config", &file])
        .fails(2, &["two models have the same name or alias: `a`"]);
    sandbox
        .run(&[
            "serve",
            "tiny-bert",
            "--offline",
            "--host",
            "0.0.0.0",
            "--insecure-no-key",
            "--callback-url",
            "http://m/",
        ])
        .fails(2, &["cannot advertise an unspecified address", "--advertise-url"]);
    let mut command = sandbox.command(&["config", "--strict=false", "--json"]);
    let command = command.env("SCONCE_API_KEY", "secret").env("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4318");
    let output = command.output().expect("it runs");
    let told: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(told["environment"]["SCONCE_API_KEY"], "(set)");
    assert_eq!(told["environment"]["OTEL_EXPORTER_OTLP_ENDPOINT"], "\"http://c:4318\"");
    assert_eq!(told["settings"]["strict"]["from"], "`--strict`");
    assert_eq!(told["settings"]["strict"]["value"], false);
}

#[test]
fn a_reload_works_after_the_log_pipe_was_closed() {
    let sandbox = Sandbox::new();
    for format in ["human", "json"] {
        let keys = sandbox.with("keys", "old\nrevoked\n");
        let settings = |rest: &str| {
            format!(
                "port = 0\noffline = true\nlog_format = \"{format}\"\nlog_requests = true\napi_key_file = \"{keys}\"\n\
                 {rest}\n[models.small]\nsource = \"tiny-bert\"\n"
            )
        };
        let file = sandbox.with("sconce.toml", settings(""));
        let mut served = serve(&sandbox, &file);
        wait_until_ready(served.address);
        assert_eq!(embed(served.address, "revoked", 1), 200);
        drop(served.stderr);
        // The first reload fails, with a closed log.
        sandbox.with("sconce.toml", "max_inptus = 9\n");
        signal(&served.child, "-HUP");
        sandbox.with("sconce.toml", settings("grace = 5"));
        let began = Instant::now();
        sandbox.with("keys", "old\n");
        while embed(served.address, "revoked", 1) != 401 {
            assert!(began.elapsed() < Duration::from_mins(1), "the revoked key is still accepted");
            signal(&served.child, "-HUP");
            thread::sleep(Duration::from_millis(50));
        }
        assert_eq!(embed(served.address, "old", 1), 200);
        signal(&served.child, "-TERM");
        assert_eq!(served.child.wait().expect("it ends").code(), Some(0));
    }
}
