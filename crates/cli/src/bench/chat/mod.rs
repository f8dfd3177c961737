//! Benchmarks chats over HTTP: throughput and latency of streams by concurrency, of this model and of other servers.

mod level;
mod report;
mod stream;

use std::net::TcpListener;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use sconce::ModelSource;
use sconce::prove::ProofDepth;
use sconce::tokenize::ModelTokenizer;
use sconce_worker::{LoadPolicy, Serve, ServeError, Settings};

use super::output;
use super::plot::Plot;
use super::runner;
use super::server::Server;
use super::workload::of_length;
use crate::arguments::Bench;
use crate::server_spec::{Kind, ServerSpec};
use crate::terminal::ProgressBars;
use report::{Measured, Report};
use stream::chat;

/// Model name of the own server.
const NAME: &str = "bench";
/// Timeout of a chat with the own server, and of the load before the first one.
const OWN_TIMEOUT: u16 = 3600;
/// Tokens of a prompt.
const INPUT: u32 = 256;
/// Warm-up of a server.
const WARM_UP: (&str, usize) = ("hello", 2);

pub(super) fn run(arguments: &Bench, plot: Option<Plot>) -> anyhow::Result<ExitCode> {
    if arguments.input.is_some() {
        bail!("`--input` is not used for language models\nhint: set `--input-tokens` and `--output-tokens`");
    }
    // Report an unreachable server before the long work starts.
    let model = arguments.against_model.as_deref().unwrap_or(&arguments.model.model);
    let mut others = Vec::new();
    for spec in &arguments.against {
        if spec.kind == Kind::Tei {
            bail!("a `tei` server has no chats: `{}`\nhint: pass `--against openai=URL`", spec.url);
        }
        let server = Server::new(spec, model, arguments.timeout);
        chat(&server, WARM_UP.0, WARM_UP.1)?;
        others.push(server);
    }

    let mut bars = ProgressBars::default();
    let runtime = arguments.model.runtime();
    let source = ModelSource::parse(&arguments.model.model, arguments.model.revision.as_deref())
        .for_constraints(&arguments.model.constraints());
    let subject =
        runtime.model_spec(&source, &arguments.model.overrides(), &mut |event| bars.draw(&event))?;
    let card = &subject.card;
    let (input, output) =
        (arguments.input_tokens.unwrap_or(INPUT) as usize, arguments.output_tokens as usize);
    ensure!(
        input + output < card.max_length.value,
        "{input} tokens of input and {output} of output exceed the context of the model: {} tokens\n\
         hint: lower `--input-tokens` or `--output-tokens`",
        card.max_length.value
    );
    let constraints = arguments.model.constraints();
    let plan = runtime.plan(&subject, &constraints, ProofDepth::Canary, &mut |event| bars.draw(&event))?;
    let Some(placement) = plan.chosen.as_ref().map(|chosen| chosen.placement.clone()) else {
        return Err(
            sconce::Error::NoPlacement { plan: Box::new(plan), constraints: Box::new(constraints) }.into()
        );
    };
    bars.clear();
    let tokens = ModelTokenizer::open(&subject.files.folder, card)?;
    let rounds: usize = arguments.rounds.into();
    let levels: Vec<usize> = arguments.concurrency.iter().copied().map(usize::from).collect();
    let (texts, _) = of_length(&tokens, levels.iter().sum::<usize>() * rounds, input)?;
    // Numbers: no prompt is the prefix of another, so that no server has it in its cache.
    let prompts: Vec<String> =
        texts.into_iter().enumerate().map(|(number, text)| format!("{number} {text}")).collect();

    let serve = Serve {
        name: NAME.to_owned(),
        aliases: Vec::new(),
        builder: runner::builder(&arguments.model, &runtime, &placement),
        load: LoadPolicy::default(),
        token_ids: false,
    };
    let own = OwnServer::start(serve)?;
    let mut all = vec![Measured::of_placement(placement)];
    all.extend(others.iter().map(Measured::of_server));
    let servers: Vec<&Server> = [&own.client].into_iter().chain(&others).collect();
    let mut rest = &prompts[..];
    for concurrency in levels {
        let (own_prompts, later) = rest.split_at(concurrency * rounds);
        rest = later;
        for (measured, server) in
            all.iter_mut().zip(&servers).filter(|(measured, _)| measured.error.is_none())
        {
            eprintln!("concurrency {concurrency}: {}", measured.name());
            match level::measure(server, own_prompts, rounds, output) {
                Ok(level) => measured.levels.push(level),
                Err(error) => measured.error = Some(format!("{error:#}")),
            }
        }
    }
    own.stop()?;
    let report = Report { model: &card.name, input, output, rounds, all };
    let all_ran = report.all.iter().all(|measured| measured.error.is_none());
    output::show(arguments, plot, || report.figure(), || report.json(), || report.text(), all_ran)
}

/// A server of this process, on a free port of the loopback interface.
struct OwnServer {
    server: sconce_worker::Server,
    client: Server,
}

impl OwnServer {
    /// Starts the server, and waits until the model is loaded.
    fn start(serve: Serve) -> anyhow::Result<OwnServer> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).context("could not listen on: `127.0.0.1`")?;
        let mut settings = Settings::default();
        settings.http.time_limit = Duration::from_secs(OWN_TIMEOUT.into());
        settings.load_wait = settings.http.time_limit;
        settings.max_generations = usize::MAX;
        let server = sconce_worker::Server::start(listener, vec![serve], settings)?;
        let spec = ServerSpec { kind: Kind::OpenAi, url: format!("http://{}", server.address()) };
        let client = Server::new(&spec, NAME, OWN_TIMEOUT);
        let own = OwnServer { server, client };
        match chat(&own.client, WARM_UP.0, WARM_UP.1) {
            Ok(_) => Ok(own),
            // A model that can't be loaded ends the server.
            Err(error) => Err(own.stop().err().unwrap_or(error)),
        }
    }

    fn stop(self) -> anyhow::Result<()> {
        self.server.stop();
        match self.server.wait() {
            Err(ServeError::Model(error)) => Err(error.into()),
            stopped => Ok(stopped?),
        }
    }
}
