//! Device executors: a model that hangs or loads does not block others, and CPU contention is not a hang.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use sconce::Device;
use sconce_testkit::fake::{BatchFault, Fault, Gates};

use crate::fakes::{METAL, Stage, TEXTS, builder, candle, healthy};

const SHORT: Duration = Duration::from_millis(400);

fn until(what: &str, reached: impl Fn() -> bool) {
    for _ in 0..6000 {
        if reached() {
            return;
        }
        thread::sleep(Duration::from_millis(10));
    }
    panic!("not within a minute: {what}");
}

#[test]
fn a_hang_on_the_cpu_retires_the_model_that_hung_and_no_other() {
    for concurrency in [1, 4] {
        // The processor is the faster one here, and each encoder hangs at its third batch.
        let mut engine = candle()
            .with(METAL, Fault::SlowerThanCpu(3.0))
            .with(Device::Cpu, Fault::FromBatch(3, BatchFault::Hang));
        engine.concurrency = concurrency;
        let stage = Stage { timeout: SHORT, ..Stage::new(engine) };
        let runtime = stage.in_process().build();
        let open = || builder(&runtime).open().expect("something serves");
        let (hangs, other) = (open(), open());
        for expected in [Device::Cpu, Device::Cpu, METAL] {
            assert_eq!(hangs.embed(&TEXTS).expect("something serves").placements[0].device, expected);
        }
        for _ in 0..2 {
            let got = other.embed(&TEXTS).expect("it serves");
            assert_eq!(
                got.placements[0].device,
                Device::Cpu,
                "{concurrency} concurrency:\n{}",
                other.plan().explain()
            );
            assert_eq!(got.into_vectors(), healthy(&TEXTS));
        }
        assert!(other.quarantined().is_empty());
    }
}

/// Loads a second model, which is held up, and computes on the first meanwhile.
fn computes_while_another_loads(device: Device, gates: &Arc<Gates>, runtime: &sconce::Runtime) {
    let first = builder(runtime).device(device).open().expect("it serves");
    gates.hold_loads.store(true, Ordering::SeqCst);
    let second = thread::spawn({
        let runtime = runtime.clone();
        move || builder(&runtime).device(device).open().map(|model| model.placement())
    });
    until("the second model loads", || gates.waiting.load(Ordering::SeqCst) == 1);
    let computed = thread::spawn(move || first.embed(&TEXTS).map(|got| got.placements[0].device));
    until("a batch is computed meanwhile", || computed.is_finished());
    assert_eq!(computed.join().expect("no panic").expect("it serves"), device);
    assert_eq!(gates.waiting.load(Ordering::SeqCst), 1, "the second model was to be loading still");
    gates.hold_loads.store(false, Ordering::SeqCst);
    let placement = second.join().expect("no panic").expect("it opens");
    assert_eq!(placement.map(|placement| placement.device), Some(device));
}

#[test]
fn a_model_that_loads_on_the_cpu_holds_up_no_other() {
    let engine = candle();
    let gates = Arc::clone(&engine.gates);
    let stage = Stage::new(engine);
    computes_while_another_loads(Device::Cpu, &gates, &stage.in_process().build());
}

#[test]
fn an_engine_that_can_load_on_any_thread_does_not_hold_up_an_accelerator() {
    let mut engine = candle();
    engine.loads_on_any_thread = true;
    let gates = Arc::clone(&engine.gates);
    let stage = Stage::new(engine);
    computes_while_another_loads(METAL, &gates, &stage.in_process().build());
}

/// Threads that keep every core busy several times over until they are dropped.
struct Hogs {
    stop: Arc<AtomicBool>,
    threads: Vec<thread::JoinHandle<()>>,
}

impl Hogs {
    fn start(on_each_core: usize) -> Hogs {
        let stop = Arc::new(AtomicBool::new(false));
        let cores = thread::available_parallelism().map_or(2, usize::from);
        let hog = |_| {
            let stop = Arc::clone(&stop);
            thread::spawn(move || while !stop.load(Ordering::Relaxed) {})
        };
        let threads = (0..cores * on_each_core).map(hog).collect();
        Hogs { stop, threads }
    }
}

impl Drop for Hogs {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

#[test]
#[cfg(target_os = "linux")]
fn a_batch_on_a_busy_machine_is_not_hung() {
    // Alone it takes less than the timeout, and beside others on the same core longer.
    let stage = Stage { timeout: SHORT, ..Stage::new(candle().with(METAL, Fault::Work(20))) };
    let model = builder(&stage.in_process().build()).open().expect("it serves");
    let _hogs = Hogs::start(6);
    let got = model.embed(&TEXTS).expect("it serves");
    assert_eq!(got.placements[0].device, METAL, "{}", model.plan().explain());
}

#[test]
fn a_hang_is_seen_on_a_busy_machine_too() {
    let fault = Fault::FromBatch(1, BatchFault::Hang);
    let stage = Stage { timeout: SHORT, ..Stage::new(candle().with(METAL, fault)) };
    let model = builder(&stage.in_process().build()).open().expect("it serves");
    let _hogs = Hogs::start(1);
    let got = model.embed(&TEXTS).expect("the CPU serves");
    assert_eq!(got.placements[0].device, Device::Cpu);
    assert!(model.plan().explain().contains("it gave no answer in 0.4 s"), "{}", model.plan().explain());
}
