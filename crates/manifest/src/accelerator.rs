//! Candle's accelerators, their Cargo features, and the targets that support them.

/// An accelerator with a Cargo feature in Candle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Accelerator {
    Metal,
    Cuda,
}

impl Accelerator {
    pub(crate) const ALL: [Self; 2] = [Self::Metal, Self::Cuda];

    pub(crate) fn feature(self) -> &'static str {
        match self {
            Self::Metal => "metal",
            Self::Cuda => "cuda",
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Metal => "Metal",
            Self::Cuda => "CUDA",
        }
    }

    /// The features of candle-core that enable this accelerator.
    pub(crate) fn implied_by(self) -> &'static [&'static str] {
        match self {
            Self::Metal => &["metal", "metal-debug-labels"],
            Self::Cuda => &["cuda", "cudnn", "nccl", "cutile"],
        }
    }

    pub(crate) fn exists_on(self, target: &str) -> bool {
        match self {
            Self::Metal => is_apple(target),
            Self::Cuda => !is_apple(target),
        }
    }
}

pub(crate) fn is_apple(target: &str) -> bool {
    target.contains("-apple-")
}
