//! `sconce pool`: the parts of a pool of workers, its status, and commands to its workers.

mod agent;
mod up;

use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use anyhow::{Context, anyhow};
use sconce_pool::gateway;
use sconce_pool::up::run_nats_server;
use serde_json::Value;

use crate::arguments::{PoolCommand, PoolStatus, PoolWorker};
use crate::http_client::Client;
use crate::pool_models;
use crate::terminal::{eprint_line, print, print_json, rendered, table};

/// Refresh interval of `--watch`.
const INTERVAL: Duration = Duration::from_secs(1);

pub(crate) fn run(command: &PoolCommand) -> anyhow::Result<ExitCode> {
    match command {
        PoolCommand::Up(arguments) => up::run(arguments)?,
        PoolCommand::Agent(arguments) => agent::run(arguments)?,
        PoolCommand::NatsServer(arguments) => {
            let exit = run_nats_server(&arguments.program, &arguments.arguments)?;
            return Ok(if exit.is_success() { ExitCode::SUCCESS } else { ExitCode::FAILURE });
        }
        PoolCommand::Gateway(arguments) => {
            let announcement = arguments.announcement();
            gateway::run(arguments.settings()?, |address| eprint_line(&announcement(address)))?;
        }
        PoolCommand::Status(arguments) => status(arguments)?,
        PoolCommand::Load(arguments) => pool_models::load(arguments)?,
        PoolCommand::Unload(arguments) => pool_models::unload(arguments)?,
        PoolCommand::Pause(arguments) => steer(arguments, "pause")?,
        PoolCommand::Resume(arguments) => steer(arguments, "resume")?,
        PoolCommand::Drain(arguments) => steer(arguments, "drain")?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints the members of a pool.
fn status(arguments: &PoolStatus) -> anyhow::Result<()> {
    let client = Client::new(&arguments.url)?;
    if arguments.json {
        return print_json(&report(&client)?);
    }
    loop {
        let text = status_text(&report(&client)?);
        if !arguments.watch {
            return Ok(print(&text)?);
        }
        // Clears the screen.
        print(&format!("\x1b[2J\x1b[H{text}"))?;
        thread::sleep(INTERVAL);
    }
}

/// The report of a gateway.
fn report(client: &Client) -> anyhow::Result<Value> {
    let report: Value = serde_json::from_str(&client.get("/v1/report")?)?;
    if !report["members"].is_array() {
        return Err(anyhow!("`{}` is not a gateway: its report has no members", client.url));
    }
    Ok(report)
}

fn members(report: &Value) -> impl Iterator<Item = &Value> {
    report["members"].as_array().into_iter().flatten()
}

fn status_text(report: &Value) -> String {
    let text = |value: &Value| value.as_str().filter(|text| !text.is_empty()).unwrap_or("-").to_owned();
    let mut rows =
        table(&["worker", "state", "circuit", "requests", "queued tokens", "tokens/s", "models", "url"]);
    for member in members(report) {
        let load = &member["load"];
        let rate = ["small", "medium", "large"].iter().filter_map(|size| member["rates"][size].as_f64());
        let rate = rate.fold(0.0, f64::max);
        let is_active = |placement: &Value| placement["active"] == true;
        let name = |model: &Value| {
            let mut placements = model["placements"].as_array().into_iter().flatten();
            match placements.find(|placement| is_active(placement)) {
                Some(placement) => format!("{} ({})", text(&model["model"]), text(&placement["placement"])),
                None => format!("{} (not loaded)", text(&model["model"])),
            }
        };
        let models: Vec<String> = member["models"].as_array().into_iter().flatten().map(name).collect();
        rows.add_row(vec![
            text(&member["worker"]),
            text(&member["state"]),
            text(&member["circuit"]),
            load["requests"].to_string(),
            load["tokens"].to_string(),
            if rate > 0.0 { format!("{rate:.0}") } else { "-".to_owned() },
            models.join(", "),
            text(&member["url"]),
        ]);
    }
    let mut text = match members(report).count() {
        0 => "no worker has registered\n\
              hint: `sconce pool agent MODEL --registry nats://HOST:4222` starts and registers workers\n"
            .to_owned(),
        _ => rendered(&rows) + "\n",
    };
    for member in members(report) {
        text += &failure(member);
    }
    let desired = pool_models::table_of(report);
    if !desired.is_empty() {
        text.push('\n');
        text += &desired;
    }
    if report["registry"]["connected"] == false {
        text += "NATS is away: these are the last known workers\n";
    }
    text
}

/// Why a worker does not run, and the end of its log.
fn failure(member: &Value) -> String {
    let Some(reason) = member["failure"]["reason"].as_str() else { return String::new() };
    let title = format!("{}: {reason}", member["worker"].as_str().unwrap_or("-"));
    let log = member["failure"]["log"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let lines = [String::new(), title].into_iter().chain(log.map(|line| format!("    {line}")));
    lines.map(|line| line + "\n").collect()
}

/// Sends a command to a worker.
fn steer(arguments: &PoolWorker, command: &str) -> anyhow::Result<()> {
    let report = report(&Client::new(&arguments.gateway)?)?;
    let id = |member: &Value| member["worker"].as_str().map(str::to_owned);
    let member = members(&report).find(|member| member["worker"] == arguments.worker.as_str());
    let member = member.ok_or_else(|| {
        let known: Vec<String> = members(&report).filter_map(id).collect();
        anyhow!("the pool has no worker `{}`; it has: {}", arguments.worker, known.join(", "))
    })?;
    let url = member["url"].as_str().filter(|url| !url.is_empty()).context("the worker does not run")?;
    Client::new(url)?.post(&format!("/v1/{command}"))?;
    eprint_line(&format!("{}: {command} sent", arguments.worker));
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_status_names_workers_models_and_what_is_missing() {
        let placement = json!({ "placement": "native/cpu/bf16", "active": true });
        let report = json!({
            "registry": { "connected": false },
            "members": [{
                "worker": "studio", "state": "ready", "circuit": "closed", "url": "http://a:1",
                "load": { "requests": 3, "tokens": 812 }, "rates": { "small": 10.0, "large": 5200.4 },
                "models": [
                    { "model": "minilm", "placements": [placement] },
                    { "model": "big", "placements": [] }
                ]
            }]
        });
        let text = status_text(&report);
        for part in
            ["studio", "ready", "closed", "812", "5200", "minilm (native/cpu/bf16)", "big (not loaded)"]
        {
            assert!(text.contains(part), "{part} is missing in:\n{text}");
        }
        assert!(text.ends_with("NATS is away: these are the last known workers\n"), "{text}");
        let failure = json!({ "reason": "it crashed 5 times in 60 s", "log": ["a line", "another"] });
        let failed = json!({
            "registry": { "connected": true },
            "members": [{
                "worker": "studio", "state": "degraded", "circuit": "closed", "url": "", "models": [],
                "load": { "requests": 0, "tokens": 0 }, "rates": {}, "failure": failure,
            }]
        });
        let text = status_text(&failed);
        assert!(
            text.ends_with("\n\nstudio: it crashed 5 times in 60 s\n    a line\n    another\n"),
            "{text}"
        );
        let none = status_text(&json!({ "registry": { "connected": true }, "members": [] }));
        assert!(none.starts_with("no worker has registered\nhint: "), "{none}");
    }
}
