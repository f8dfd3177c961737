//! `sconce serve`: a model over HTTP, until somebody says stop.

use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use sconce::Model;
use sconce_server::{Keys, Serve, ServeError, Server, Settings};

use crate::arguments;

/// Holds a key.
const KEY: &str = "SCONCE_API_KEY";

pub(crate) fn run(arguments: &arguments::Serve) -> anyhow::Result<ExitCode> {
    let keys = keys(arguments.api_key_file.as_deref())?;
    let address = SocketAddr::new(arguments.host, arguments.port);
    if keys.is_empty() && !arguments.host.is_loopback() && !arguments.insecure_no_key {
        bail!(
            "`{}` can be reached by others, and there is no key\n\
             hint: `--api-key-file FILE` or `{KEY}` sets one; `--insecure-no-key` goes without",
            arguments.host
        );
    }
    let listener = TcpListener::bind(address).with_context(|| format!("can't listen on `{address}`"))?;
    let typed = &arguments.model;
    let mut builder = Model::builder(&typed.model)
        .runtime(&typed.runtime())
        .wish(typed.wish())
        .overrides(typed.overrides());
    if let Some(revision) = &typed.revision {
        builder = builder.revision(revision);
    }
    let own = if Path::new(&typed.model).is_dir() { folder_name(&typed.model) } else { typed.model.clone() };
    let serve = Serve {
        name: arguments.name.clone().unwrap_or_else(|| own.clone()),
        aliases: vec![own, typed.model.clone()],
        builder,
    };
    let settings = Settings {
        keys,
        strict: arguments.strict,
        any_model: arguments.any_model,
        max_inputs: usize::from(arguments.max_inputs),
        max_body: usize::from(arguments.max_body) << 20,
        queue_seconds: arguments.queue_seconds,
        time_limit: Duration::from_secs(arguments.time_limit.into()),
        grace: Duration::from_secs(arguments.grace.into()),
        ..Settings::default()
    };
    let server = Server::start(listener, serve, settings)?;
    server.stop_on_signals()?;
    eprintln!("listening on http://{}", server.address());
    match server.wait() {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(ServeError::Model(error)) => Err(error.into()),
        Err(error) => Err(error.into()),
    }
}

/// The last part of a path, which says more than the way to it.
fn folder_name(path: &str) -> String {
    let whole = Path::new(path).canonicalize();
    let name = whole.as_deref().unwrap_or(Path::new(path)).file_name();
    name.map_or_else(|| path.to_owned(), |name| name.to_string_lossy().into_owned())
}

fn keys(file: Option<&Path>) -> anyhow::Result<Keys> {
    let mut keys = Keys::default();
    if let Some(path) = file {
        let text =
            std::fs::read_to_string(path).with_context(|| format!("`{}` can't be read", path.display()))?;
        keys.extend(Keys::read(&text).with_context(|| format!("`{}`", path.display()))?);
    }
    if let Ok(key) = std::env::var(KEY)
        && !key.trim().is_empty()
    {
        keys.extend(Keys::read(&key).with_context(|| format!("`{KEY}`"))?);
    }
    Ok(keys)
}
