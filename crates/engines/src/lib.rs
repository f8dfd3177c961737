//! Model descriptions, and the engines that interpret them behind one interface.
//!
//! This is the only crate whose code reads a feature: `candle/device.rs` those of devices, `onnx/mod.rs` its own.

mod alike;
mod assembly;
pub mod candle;
pub mod config;
mod describe;
pub mod description;
pub mod families;
mod fault;
mod finish;
mod harmless;
mod head;
pub mod heads;
pub mod native;
pub mod onnx;
pub mod parts;
mod probe;
mod queries;
pub mod regular;
mod steps;
#[cfg(test)]
mod testing;
mod threads;
pub mod unread;
pub mod weights;
pub mod work;

use std::sync::Arc;

use sconce_core::engine::Engine;
pub use sconce_kernels::memory::{give_back, limit_arenas};

/// A hash of the sources of the engines and one of their kernels, for [`Engine::build`].
fn sources() -> String {
    format!("{}-{}", env!("SCONCE_ENGINES_HASH"), sconce_kernels::SOURCES)
}

/// Every engine of this version, built in or not, on `threads` threads.
pub fn all(threads: usize) -> Vec<Arc<dyn Engine>> {
    vec![
        Arc::new(candle::CandleEngine::new(threads)),
        Arc::new(native::NativeEngine::new(threads)),
        Arc::new(onnx::OnnxEngine::new(threads)),
    ]
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_build_names_the_sources_of_engines_and_kernels() {
        assert_eq!(sconce_kernels::SOURCES.len(), 16, "a hash of 64 bits");
        assert_ne!(sconce_kernels::SOURCES, env!("SCONCE_ENGINES_HASH"));
        for engine in super::all(1) {
            let build = engine.build();
            assert!(build.contains(env!("SCONCE_ENGINES_HASH")), "{build}");
            assert!(build.contains(sconce_kernels::SOURCES), "{build}");
        }
    }
}
