//! Faults that tests inject into placements.

use std::process::Command;
use std::thread;
use std::time::Duration;

use sconce_core::batch::{Batch, Rows, Sequence};
use sconce_core::device::{Device, DeviceKind};
use sconce_core::engine::EngineError;
use sconce_core::obstacle::{BuildPart, Obstacle};
use sconce_core::probe::Op;
use serde::{Deserialize, Serialize};

/// The op that is missing or wrong.
const BROKEN_OP: Op = Op::LayerNorm;
/// Sequence length from which crashes, hangs and panics happen, so that earlier cases pass.
const SPARK: usize = 33;
/// A norm that no text has.
const STRANGE_NORM: f32 = 1e6;
/// Token ids that mark a sequence as odd: some faults affect odd sequences only.
const ODD: [u32; 4] = [255; 4];
/// A text whose tokens in tiny-bert's vocabulary are these ids.
pub const ODD_TEXT: &str = "asked asked asked asked";

/// A fault of a placement.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Fault {
    /// The build lacks the device; the feature `fake` would enable it.
    NotBuilt,
    /// The device does not exist.
    NoSuchDevice,
    /// An op is missing.
    OpMissing,
    /// An op, and every model, gives wrong values.
    OpWrong,
    /// An op takes this many milliseconds.
    OpLate(u64),
    /// Sequences of this length are wrong.
    WrongAt {
        /// The length.
        length: usize,
        /// Only if it is the longest of its batch.
        longest: bool,
    },
    /// Sequences whose length is a multiple of this are NaN.
    NanAtMultiplesOf(usize),
    /// All zeros.
    Zeros,
    /// The process aborts.
    Abort,
    /// The process is killed by SIGKILL, as by the OOM killer.
    Kill,
    /// The call never returns.
    Hang,
    /// A panic.
    Panic,
    /// Out of memory above this many tokens.
    OutOfMemory {
        /// Tokens that fit.
        above: usize,
    },
    /// Out of memory for the real weights.
    DoesNotFit,
    /// The execution provider can't be registered.
    ProviderFails,
    /// Real weights give wrong values.
    WrongWeights,
    /// Real weights give NaN.
    NanWeights,
    /// Slower than the CPU in f32 by this factor.
    SlowerThanCpu(f64),
    /// Each batch takes this many milliseconds, when serving.
    Late(u64),
    /// Each token takes this many microseconds, when serving.
    Slow(u64),
    /// Each batch takes this many million steps of computation, when serving.
    Work(u64),
    /// Odd sequences have an abnormal norm.
    OddNorm,
    /// Odd sequences have wrong values with a normal norm.
    OddDrift,
    /// Odd sequences are NaN.
    OddNan,
    /// Batches with an odd sequence fail, when serving.
    OddFails,
    /// Batches with an odd sequence are rejected, when serving.
    OddMalformed,
    /// A fault from the n-th batch of an encoder on, counted from 1.
    FromBatch(usize, BatchFault),
}

/// A fault of a batch, when serving.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum BatchFault {
    /// The engine fails.
    Error,
    /// Out of memory.
    Memory,
    /// A value is NaN.
    Nan,
    /// A vector is zero.
    Zero,
    /// A norm is abnormal.
    Norm,
    /// Wrong values with normal norms.
    Drift,
    /// A row is missing.
    Rows,
    /// A panic.
    Panic,
    /// The call never returns.
    Hang,
}

impl Fault {
    /// The obstacle that is known before probing.
    pub(super) fn beforehand(self, device: Device) -> Option<Obstacle> {
        if self == Fault::NotBuilt {
            let what = match device.kind() {
                DeviceKind::Cpu => "the CPU",
                DeviceKind::Metal => "Metal",
                DeviceKind::Cuda => "CUDA",
            };
            return Some(Obstacle::NotBuilt {
                part: BuildPart::Device,
                what: what.to_owned(),
                feature: Some("fake".to_owned()),
            });
        }
        let found = "the fake sees none".to_owned();
        (self == Fault::NoSuchDevice).then_some(Obstacle::NoSuchDevice { device, found })
    }

    /// The factor by which it is slower than the CPU.
    pub(super) fn slower(self) -> Option<f64> {
        if let Fault::SlowerThanCpu(factor) = self { Some(factor) } else { None }
    }

    /// Applies the fault to a single op.
    pub(super) fn at_op(self, op: Op, rows: &mut Rows) -> Result<(), Obstacle> {
        if self == Fault::OpMissing && op == BROKEN_OP {
            return Err(missing());
        }
        if let Fault::OpLate(milliseconds) = self
            && op == BROKEN_OP
        {
            thread::sleep(Duration::from_millis(milliseconds));
        }
        if self == Fault::OpWrong && op == BROKEN_OP {
            rows.values.iter_mut().for_each(|x| *x += 1.0);
        }
        Ok(())
    }

    /// Applies the faults that prevent a probe's result.
    pub(super) fn strike(self, batch: &Batch) -> Result<(), Obstacle> {
        let sparks = longest(batch) >= SPARK;
        if self == Fault::OpMissing {
            return Err(missing());
        }
        if matches!(self, Fault::OutOfMemory { above } if batch.tokens() > above) {
            return Err(Obstacle::DoesNotFit { need: None, have: None });
        }
        if self == Fault::Abort && sparks {
            std::process::abort();
        }
        if self == Fault::Kill && sparks {
            let _ = Command::new("kill").args(["-KILL", &std::process::id().to_string()]).status();
            hang();
        }
        if self == Fault::Hang && sparks {
            hang();
        }
        assert!(self != Fault::Panic || !sparks, "the fake panics as configured");
        Ok(())
    }

    /// Applies the fault to an output.
    pub(super) fn spoil(self, rows: &mut Rows, batch: &Batch) {
        let each = rows.values.len() / batch.sequences.len().max(1);
        let pooled = rows.norms.len() == batch.sequences.len();
        let longest = longest(batch);
        for (index, sequence) in batch.sequences.iter().enumerate() {
            let place = if pooled {
                index * each..(index + 1) * each
            } else {
                sequence.start * rows.width..(sequence.start + sequence.length) * rows.width
            };
            let length = sequence.length;
            if is_odd(batch, sequence) {
                self.spoil_odd(&mut rows.values[place.clone()]);
                if let (Fault::OddNorm, Some(norm)) = (self, rows.norms.get_mut(index)) {
                    *norm = STRANGE_NORM;
                }
            }
            for x in &mut rows.values[place] {
                if self == Fault::OpWrong
                    || self == (Fault::WrongAt { length, longest: false })
                    || self == (Fault::WrongAt { length: longest, longest: true })
                {
                    *x += 1.0;
                } else if self == Fault::Zeros {
                    *x = 0.0;
                } else if matches!(self, Fault::NanAtMultiplesOf(step) if length.is_multiple_of(step)) {
                    *x = f32::NAN;
                }
            }
        }
    }
}

impl Fault {
    fn spoil_odd(self, values: &mut [f32]) {
        if self == Fault::OddNan {
            values.fill(f32::NAN);
        } else if self == Fault::OddDrift {
            values.reverse();
        }
    }
}

/// Whether a sequence of `batch` is odd.
pub(super) fn has_odd(batch: &Batch) -> bool {
    batch.sequences.iter().any(|sequence| is_odd(batch, sequence))
}

fn is_odd(batch: &Batch, sequence: &Sequence) -> bool {
    let ids = &batch.ids[sequence.start..sequence.start + sequence.length];
    ids.windows(ODD.len()).any(|ids| ids == ODD)
}

impl BatchFault {
    /// Applies the fault to an output.
    pub(super) fn apply(self, rows: &mut Rows) -> Result<(), EngineError> {
        match self {
            BatchFault::Error => return Err(EngineError::Failed("the fake fails as configured".into())),
            BatchFault::Memory => {
                return Err(EngineError::OutOfMemory("the fake has no memory at all".into()));
            }
            BatchFault::Nan => rows.values[0] = f32::NAN,
            BatchFault::Zero => rows.values[..rows.width].fill(0.0),
            BatchFault::Norm => rows.norms[0] = STRANGE_NORM,
            BatchFault::Drift => rows.values.chunks_mut(rows.width.max(1)).for_each(<[f32]>::reverse),
            BatchFault::Rows => {
                rows.values.truncate(rows.values.len() - rows.width);
                rows.norms.pop();
            }
            BatchFault::Panic => panic!("the fake panics as configured"),
            BatchFault::Hang => hang(),
        }
        Ok(())
    }
}

fn longest(batch: &Batch) -> usize {
    batch.sequences.iter().map(|sequence| sequence.length).max().unwrap_or(0)
}

fn missing() -> Obstacle {
    let reason = format!("no metal implementation for {BROKEN_OP}");
    Obstacle::OpMissing { op: BROKEN_OP.to_string(), reason }
}

fn hang() -> ! {
    loop {
        thread::sleep(Duration::from_hours(1));
    }
}
