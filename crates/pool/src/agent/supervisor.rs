//! The task of one worker: does what its supervision decides.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sconce_registry::{FailureRecord, Registry};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::exit::Exit;
use super::failure::FailedWorker;
use super::log::AgentLog;
use super::probe::Probes;
use super::process::{Process, WorkerCommand};
use super::supervision::{Action, KillReason, Next, Supervision, SupervisionOptions};

/// Interval at which the end of a process is noticed.
const POLL_INTERVAL: Duration = Duration::from_millis(25);
/// Time in which the log of a process that ended is read to its end.
const LOG_TIMEOUT: Duration = Duration::from_secs(1);

/// What the tasks of all workers share.
#[derive(Clone)]
pub(super) struct Shared {
    pub(super) options: SupervisionOptions,
    pub(super) log: AgentLog,
    /// Where workers that do not run are registered.
    pub(super) registry: Option<Arc<dyn Registry>>,
    /// Workers drain once this is cancelled.
    pub(super) stop: CancellationToken,
    /// Workers are killed once this is cancelled.
    pub(super) abort: CancellationToken,
}

/// One worker.
pub(super) struct Supervisor {
    command: WorkerCommand,
    shared: Shared,
    supervision: Supervision,
    process: Option<Process>,
    probes: Option<Probes>,
    /// Why the agent killed the process.
    killed: Option<KillReason>,
    failed: Option<FailedWorker>,
}

impl Supervisor {
    /// The supervisor of a worker that is not started yet.
    pub(super) fn new(command: WorkerCommand, shared: Shared) -> Supervisor {
        let supervision = Supervision::new(shared.options, Instant::now());
        Supervisor { command, shared, supervision, process: None, probes: None, killed: None, failed: None }
    }

    /// Runs the worker until it has stopped.
    pub(super) async fn run(mut self) {
        let (stop, abort) = (self.shared.stop.clone(), self.shared.abort.clone());
        loop {
            self.observe_exit().await;
            if self.supervision.is_stopped() {
                break;
            }
            self.observe_listening();
            let due = self.supervision.poll(Instant::now());
            self.act(due).await;
            let probes = &mut self.probes;
            let probe = async {
                match probes {
                    Some(probes) => probes.next().await,
                    None => std::future::pending().await,
                }
            };
            let due = tokio::select! {
                Some(outcome) = probe => self.supervision.probed(outcome, Instant::now()),
                () = abort.cancelled(), if self.killed.is_none() => self.supervision.abort(),
                () = stop.cancelled(), if !self.supervision.is_stopping() => {
                    self.supervision.stop(Instant::now())
                }
                () = sleep(POLL_INTERVAL) => None,
            };
            self.act(due).await;
        }
        if let Some(failed) = self.failed.take() {
            failed.withdraw().await;
        }
    }

    async fn act(&mut self, action: Option<Action>) {
        match action {
            None => {}
            Some(Action::Start) => self.start().await,
            Some(Action::Drain) => {
                self.log("worker drains");
                self.process.iter_mut().for_each(Process::drain);
            }
            Some(Action::Kill(reason)) => {
                self.killed = Some(reason);
                self.probes = None;
                let fields = [("worker", self.id().into()), ("why", reason.to_string().into())];
                self.shared.log.error("worker killed", &fields);
                self.process.iter_mut().for_each(Process::kill);
            }
        }
    }

    async fn start(&mut self) {
        // Before the process registers itself.
        if let Some(failed) = self.failed.take() {
            failed.withdraw().await;
        }
        let (log, id) = (self.shared.log.clone(), self.command.id.clone());
        match Process::start(&self.command, move |line| log.worker_line(&id, line)) {
            Ok(process) => {
                let fields = [("worker", self.id().into()), ("pid", process.id().into())];
                self.shared.log.info("worker started", &fields);
                self.process = Some(process);
            }
            Err(error) => self.exited(&Exit::NotStarted(error.to_string()), Vec::new()),
        }
    }

    fn observe_listening(&mut self) {
        if self.probes.is_none()
            && self.killed.is_none()
            && let Some(process) = &self.process
            && let Some(url) = process.probe_url().borrow().clone()
        {
            self.supervision.listening(Instant::now());
            self.probes = Some(Probes::start(url));
        }
    }

    async fn observe_exit(&mut self) {
        let Some(process) = &mut self.process else { return };
        let Some(exit) = process.try_exit() else { return };
        // A child of the worker may still hold its log.
        let mut end_of_log = process.probe_url();
        let _ = timeout(LOG_TIMEOUT, async { while end_of_log.changed().await.is_ok() {} }).await;
        let tail = process.tail();
        (self.process, self.probes) = (None, None);
        self.exited(&exit, tail);
        self.killed = None;
    }

    fn exited(&mut self, exit: &Exit, tail: Vec<String>) {
        let next = self.supervision.exited(exit, Instant::now());
        let how = match self.killed {
            Some(reason) => format!("{exit}, because {reason}"),
            None => exit.to_string(),
        };
        let (id, seconds) = (self.id(), |after: Duration| after.as_secs_f64().into());
        match next {
            Next::Stopped => {
                self.shared.log.info("worker ended", &[("worker", id.into()), ("how", how.into())]);
            }
            Next::Restart { after } => {
                let fields =
                    [("worker", id.into()), ("how", how.into()), ("restart_seconds", seconds(after))];
                self.shared.log.error("worker crashed", &fields);
            }
            Next::Degraded { crashes, after } => {
                let fields = [
                    ("worker", id.into()),
                    ("how", how.clone().into()),
                    ("crashes", crashes.into()),
                    ("restart_seconds", seconds(after)),
                    ("log", tail.clone().into()),
                ];
                self.shared.log.error("worker degraded", &fields);
                let window = self.shared.options.crash_window.as_secs();
                let times = if crashes == 1 { "once".to_owned() } else { format!("{crashes} times") };
                let reason = format!("it crashed {times} in {window} s; the last process {how}");
                let failure = FailureRecord { reason, log: tail };
                self.failed = self.shared.registry.as_ref().map(|registry| {
                    FailedWorker::register(Arc::clone(registry), self.command.id.clone(), failure)
                });
            }
        }
    }

    fn id(&self) -> &str {
        &self.command.id
    }

    fn log(&self, event: &str) {
        self.shared.log.info(event, &[("worker", self.id().into())]);
    }
}
