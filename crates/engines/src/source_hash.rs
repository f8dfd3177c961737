//! The hash of the sources of engines and kernels, which is part of every engine's build string.

/// A hash of the engines' sources and one of the kernels'.
pub(crate) fn source_hash() -> String {
    format!("{}-{}", env!("SCONCE_ENGINES_HASH"), sconce_kernels::SOURCES)
}
