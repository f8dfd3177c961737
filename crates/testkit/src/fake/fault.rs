//! What a placement can have wrong with it.

use std::process::Command;
use std::thread;
use std::time::Duration;

use sconce_core::batch::{Batch, Rows, Sequence};
use sconce_core::device::{Device, DeviceKind};
use sconce_core::engine::EngineError;
use sconce_core::obstacle::Obstacle;
use sconce_core::probe::Op;
use serde::{Deserialize, Serialize};

/// The op that is missing or wrong where one is.
const BROKEN_OP: Op = Op::LayerNorm;
/// The length from which the violent faults strike, so that there are good answers before the end.
const SPARK: usize = 33;
/// A norm that no text has.
const STRANGE_NORM: f32 = 1e6;
/// Token ids in a row that make a sequence odd: faults may strike such sequences alone.
const ODD: [u32; 4] = [255; 4];
/// A text whose tokens in tiny-bert's vocabulary are those.
pub const ODD_TEXT: &str = "asked asked asked asked";

/// What a placement has wrong with it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Fault {
    /// The build lacks it, and a feature named `fake` would bring it.
    NotBuilt,
    /// The engine sees no such device.
    NoSuchDevice,
    /// An op is missing.
    OpMissing,
    /// An op, and every model with it, is wrong.
    OpWrong,
    /// An op takes this many milliseconds.
    OpLate(u64),
    /// A sequence of this length is wrong.
    WrongAt {
        /// The length.
        length: usize,
        /// Only where it is the longest of its batch.
        longest: bool,
    },
    /// Sequences whose length is a multiple of this are not numbers.
    NanAtMultiplesOf(usize),
    /// All zeros.
    Zeros,
    /// The process ends.
    Abort,
    /// The process is killed by SIGKILL, as the system does when memory runs out.
    Kill,
    /// No answer, ever.
    Hang,
    /// A panic.
    Panic,
    /// No memory for more tokens than this, at any time.
    OutOfMemory {
        /// Tokens that still fit.
        above: usize,
    },
    /// No memory for the real weights.
    DoesNotFit,
    /// What would drive the device can't be registered.
    ProviderFails,
    /// Wrong with the real weights only.
    WrongWeights,
    /// Not numbers with the real weights only.
    NanWeights,
    /// This many times slower than the CPU in f32.
    SlowerThanCpu(f64),
    /// Each batch takes this many milliseconds, at run time only.
    Late(u64),
    /// Each token takes this many microseconds, at run time only.
    Slow(u64),
    /// Each batch takes this many million steps of computing, at run time only.
    Work(u64),
    /// Odd sequences have a norm that no other has.
    OddNorm,
    /// Odd sequences have the numbers of another.
    OddDrift,
    /// Odd sequences are not numbers.
    OddNan,
    /// Batches with an odd sequence fail, at run time only.
    OddFails,
    /// Batches with an odd sequence are rejected, at run time only.
    OddMalformed,
    /// Something goes wrong at the n-th batch of an encoder, the first being 1, and at every later one.
    FromBatch(usize, Mishap),
}

/// What goes wrong at run time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Mishap {
    /// The engine fails.
    Error,
    /// There is no memory for anything.
    Memory,
    /// A number is not one.
    Nan,
    /// A vector is zero.
    Zero,
    /// A vector's norm is out of all bounds.
    Norm,
    /// Vectors of other texts: nothing is strange about them but that they are wrong.
    Drift,
    /// A row is missing.
    Rows,
    /// A panic.
    Panic,
    /// No answer, ever.
    Hang,
}

impl Fault {
    /// What is known before anything is tried.
    pub(super) fn beforehand(self, device: Device) -> Option<Obstacle> {
        if self == Fault::NotBuilt {
            let what = match device.kind() {
                DeviceKind::Cpu => "the CPU",
                DeviceKind::Metal => "Metal",
                DeviceKind::Cuda => "CUDA",
            };
            return Some(Obstacle::NotBuilt { what: what.to_owned(), feature: Some("fake".to_owned()) });
        }
        let found = "the fake sees none".to_owned();
        (self == Fault::NoSuchDevice).then_some(Obstacle::NoSuchDevice { device, found })
    }

    /// How many times slower than the CPU.
    pub(super) fn slower(self) -> Option<f64> {
        if let Fault::SlowerThanCpu(factor) = self { Some(factor) } else { None }
    }

    /// What happens to a single op.
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

    /// What happens instead of an answer to a probe.
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
        assert!(self != Fault::Panic || !sparks, "the fake panics as it was told");
        Ok(())
    }

    /// What happens to an answer.
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

impl Mishap {
    /// What happens to an answer at run time.
    pub(super) fn befall(self, rows: &mut Rows) -> Result<(), EngineError> {
        match self {
            Mishap::Error => return Err(EngineError::Failed("the fake fails as it was told".into())),
            Mishap::Memory => return Err(EngineError::OutOfMemory("the fake has no memory at all".into())),
            Mishap::Nan => rows.values[0] = f32::NAN,
            Mishap::Zero => rows.values[..rows.width].fill(0.0),
            Mishap::Norm => rows.norms[0] = STRANGE_NORM,
            Mishap::Drift => rows.values.chunks_mut(rows.width.max(1)).for_each(<[f32]>::reverse),
            Mishap::Rows => {
                rows.values.truncate(rows.values.len() - rows.width);
                rows.norms.pop();
            }
            Mishap::Panic => panic!("the fake panics as it was told"),
            Mishap::Hang => hang(),
        }
        Ok(())
    }
}

fn longest(batch: &Batch) -> usize {
    batch.sequences.iter().map(|sequence| sequence.length).max().unwrap_or(0)
}

fn missing() -> Obstacle {
    let says = format!("no metal implementation for {BROKEN_OP}");
    Obstacle::OpMissing { op: BROKEN_OP.to_string(), says }
}

fn hang() -> ! {
    loop {
        thread::sleep(Duration::from_hours(1));
    }
}
