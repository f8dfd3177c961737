//! `sconce serve`: models over HTTP, until somebody says stop.
// These macros panic once nobody reads standard error any more, and end the thread that reloads keys.
#![deny(clippy::print_stderr, clippy::print_stdout)]

use std::net::{IpAddr, SocketAddr, TcpListener};
use std::process::ExitCode;

use anyhow::{Context, bail};
use sconce::{Model, ModelSource, Runtime};
use sconce_worker::http::LogFormat;
use sconce_worker::{Serve, ServeError, Server, Settings};

use crate::config::{Effective, Entry, Flags, Values, effective};
use crate::screen::{complain, say};

/// Holds a key.
pub(crate) const KEY: &str = "SCONCE_API_KEY";

pub(crate) fn run(flags: &Flags) -> anyhow::Result<ExitCode> {
    let all = effective(flags)?;
    let values = all.values()?;
    let log = values.log()?;
    match start(flags, all, &values).and_then(|server| Ok(server.wait()?)) {
        Ok(()) => Ok(ExitCode::SUCCESS),
        // Whoever reads JSON reads all of it.
        Err(error) if log == LogFormat::Json => {
            say(&log.error("ended", &[("why", format!("{error:#}").into())]));
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
    let settings = settings(values)?;
    let address = SocketAddr::new(values.host, values.port);
    check_door(values.host, &settings, values)?;
    if values.host.is_unspecified() && settings.worker.callback.is_some() && settings.worker.url.is_none() {
        bail!(
            "`{}` is no address that others can be told\nhint: `--advertise-url http://NAME:PORT` says one",
            values.host
        );
    }
    let runtime = values.runtime();
    let entries = all.entries()?;
    if entries.is_empty() {
        bail!("no model to serve\nhint: `sconce serve MODEL…`, or `models` in the file of settings");
    }
    if entries.len() > 1 && !values.name.is_empty() {
        bail!(
            "`name` is for one model, and there are: {}\nhint: `models.NAME` in the file names each",
            entries.len()
        );
    }
    let models: Vec<Serve> = entries.iter().map(|entry| serve(entry, values, &runtime)).collect();
    check_names(&models, &entries)?;
    let scheme = if settings.http.tls.is_some() { "https" } else { "http" };
    let listener = TcpListener::bind(address).with_context(|| format!("can't listen on `{address}`"))?;
    let log = settings.http.telemetry.log.unwrap_or_default();
    let mut has_keys = !settings.http.keys.is_empty();
    let server = Server::start(listener, models, settings)?;
    server.stop_on_signals()?;
    let flags = flags.clone();
    server.reload_on_signal(move || reread(&flags, &all, &mut has_keys, log))?;
    let address = format!("{scheme}://{}", server.address());
    match log {
        LogFormat::Human => say(&format!("listening on {address}")),
        LogFormat::Json => say(&log.line("listening", &[("address", address.into())])),
    }
    Ok(server)
}

/// Whether those who can reach it need a key.
fn check_door(host: IpAddr, settings: &Settings, values: &Values) -> anyhow::Result<()> {
    if settings.http.keys.is_empty() && !host.is_loopback() && !values.insecure_no_key {
        bail!(
            "`{host}` can be reached by others, and there is no key\n\
             hint: `--api-key-file FILE` or `{KEY}` sets one; `--insecure-no-key` goes without"
        );
    }
    Ok(())
}

/// The settings as they stand now; none where they can't be read, or would open a door that was closed, which leaves
/// all as it was.
fn reread(flags: &Flags, before: &Effective, has_keys: &mut bool, log: LogFormat) -> Option<Settings> {
    let mut read = || {
        let (all, old) = (effective(flags)?, before.values()?);
        let values = all.values()?;
        let settings = settings(&values)?;
        if *has_keys && settings.http.keys.is_empty() {
            bail!("to go without keys takes a restart");
        }
        *has_keys = !settings.http.keys.is_empty();
        if old.tls_certificate.is_empty() != values.tls_certificate.is_empty() {
            bail!("to begin with TLS, or to go without it, takes a restart");
        }
        anyhow::Ok((settings, before.needs_a_restart(&all)))
    };
    match (read(), log) {
        (Ok((settings, late)), LogFormat::Human) => {
            say(&format!("settings read again: {:?}", settings.http.keys));
            for name in late {
                say(&format!("note: `{name}` takes a restart"));
            }
            Some(settings)
        }
        (Ok((settings, late)), LogFormat::Json) => {
            let keys = format!("{:?}", settings.http.keys);
            let fields = [("keys", keys.into()), ("take_a_restart", late.into())];
            say(&log.line("settings read again", &fields));
            Some(settings)
        }
        (Err(error), LogFormat::Human) => {
            complain(&error.context("the settings stay as they were"));
            None
        }
        (Err(error), LogFormat::Json) => {
            say(&log.error("settings stay as they were", &[("why", format!("{error:#}").into())]));
            None
        }
    }
}

fn settings(values: &Values) -> anyhow::Result<Settings> {
    let keys = values.keys(std::env::var(KEY).ok().as_deref())?;
    let mut settings = values.settings(keys);
    settings.worker = values.worker()?;
    settings.http.tls = values.tls()?;
    settings.http.telemetry = values.telemetry()?;
    Ok(settings)
}

/// A model as the server takes it.
fn serve(entry: &Entry, values: &Values, runtime: &Runtime) -> Serve {
    let Entry { name, source, aliases, how } = entry;
    let mut builder = Model::builder(source)
        .runtime(runtime)
        .constraints(how.constraints.clone())
        .overrides(how.overrides.clone());
    if let Some(revision) = &how.revision {
        builder = builder.revision(revision);
    }
    let own = ModelSource::parse(source, None).name();
    let given = Some(values.name.clone()).filter(|name| !name.is_empty());
    let name = name.clone().or(given).unwrap_or_else(|| own.clone());
    let aliases = [aliases.as_slice(), &[own, source.clone()]].concat();
    Serve { name, aliases, builder, when: how.when, token_ids: how.token_ids }
}

/// Every model has names of its own.
fn check_names(models: &[Serve], entries: &[Entry]) -> anyhow::Result<()> {
    let mut taken: Vec<&String> = Vec::new();
    for (model, entry) in models.iter().zip(entries) {
        for name in [&model.name].into_iter().chain(&entry.aliases) {
            if taken.contains(&name) {
                bail!(
                    "two models are called `{name}`\nhint: `models.NAME` and its `aliases` in the file name each"
                );
            }
            taken.push(name);
        }
    }
    Ok(())
}
