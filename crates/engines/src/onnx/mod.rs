//! The ONNX Runtime engine. Without the feature, the engine is listed and reports what it lacks.

#[cfg(not(feature = "onnx"))]
mod absent;
#[cfg(feature = "onnx")]
mod encoder;
#[cfg(feature = "onnx")]
mod engine;
#[cfg(feature = "onnx")]
mod graph;
pub mod header;
#[cfg(feature = "onnx")]
mod library;
#[cfg(feature = "onnx")]
mod nodes;
#[cfg(feature = "onnx")]
mod session;

#[cfg(not(feature = "onnx"))]
pub use absent::OnnxEngine;
#[cfg(feature = "onnx")]
pub use engine::OnnxEngine;
