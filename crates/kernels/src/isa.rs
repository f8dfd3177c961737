//! The instruction set: the widest that the processor has, or the one in `SCONCE_ISA`.

use std::fmt;
use std::str::FromStr;
use std::sync::OnceLock;

use pulp::{Arch, Scalar, Simd, WithSimd};

use crate::detect;

/// Environment variable that selects a narrower instruction set.
pub const VARIABLE: &str = "SCONCE_ISA";

/// Instruction sets, narrowest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Isa {
    /// Scalar code.
    Plain,
    /// 256-bit vectors with fused multiply-add.
    Avx2,
    /// 256-bit vectors with dot products of bytes.
    AvxVnni,
    /// 512-bit vectors.
    Avx512,
    /// 512-bit vectors with bf16 dot products.
    Avx512Bf16,
    /// 512-bit vectors, and AMX tiles for bf16.
    Amx,
    /// Other architectures: NEON on aarch64.
    Other,
}

impl Isa {
    /// All instruction sets.
    pub const ALL: [Isa; 7] =
        [Isa::Plain, Isa::Avx2, Isa::AvxVnni, Isa::Avx512, Isa::Avx512Bf16, Isa::Amx, Isa::Other];

    /// The instruction sets of this processor.
    pub fn available() -> Vec<Isa> {
        Isa::ALL.into_iter().filter(|isa| isa.is_available()).collect()
    }

    /// The widest available instruction set, or the one that `SCONCE_ISA` names if it is available; read once.
    pub fn best() -> Isa {
        static BEST: OnceLock<Isa> = OnceLock::new();
        *BEST.get_or_init(|| {
            let asked = std::env::var(VARIABLE).ok().and_then(|name| name.parse().ok());
            let asked = asked.filter(|isa: &Isa| isa.is_available());
            asked.unwrap_or_else(|| Isa::available().last().copied().unwrap_or(Isa::Plain))
        })
    }

    /// Whether this processor has the instruction set.
    pub fn is_available(self) -> bool {
        match self {
            Isa::Plain => true,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => pulp::x86::V3::try_new().is_some(),
            #[cfg(target_arch = "x86_64")]
            Isa::AvxVnni => Isa::Avx2.is_available() && detect::has_avx_vnni(),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => pulp::x86::V4::try_new().is_some(),
            Isa::Avx512Bf16 => detect::has_avx512_bf16(),
            Isa::Amx => detect::has_amx(),
            #[cfg(not(target_arch = "x86_64"))]
            Isa::Avx2 | Isa::AvxVnni | Isa::Avx512 => false,
            Isa::Other => cfg!(not(target_arch = "x86_64")),
        }
    }

    /// Runs `work` compiled for this instruction set, or scalar if the processor lacks it.
    pub(crate) fn dispatch<W: WithSimd>(self, work: W) -> W::Output {
        match self {
            Isa::Plain => work.with_simd(Scalar::new()),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 | Isa::AvxVnni => match pulp::x86::V3::try_new() {
                Some(simd) => Simd::vectorize(simd, work),
                None => work.with_simd(Scalar::new()),
            },
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 | Isa::Avx512Bf16 | Isa::Amx => match pulp::x86::V4::try_new() {
                Some(simd) => Simd::vectorize(simd, work),
                None => work.with_simd(Scalar::new()),
            },
            #[cfg(not(target_arch = "x86_64"))]
            Isa::Avx2 | Isa::AvxVnni | Isa::Avx512 | Isa::Avx512Bf16 | Isa::Amx => {
                work.with_simd(Scalar::new())
            }
            Isa::Other => Arch::new().dispatch(work),
        }
    }

    /// Runs auto-vectorized `work` compiled for this instruction set.
    pub fn run(self, work: impl Vectorized) {
        struct Work<W>(W);
        impl<W: Vectorized> WithSimd for Work<W> {
            type Output = ();
            #[inline(always)]
            fn with_simd<S: Simd>(self, _: S) {
                self.0.run();
            }
        }
        self.dispatch(Work(work));
    }
}

/// Work whose loops the compiler vectorizes. A trait and not a closure: a closure may be compiled on its own, for the
/// baseline processor.
pub trait Vectorized {
    /// Runs the work. Mark implementations `#[inline(always)]`.
    fn run(self);
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Isa::Plain => "plain",
            Isa::Avx2 => "avx2",
            Isa::AvxVnni => "avxvnni",
            Isa::Avx512 => "avx512",
            Isa::Avx512Bf16 => "avx512bf16",
            Isa::Amx => "amx",
            Isa::Other => "other",
        })
    }
}

impl FromStr for Isa {
    type Err = ();

    fn from_str(text: &str) -> Result<Isa, ()> {
        Isa::ALL.into_iter().find(|isa| isa.to_string() == text).ok_or(())
    }
}
