//! `sconce serve`: serves models over HTTP until a signal stops it.
// These macros panic when standard error is closed, which would end the thread that reloads the configuration.
#![deny(clippy::print_stderr, clippy::print_stdout)]

use std::net::{SocketAddr, TcpListener};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, bail};
use sconce::{Model, ModelBuilder, ModelSource, Runtime};
use sconce_worker::http::LogFormat;
use sconce_worker::{ModelLoader, Serve, ServeError, Server, Settings};

use crate::config::{API_KEY_VARIABLE, Effective, Flags, ModelEntry, ModelSettings, Values, effective};
use crate::parent::Parent;
use crate::terminal::{eprint_line, print_error};

pub(crate) fn run(flags: &Flags) -> anyhow::Result<ExitCode> {
    let all = effective(flags)?;
    let values = all.values()?;
    let log = values.log()?;
    match start(flags, all, &values).and_then(|server| Ok(server.wait()?)) {
        Ok(()) => Ok(ExitCode::SUCCESS),
        // A JSON log is JSON to its last line.
        Err(error) if log == LogFormat::Json => {
            eprint_line(&log.error("ended", &[("why", format!("{error:#}").into())]));
            Ok(ExitCode::from(2))
        }
        Err(error) => match error.downcast::<ServeError>() {
            Ok(ServeError::Model(error)) => Err(error.into()),
            Ok(error) => Err(error.into()),
            Err(error) => Err(error),
        },
    }
}

fn start(flags: &Flags, all: Effective, values: &Values) -> anyhow::Result<Server> {
    let parent = if values.exit_with_parent { Some(Parent::watch()?) } else { None };
    let settings = settings(values)?;
    let address = SocketAddr::new(values.host, values.port);
    check_exposure(values)?;
    let worker = &settings.worker;
    let is_member = worker.callback.is_some() || worker.registry.is_some();
    if values.host.is_unspecified() && is_member && worker.url.is_none() {
        bail!(
            "cannot advertise an unspecified address: `{}`\nhint: set `--advertise-url http://NAME:PORT`",
            values.host
        );
    }
    let runtime = values.runtime();
    let entries = all.entries()?;
    if entries.is_empty() && values.model_sources.is_empty() {
        bail!("no model to serve\nhint: run `sconce serve MODEL`, or set `models` in the configuration file");
    }
    if entries.len() > 1 && !values.name.is_empty() {
        bail!(
            "`name` applies to a single model, number of models: {}\nhint: name each with `[models.NAME]` in the configuration file",
            entries.len()
        );
    }
    let models: Vec<Serve> = entries.iter().map(|entry| serve(entry, values, &runtime)).collect();
    check_names(&models, &entries)?;
    let scheme = if settings.http.tls.is_some() { "https" } else { "http" };
    let listener = TcpListener::bind(address).with_context(|| format!("could not listen on: `{address}`"))?;
    let log = settings.http.telemetry.log.unwrap_or_default();
    let mut has_keys = !settings.http.keys.is_empty();
    let server = Server::start_with(listener, models, Some(loader(&all, &runtime)?), settings)?;
    server.stop_on_signals()?;
    if let Some(parent) = parent {
        parent.on_drain(server.stop_handle());
    }
    let (flags, file) = (flags.clone(), all.file.as_ref().map(|file| file.display().to_string()));
    server.reload_on_signal(move || reload(&flags, &all, &mut has_keys, log))?;
    let address = format!("{scheme}://{}", server.address());
    match log {
        LogFormat::Human => eprint_line(&format!("listening on {address}")),
        LogFormat::Json => eprint_line(&log.line("listening", &[("address", address.into())])),
    }
    match (file, log) {
        (Some(file), LogFormat::Human) => eprint_line(&format!("configuration file: {file}")),
        (Some(file), LogFormat::Json) => eprint_line(&log.line("configuration", &[("file", file.into())])),
        (None, _) => {}
    }
    Ok(server)
}

/// Requires an API key if the address is reachable from other machines.
pub(crate) fn check_exposure(values: &Values) -> anyhow::Result<()> {
    let (host, key) = (values.host, std::env::var(API_KEY_VARIABLE).ok());
    if !host.is_loopback() && !values.insecure_no_key && values.keys(key.as_deref())?.is_empty() {
        bail!(
            "`{host}` is reachable from other machines, and no API key is set\n\
             hint: set one with `--api-key-file FILE` or `{API_KEY_VARIABLE}`, or allow all requests with `--insecure-no-key`"
        );
    }
    Ok(())
}

/// Reloads the configuration. Returns `None`, which keeps the old one, if it is invalid or would remove
/// authentication.
fn reload(flags: &Flags, before: &Effective, has_keys: &mut bool, log: LogFormat) -> Option<Settings> {
    let mut read = || {
        let (all, old) = (effective(flags)?, before.values()?);
        let values = all.values()?;
        let settings = settings(&values)?;
        if *has_keys && settings.http.keys.is_empty() {
            bail!("removing all API keys requires a restart");
        }
        *has_keys = !settings.http.keys.is_empty();
        if old.tls_certificate.is_empty() != values.tls_certificate.is_empty() {
            bail!("enabling or disabling TLS requires a restart");
        }
        anyhow::Ok((settings, before.requires_restart(&all)))
    };
    match (read(), log) {
        (Ok((settings, late)), LogFormat::Human) => {
            eprint_line(&format!("configuration reloaded: {:?}", settings.http.keys));
            for name in late {
                eprint_line(&format!("note: `{name}` requires a restart"));
            }
            Some(settings)
        }
        (Ok((settings, late)), LogFormat::Json) => {
            let keys = format!("{:?}", settings.http.keys);
            let fields = [("keys", keys.into()), ("requires_restart", late.into())];
            eprint_line(&log.line("configuration reloaded", &fields));
            Some(settings)
        }
        (Err(error), LogFormat::Human) => {
            print_error(&error.context("the configuration is unchanged"));
            None
        }
        (Err(error), LogFormat::Json) => {
            eprint_line(&log.error("configuration unchanged", &[("why", format!("{error:#}").into())]));
            None
        }
    }
}

fn settings(values: &Values) -> anyhow::Result<Settings> {
    let keys = values.keys(std::env::var(API_KEY_VARIABLE).ok().as_deref())?;
    let mut settings = values.settings(keys);
    settings.worker = values.worker()?;
    settings.http.tls = values.tls()?;
    settings.http.telemetry = values.telemetry()?;
    Ok(settings)
}

/// Builds models that operators add at run time, with the settings that all models share.
fn loader(all: &Effective, runtime: &Runtime) -> anyhow::Result<ModelLoader> {
    let (settings, runtime) = (all.entry_of("")?.settings, runtime.clone());
    Ok(Arc::new(move |source| builder(source, &settings, &runtime)))
}

fn builder(source: &str, settings: &ModelSettings, runtime: &Runtime) -> ModelBuilder {
    let mut builder = Model::builder(source)
        .runtime(runtime)
        .constraints(settings.constraints.clone())
        .overrides(settings.overrides.clone());
    if let Some(revision) = &settings.revision {
        builder = builder.revision(revision);
    }
    if let Some(bytes) = settings.kv_cache {
        builder = builder.kv_cache_bytes(bytes);
    }
    builder
}

/// The server's description of a model.
fn serve(entry: &ModelEntry, values: &Values, runtime: &Runtime) -> Serve {
    let ModelEntry { name, source, aliases, settings } = entry;
    let builder = builder(source, settings, runtime);
    let own = ModelSource::parse(source, None).name();
    let given = Some(values.name.clone()).filter(|name| !name.is_empty());
    let name = name.clone().or(given).unwrap_or_else(|| own.clone());
    let aliases = [aliases.as_slice(), &[own, source.clone()]].concat();
    Serve { name, aliases, builder, load: settings.when, token_ids: settings.token_ids }
}

/// Rejects names and aliases that are used twice.
fn check_names(models: &[Serve], entries: &[ModelEntry]) -> anyhow::Result<()> {
    let mut taken: Vec<&String> = Vec::new();
    for (model, entry) in models.iter().zip(entries) {
        for name in [&model.name].into_iter().chain(&entry.aliases) {
            if taken.contains(&name) {
                bail!(
                    "two models have the same name or alias: `{name}`\nhint: change `[models.NAME]` or `aliases` in the configuration file"
                );
            }
            taken.push(name);
        }
    }
    Ok(())
}
