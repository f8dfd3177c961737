//! Maps errors of engines to obstacles and engine errors, by their messages.

use std::error::Error;

use sconce_core::engine::EngineError;
use sconce_core::obstacle::Obstacle;

/// The obstacle for an error while probing or loading.
pub(crate) fn to_obstacle(error: &(impl Error + ?Sized)) -> Obstacle {
    obstacle_from_message(&error.to_string())
}

/// The obstacle for an error message.
pub(crate) fn obstacle_from_message(message: &str) -> Obstacle {
    let first = message.lines().next().unwrap_or_default().to_owned();
    if is_out_of_memory(message) {
        return Obstacle::DoesNotFit { need: None, have: None };
    }
    match missing_op(message) {
        Some(op) => Obstacle::OpMissing { op, reason: first },
        None => Obstacle::LoadFailed { reason: first },
    }
}

/// The engine error for an error while computing a batch.
pub(crate) fn to_engine_error(error: impl Error + Send + Sync + 'static) -> EngineError {
    if is_out_of_memory(&error.to_string()) {
        EngineError::OutOfMemory(Box::new(error))
    } else {
        EngineError::Failed(Box::new(error))
    }
}

fn is_out_of_memory(message: &str) -> bool {
    let message = message.to_ascii_lowercase();
    ["out of memory", "out_of_memory", "failed to allocate", "insufficient memory"]
        .iter()
        .any(|word| message.contains(word))
}

/// The op in messages like `no metal implementation for layer-norm`.
fn missing_op(message: &str) -> Option<String> {
    let marks = [
        "no metal implementation for ",
        "no cuda implementation for ",
        "no cpu implementation for ",
        "unsupported dtype for op ",
    ];
    let rest = marks.iter().find_map(|mark| message.split_once(mark)).map(|(_, rest)| rest);
    let unsupported = || {
        let (_, rest) = message.split_once("unsupported dtype ")?;
        rest.split_once(" for op ").map(|(_, op)| op)
    };
    rest.or_else(unsupported).map(|rest| rest.split([' ', '\n', ',']).next().unwrap_or_default().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Error;

    #[test]
    fn the_words_of_the_feature_trap_name_the_op_and_the_remedy() {
        let obstacle =
            to_obstacle(&Error::Msg("Metal error no metal implementation for layer-norm".to_owned()));
        assert!(matches!(&obstacle, Obstacle::OpMissing { op, .. } if op == "layer-norm"), "{obstacle:?}");
        assert!(obstacle.remedy().to_string().contains("doctor --manifest"), "{}", obstacle.remedy());
    }

    #[test]
    fn a_device_without_memory_is_told_from_one_that_fails() {
        let full = Error::Msg("DriverError(CUDA_ERROR_OUT_OF_MEMORY, \"out of memory\")".to_owned());
        assert_eq!(to_obstacle(&full).code(), "does_not_fit");
        assert!(matches!(to_engine_error(full), EngineError::OutOfMemory(_)));
        assert!(matches!(to_engine_error(Error::Msg("lost the device".to_owned())), EngineError::Failed(_)));
    }
}
