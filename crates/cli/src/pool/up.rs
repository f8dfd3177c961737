//! `sconce pool up`: a whole pool on this machine.

use std::ffi::OsString;

use clap::Parser;
use sconce_pool::gateway;
use sconce_pool::up::{NatsServer, NatsServerOptions, UpSettings};
use toml::Value;

use super::agent::{Machine, this_program};
use crate::arguments::PoolUp;
use crate::config::{API_KEY_VARIABLE, Origin};
use crate::terminal::eprint_line;

/// Settings that the gateway has alone: workers listen on loopback, without keys.
const GATEWAY_ONLY: [&str; 7] = [
    "host",
    "tls_certificate",
    "tls_key",
    "cors_origins",
    "api_key_file",
    "insecure_no_key",
    "allowed_hosts",
];
/// Settings of the gateway that are also those of the workers, except for the port.
const SHARED: [&str; 12] = [
    "port",
    "pool",
    "registry_token_file",
    "registry_nkey_file",
    "registry_ca",
    "max_body",
    "time_limit",
    "write_limit",
    "grace",
    "log_format",
    "log_requests",
    "otlp_endpoint",
];

pub(crate) fn run(arguments: &PoolUp) -> anyhow::Result<()> {
    let mut machine = Machine::new(&arguments.flags, &arguments.devices.devices)?;
    // Checked before anything is started.
    gateway(&machine, &[])?.settings()?;
    let nats_server = match machine.values.registry.as_slice() {
        [] => Some(start_nats(&machine, arguments.nats_port)?),
        [_, ..] => None,
    };
    if let Some(server) = &nats_server {
        machine.values.registry = vec![server.url()];
    }
    let servers = machine.values.registry.clone();
    let gateway = gateway(&machine, &servers)?;
    let agent = agent(&machine, &servers)?;
    let announcement = gateway.announcement();
    let settings = UpSettings { gateway: gateway.settings()?, agent };
    sconce_pool::up::run(settings, |address| eprint_line(&announcement(address)))?;
    // After the workers have left the registry.
    drop(nats_server);
    Ok(())
}

fn start_nats(machine: &Machine<'_>, port: u16) -> anyhow::Result<NatsServer> {
    let (program, mut runner) = this_program()?;
    runner.extend(["pool", "nats-server"].map(OsString::from));
    let store = machine.values.runtime().evidence().0.with_file_name("nats");
    let options = NatsServerOptions { runner: (program, runner), port, store, log: machine.log()? };
    Ok(NatsServer::start(&options)?)
}

/// The arguments of the gateway: the settings that are not defaults.
fn gateway(machine: &Machine<'_>, registry: &[String]) -> anyhow::Result<gateway::Arguments> {
    let mut arguments = vec!["sconce-gateway".to_owned()];
    for setting in &machine.all.settings {
        let name = setting.key.name.as_str();
        let is_of_gateway = GATEWAY_ONLY.contains(&name) || SHARED.contains(&name);
        if is_of_gateway && setting.origin != Origin::Default {
            arguments.extend(flag(&setting.key.flag, &setting.value));
        }
    }
    if !registry.is_empty() {
        arguments.push(format!("--registry={}", registry.join(",")));
    }
    Ok(gateway::Arguments::try_parse_from(arguments)?)
}

/// A flag with its value. A switch is there or not.
fn flag(name: &str, value: &Value) -> Option<String> {
    let value = match value {
        Value::Boolean(set) => return set.then(|| format!("--{name}")),
        Value::String(text) => text.clone(),
        Value::Array(items) => items.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(","),
        Value::Integer(_) | Value::Float(_) | Value::Datetime(_) | Value::Table(_) => value.to_string(),
    };
    (!value.is_empty()).then(|| format!("--{name}={value}"))
}

/// The settings of the agent: workers on loopback without keys, on free ports.
fn agent(machine: &Machine<'_>, registry: &[String]) -> anyhow::Result<sconce_pool::agent::AgentSettings> {
    let unset = GATEWAY_ONLY.iter().filter(|name| !["host", "insecure_no_key"].contains(name));
    let mut own: Vec<(&str, String)> = unset.map(|name| (*name, String::new())).collect();
    own.extend([
        ("host", "127.0.0.1".to_owned()),
        ("insecure_no_key", "false".to_owned()),
        ("port", "0".to_owned()),
        ("advertise_url", String::new()),
        ("registry", registry.join(",")),
    ]);
    let mut settings = machine.settings(machine.nats()?, &own)?;
    for worker in &mut settings.workers {
        worker.without.push(API_KEY_VARIABLE.to_owned());
    }
    Ok(settings)
}
