//! Model descriptions, and the engines that interpret them.
//!
//! This is the only crate whose code reads a Cargo feature: `candle/device.rs` the device features, `onnx/mod.rs` its
//! own.

mod assembly;
pub mod candle;
pub mod config;
pub mod describe;
pub mod description;
mod errors;
mod experts;
pub mod families;
pub mod family_heads;
pub mod gguf;
mod head_layers;
mod head_layout;
mod ignored_keys;
mod length_buckets;
mod loaded_head;
pub mod model_cost;
pub mod native;
mod normalize;
pub mod onnx;
pub mod positional;
mod probe;
pub mod regular_file;
mod source_hash;
mod step;
pub mod stored_tensor;
mod tensor_names;
#[cfg(test)]
mod testing;
mod threads;
pub mod unread_tensors;
mod weight;
mod weight_files;
pub mod weights;

use std::sync::Arc;

use sconce_core::engine::Engine;
pub use sconce_kernels::memory::{limit_arenas, release_free_memory};

/// All engines, built in or not, on `threads` threads.
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
