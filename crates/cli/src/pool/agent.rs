//! `sconce pool agent`: runs the workers of this machine, one per device.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use sconce::{Device, Runtime};
use sconce_pool::agent::{AgentLog, AgentSettings, SupervisionOptions, WorkerCommand};
use sconce_worker::PoolRegistry;
use sconce_worker::registry::NatsOptions;

use crate::arguments::PoolAgent;
use crate::config::{Effective, Flags, Origin, Values, effective};
use crate::serve;
use crate::terminal::eprint_line;

/// Time in which a worker ends after the grace time of its requests.
const EXIT_TIME: Duration = Duration::from_secs(10);

pub(crate) fn run(arguments: &PoolAgent) -> anyhow::Result<()> {
    let machine = Machine::new(&arguments.flags, &arguments.devices.devices)?;
    let nats = machine.nats()?;
    if nats.is_none() && machine.values.callback_url.is_empty() {
        bail!("the workers would register nowhere\nhint: set `--registry nats://HOST:4222`");
    }
    machine.check()?;
    sconce_pool::agent::run(machine.settings(nats, &[])?)?;
    Ok(())
}

/// The program of this command, with its first arguments.
pub(super) fn this_program() -> anyhow::Result<(PathBuf, Vec<OsString>)> {
    let command = sconce::program().context("the path of this program is unknown")?;
    Ok((command.get_program().into(), command.get_args().map(OsString::from).collect()))
}

/// The workers of this machine: their flags, effective settings and devices.
pub(super) struct Machine<'a> {
    flags: &'a Flags,
    pub(super) all: Effective,
    /// The settings that all workers share. `worker_id` is the name of the machine.
    pub(super) values: Values,
    devices: Vec<Device>,
    /// Whether the settings name the only device already.
    has_device: bool,
}

impl<'a> Machine<'a> {
    /// Reads the settings, and detects the devices unless they are named.
    pub(super) fn new(flags: &'a Flags, devices: &[Device]) -> anyhow::Result<Machine<'a>> {
        let all = effective(flags)?;
        let mut values = all.values()?;
        if values.worker_id.is_empty() {
            values.worker_id = machine_name()?;
        }
        if all.entries()?.is_empty() && values.model_sources.is_empty() {
            bail!(
                "no model to serve\nhint: name one, or set `models` in the configuration file, or allow sources \
                 with `--model-sources`"
            );
        }
        let device = all.entry_of("")?.settings.constraints.device;
        let has_device = device.is_some();
        let devices = match (device, devices) {
            (None, named) => usable(&values.runtime(), named)?,
            (Some(device), []) => vec![device],
            (Some(_), _) => bail!("set only one of `--devices` and `--device`"),
        };
        Ok(Machine { flags, all, values, devices, has_device })
    }

    /// The registry of the pool, if there is one.
    pub(super) fn nats(&self) -> anyhow::Result<Option<NatsOptions>> {
        Ok(match self.values.worker()?.registry {
            Some(PoolRegistry::Nats(options)) => Some(*options),
            Some(PoolRegistry::Shared(_)) | None => None,
        })
    }

    /// Checks what every worker would reject.
    fn check(&self) -> anyhow::Result<()> {
        serve::check_exposure(&self.values)?;
        let (url, host) = (&self.values.advertise_url, self.values.host);
        if url.is_empty() && host.is_unspecified() {
            bail!(
                "cannot advertise an unspecified address: `{host}`\nhint: set `--advertise-url http://NAME:0`"
            );
        }
        if self.devices.len() > 1 && !url.is_empty() && !url.trim_end_matches('/').ends_with(":0") {
            bail!(
                "`advertise_url` must have port 0 for several workers, which stands for the port of each: `{url}`"
            );
        }
        Ok(())
    }

    /// The settings of the agent. `more` are flags of every worker.
    pub(super) fn settings(
        &self,
        nats: Option<NatsOptions>,
        more: &[(&str, String)],
    ) -> anyhow::Result<AgentSettings> {
        let (program, first) = this_program()?;
        let worker = |(index, device): (usize, &Device)| {
            let id = format!("{}-{}", self.values.worker_id, device.to_string().replace(':', ""));
            let arguments = [first.clone(), self.arguments(index, *device, &id, more)].concat();
            WorkerCommand { id, program: program.clone(), arguments, without: Vec::new() }
        };
        let drain_timeout = Duration::from_secs(self.values.grace.into()) + EXIT_TIME;
        Ok(AgentSettings {
            workers: self.devices.iter().enumerate().map(worker).collect(),
            options: SupervisionOptions { drain_timeout, ..SupervisionOptions::default() },
            log: self.log()?,
            nats,
        })
    }

    /// The log of the agent.
    pub(super) fn log(&self) -> anyhow::Result<AgentLog> {
        Ok(AgentLog::new(self.values.log()?, Arc::new(eprint_line)))
    }

    /// The arguments of a worker: the flags of the agent, with an id, a port and a device of its own.
    fn arguments(&self, index: usize, device: Device, id: &str, more: &[(&str, String)]) -> Vec<OsString> {
        let mut own = vec![
            ("worker_id", id.to_owned()),
            ("port", self.port(index).to_string()),
            ("exit_with_parent", "true".to_owned()),
        ];
        if !self.has_device {
            own.push(("device", device.to_string()));
        }
        own.retain(|(name, _)| more.iter().all(|(other, _)| name != other));
        own.extend_from_slice(more);
        let is_own = |name: &str| own.iter().any(|(known, _)| *known == name);
        let shared = self.flags.values.iter().filter(|(name, _)| !is_own(name));
        let values = shared.map(|(name, value)| (name.as_str(), value.as_str()));
        let values = values.chain(own.iter().map(|(name, value)| (*name, value.as_str())));
        let mut arguments = vec![OsString::from("serve")];
        arguments.extend(values.map(|(name, value)| format!("--{}={value}", name.replace('_', "-")).into()));
        arguments.extend(self.flags.models.iter().map(|model| format!("--model={model}").into()));
        if let Some(config) = &self.flags.config {
            arguments.extend([OsString::from("--config"), config.into()]);
        }
        arguments
    }

    /// The port of a worker: counted up from a port that is set, else a free one.
    fn port(&self, index: usize) -> u16 {
        let port = self.all.settings.iter().find(|setting| setting.key.name == "port");
        match (port.map(|setting| &setting.origin), self.values.port) {
            (None | Some(Origin::Default), _) | (_, 0) => 0,
            (Some(_), first) => first.saturating_add(u16::try_from(index).unwrap_or(u16::MAX)),
        }
    }
}

/// The named devices, or by default every GPU that this build can use, else the CPU.
fn usable(runtime: &Runtime, named: &[Device]) -> anyhow::Result<Vec<Device>> {
    let candidates = runtime.candidates();
    let is_usable = |device: Device| {
        candidates.iter().any(|candidate| candidate.device == device && candidate.obstacle.is_none())
    };
    for (index, &device) in named.iter().enumerate() {
        if named[..index].contains(&device) {
            bail!("a device gets one worker: `{device}` is named twice");
        }
        if !is_usable(device) {
            let obstacle = candidates.iter().find(|candidate| candidate.device == device);
            match obstacle.and_then(|candidate| candidate.obstacle.as_ref()) {
                Some(obstacle) => {
                    bail!("`{device}` can't be used: {obstacle}\nhint: {}", obstacle.remedy())
                }
                None => {
                    bail!("this machine has no device `{device}`\nhint: `sconce doctor` lists its devices")
                }
            }
        }
    }
    if !named.is_empty() {
        return Ok(named.to_vec());
    }
    let mut devices: Vec<Device> = Vec::new();
    for candidate in &candidates {
        let device = candidate.device;
        if device != Device::Cpu && is_usable(device) && !devices.contains(&device) {
            devices.push(device);
        }
    }
    Ok(if devices.is_empty() { vec![Device::Cpu] } else { devices })
}

/// The name of this machine in its network.
fn machine_name() -> anyhow::Result<String> {
    let from_kernel = std::fs::read_to_string("/proc/sys/kernel/hostname").ok();
    let from_tool = || {
        let output = Command::new("uname").arg("-n").stdin(Stdio::null()).output().ok()?;
        String::from_utf8(output.stdout).ok()
    };
    let name = from_kernel.or_else(from_tool).unwrap_or_default();
    let name = name.trim().split('.').next().unwrap_or_default();
    if name.is_empty() {
        bail!("the name of this machine is unknown\nhint: set `--worker-id NAME`");
    }
    Ok(name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flags(values: &[(&str, &str)]) -> Flags {
        let values = values.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        Flags { models: vec!["./minilm".to_owned()], config: None, values: values.collect() }
    }

    fn arguments(given: &[(&str, &str)]) -> Vec<String> {
        let flags = flags(given);
        let machine = Machine::new(&flags, &[]).unwrap();
        let settings = machine.settings(None, &[]).unwrap();
        let worker = &settings.workers[0];
        worker.arguments.iter().map(|argument| argument.to_str().unwrap().to_owned()).collect()
    }

    #[test]
    fn a_worker_has_the_flags_of_the_agent_and_an_id_a_port_and_a_device_of_its_own() {
        let given = [("worker_id", "studio"), ("device", "cpu"), ("band", "exact"), ("port", "9000")];
        let expected = [
            "serve",
            "--device=cpu",
            "--band=exact",
            "--worker-id=studio-cpu",
            "--port=9000",
            "--exit-with-parent=true",
            "--model=./minilm",
        ];
        assert_eq!(arguments(&given), expected);
        assert!(arguments(&[("worker_id", "studio"), ("device", "cpu")]).contains(&"--port=0".to_owned()));
    }

    #[test]
    fn ports_are_counted_up() {
        let flags = flags(&[("worker_id", "studio"), ("device", "cpu"), ("port", "9000")]);
        let machine = Machine::new(&flags, &[]).unwrap();
        assert_eq!([0, 1, 2].map(|index| machine.port(index)), [9000, 9001, 9002]);
    }

    #[test]
    fn what_every_worker_would_reject_is_rejected_at_once() {
        let error = |given: &[(&str, &str)], devices: &[Device]| {
            let flags = flags(&[given, &[("worker_id", "studio")]].concat());
            let checked = Machine::new(&flags, devices).and_then(|machine| machine.check());
            checked.unwrap_err().to_string()
        };
        let exposed = [("host", "0.0.0.0"), ("insecure_no_key", "true"), ("device", "cpu")];
        assert!(error(&exposed[..1], &[]).contains("reachable from other machines"));
        assert!(error(&exposed, &[]).contains("--advertise-url http://NAME:0"));
        assert!(error(&exposed[2..], &[Device::Cpu]).contains("only one of"));
        assert!(error(&[], &[Device::Cpu, Device::Cpu]).contains("named twice"));
        assert!(error(&[], &[Device::Cuda(99)]).contains("cuda:99"));
    }

    #[test]
    fn this_machine_has_a_name() {
        let name = machine_name().unwrap();
        assert!(!name.is_empty() && !name.contains(['.', '\n']), "{name}");
    }
}
