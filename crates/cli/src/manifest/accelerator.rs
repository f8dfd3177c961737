//! The accelerators Candle knows, their Cargo features and the targets that have them.

/// Something that computes faster than the CPU, named by its Cargo feature.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Accelerator {
    Metal,
    Cuda,
}

impl Accelerator {
    pub(super) const ALL: [Self; 2] = [Self::Metal, Self::Cuda];

    pub(super) fn feature(self) -> &'static str {
        match self {
            Self::Metal => "metal",
            Self::Cuda => "cuda",
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Metal => "Metal",
            Self::Cuda => "CUDA",
        }
    }

    /// The features of candle-core that turn this one on.
    pub(super) fn implied_by(self) -> &'static [&'static str] {
        match self {
            Self::Metal => &["metal", "metal-debug-labels"],
            Self::Cuda => &["cuda", "cudnn", "nccl", "cutile"],
        }
    }

    pub(super) fn exists_on(self, target: &str) -> bool {
        match self {
            Self::Metal => is_apple(target),
            Self::Cuda => !is_apple(target),
        }
    }
}

pub(super) fn is_apple(target: &str) -> bool {
    target.contains("-apple-")
}
