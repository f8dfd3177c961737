//! `sconce serve`: models over HTTP, until somebody says stop.

use std::net::{SocketAddr, TcpListener};
use std::process::ExitCode;

use anyhow::{Context, bail};
use sconce::{Model, ModelSource, Runtime};
use sconce_server::{LogFormat, Serve, ServeError, Server, Settings};

use crate::config::{Effective, Entry, Flags, Values, effective};
use crate::screen::complain;

/// Holds a key.
const KEY: &str = "SCONCE_API_KEY";

pub(crate) fn run(flags: &Flags) -> anyhow::Result<ExitCode> {
    let all = effective(flags)?;
    let values = all.values()?;
    let settings = settings(&values)?;
    let address = SocketAddr::new(values.host, values.port);
    if settings.keys.is_empty() && !values.host.is_loopback() && !values.insecure_no_key {
        bail!(
            "`{}` can be reached by others, and there is no key\n\
             hint: `--api-key-file FILE` or `{KEY}` sets one; `--insecure-no-key` goes without",
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
    let models: Vec<Serve> = entries.iter().map(|entry| serve(entry, &values, &runtime)).collect();
    check_names(&models)?;
    let scheme = if settings.tls.is_some() { "https" } else { "http" };
    let listener = TcpListener::bind(address).with_context(|| format!("can't listen on `{address}`"))?;
    let log = settings.sight.log.unwrap_or_default();
    let server = Server::start(listener, models, settings)?;
    server.stop_on_signals()?;
    let flags = flags.clone();
    server.reload_on_signal(move || reread(&flags, &all))?;
    let address = format!("{scheme}://{}", server.address());
    match log {
        LogFormat::Human => eprintln!("listening on {address}"),
        LogFormat::Json => eprintln!("{}", LogFormat::Json.line("listening", &[("address", address.into())])),
    }
    match server.wait() {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(ServeError::Model(error)) => Err(error.into()),
        Err(error) => Err(error.into()),
    }
}

/// The settings as they stand now; none where they can't be read, which leaves all as it was.
fn reread(flags: &Flags, before: &Effective) -> Option<Settings> {
    let read = || {
        let all = effective(flags)?;
        let settings = settings(&all.values()?)?;
        anyhow::Ok((settings, before.needs_a_restart(&all)))
    };
    match read() {
        Ok((settings, late)) => {
            eprintln!("settings read again: {:?}", settings.keys);
            for name in late {
                eprintln!("note: `{name}` takes a restart");
            }
            Some(settings)
        }
        Err(error) => {
            complain(&error.context("the settings stay as they were"));
            None
        }
    }
}

fn settings(values: &Values) -> anyhow::Result<Settings> {
    let keys = values.keys(std::env::var(KEY).ok().as_deref())?;
    Ok(Settings {
        worker: values.worker()?,
        tls: values.tls()?,
        sight: values.sight()?,
        ..values.settings(keys)
    })
}

/// A model as the server takes it.
fn serve(entry: &Entry, values: &Values, runtime: &Runtime) -> Serve {
    let Entry { name, source, aliases, how } = entry;
    let mut builder =
        Model::builder(source).runtime(runtime).wish(how.wish.clone()).overrides(how.overrides.clone());
    if let Some(revision) = &how.revision {
        builder = builder.revision(revision);
    }
    let own = ModelSource::parse(source, None).name();
    let given = Some(values.name.clone()).filter(|name| !name.is_empty());
    let name = name.clone().or(given).unwrap_or_else(|| own.clone());
    Serve { name, aliases: [aliases.as_slice(), &[own, source.clone()]].concat(), builder, when: how.when }
}

/// Every model has a name of its own.
fn check_names(models: &[Serve]) -> anyhow::Result<()> {
    for (at, model) in models.iter().enumerate() {
        if models[..at].iter().any(|other| other.name == model.name) {
            bail!("two models are called `{}`\nhint: `models.NAME` in the file names each", model.name);
        }
    }
    Ok(())
}
