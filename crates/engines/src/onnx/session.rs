//! Sessions of ONNX Runtime: the library is loaded once per process; a missing execution provider is an error.

use std::fmt::Display;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use ort::LoadDynamicError;
use ort::environment::Environment;
use ort::ep::{self, ExecutionProviderDispatch};
use ort::logging::LogLevel;
use ort::session::Session;
use sconce_core::device::Device;
use sconce_core::obstacle::Obstacle;

use super::library::Library;
use crate::errors;

/// ONNX Runtime's environment, one per process.
static ENVIRONMENT: OnceLock<Result<Environment, Obstacle>> = OnceLock::new();

/// Options of a session.
pub(super) struct SessionOptions<'a> {
    pub(super) library: &'a Library,
    pub(super) file: &'a Path,
    pub(super) device: Device,
    pub(super) threads: usize,
    /// Path of the profile without extension; none for no profiling.
    pub(super) profile: Option<&'a Path>,
}

/// Opens a session. A provider that can't be registered is an obstacle: otherwise ONNX Runtime would fall back to the
/// CPU silently.
pub(super) fn open(options: &SessionOptions<'_>) -> Result<Session, Obstacle> {
    let environment = environment(options.library)?;
    let mut builder = Session::builder(&environment).map_err(|error| failed(&error))?;
    builder = builder.with_intra_threads(options.threads).map_err(|error| failed(&error))?;
    if let Some(provider) = provider(options.device) {
        let name = provider.name();
        builder = builder.with_execution_providers([provider.error_on_failure()]).map_err(|error| {
            Obstacle::ProviderFailed { provider: name.to_owned(), reason: first_line(&error) }
        })?;
    }
    if let Some(profile) = options.profile {
        builder = builder.with_profiling(profile).map_err(|error| failed(&error))?;
    }
    builder.commit_from_file(options.file).map_err(|error| failed(&error))
}

fn provider(device: Device) -> Option<ExecutionProviderDispatch> {
    match device {
        Device::Cpu => None,
        Device::Metal(_) => {
            Some(ep::CoreML::default().with_model_format(ep::coreml::ModelFormat::MLProgram).build())
        }
        // TF32 keeps ten bits of the mantissa, less than f32 promises.
        Device::Cuda(index) => {
            Some(ep::CUDA::default().with_device_id(index.cast_signed()).with_tf32(false).build())
        }
    }
}

fn environment(library: &Library) -> Result<Environment, Obstacle> {
    let start = || {
        let builder = ort::init_from(&library.path).map_err(|error| unloadable(library, &error))?;
        // No telemetry and no log output; errors are returned.
        let quiet = Arc::new(|_: LogLevel, _: &str, _: &str, _: &str, _: &str| {});
        let builder = builder.with_name("sconce").with_telemetry(false).with_logger(quiet);
        let environment = builder.build().map_err(|error| failed(&error))?;
        environment.set_log_level(LogLevel::Fatal);
        Ok(environment)
    };
    ENVIRONMENT.get_or_init(start).clone()
}

fn unloadable(library: &Library, error: &LoadDynamicError) -> Obstacle {
    match error {
        LoadDynamicError::BadVersion { version_str, path } => Obstacle::LibraryTooOld {
            library: path.display().to_string(),
            found: version_str.clone(),
            needed: format!("1.{}", ort::MINOR_VERSION),
        },
        LoadDynamicError::Dlopen { .. }
        | LoadDynamicError::MissingApi { .. }
        | LoadDynamicError::InvalidVersionString => Obstacle::LoadFailed {
            reason: format!(
                "`{}` is no library of ONNX Runtime: {}",
                library.path.display(),
                first_line(error)
            ),
        },
    }
}

/// The obstacle for an error of the library.
pub(super) fn failed(error: &impl Display) -> Obstacle {
    errors::obstacle_from_message(&error.to_string())
}

fn first_line(error: &impl Display) -> String {
    error.to_string().lines().next().unwrap_or_default().to_owned()
}
