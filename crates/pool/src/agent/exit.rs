//! How a worker process ended.

use std::fmt;
use std::process::ExitStatus;

/// How a process ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Exit {
    /// It exited with this code.
    Code(i32),
    /// This signal ended it.
    Signal(i32),
    /// It could not be started.
    NotStarted(String),
}

impl Exit {
    /// Whether it exited with code 0.
    pub fn is_success(&self) -> bool {
        *self == Exit::Code(0)
    }
}

impl From<ExitStatus> for Exit {
    #[cfg(unix)]
    fn from(status: ExitStatus) -> Exit {
        use std::os::unix::process::ExitStatusExt;
        match (status.code(), status.signal()) {
            (Some(code), _) => Exit::Code(code),
            (None, signal) => Exit::Signal(signal.unwrap_or_default()),
        }
    }

    #[cfg(not(unix))]
    fn from(status: ExitStatus) -> Exit {
        Exit::Code(status.code().unwrap_or(-1))
    }
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Exit::Code(code) => write!(f, "exited with code {code}"),
            Exit::Signal(signal) => match signal_name(*signal) {
                Some(name) => write!(f, "was ended by signal {signal} ({name})"),
                None => write!(f, "was ended by signal {signal}"),
            },
            Exit::NotStarted(why) => write!(f, "could not be started: {why}"),
        }
    }
}

/// The name of a signal whose number is the same on all systems.
fn signal_name(signal: i32) -> Option<&'static str> {
    Some(match signal {
        1 => "SIGHUP",
        2 => "SIGINT",
        3 => "SIGQUIT",
        4 => "SIGILL",
        5 => "SIGTRAP",
        6 => "SIGABRT",
        8 => "SIGFPE",
        9 => "SIGKILL",
        11 => "SIGSEGV",
        13 => "SIGPIPE",
        14 => "SIGALRM",
        15 => "SIGTERM",
        signal if signal == SIGBUS => "SIGBUS",
        _ => return None,
    })
}

/// The signal of an invalid memory access.
const SIGBUS: i32 = if cfg!(target_os = "linux") { 7 } else { 10 };

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_is_named_by_code_or_signal() {
        assert_eq!(Exit::Code(2).to_string(), "exited with code 2");
        assert_eq!(Exit::Signal(9).to_string(), "was ended by signal 9 (SIGKILL)");
        assert_eq!(Exit::Signal(SIGBUS).to_string(), format!("was ended by signal {SIGBUS} (SIGBUS)"));
        assert_eq!(Exit::Signal(63).to_string(), "was ended by signal 63");
        assert_eq!(Exit::NotStarted("no file".to_owned()).to_string(), "could not be started: no file");
    }

    #[test]
    fn only_code_0_is_a_success() {
        assert!(Exit::Code(0).is_success());
        assert!(!Exit::Code(1).is_success() && !Exit::Signal(0).is_success());
    }

    #[test]
    #[cfg(unix)]
    fn the_status_of_a_process_has_its_code_or_its_signal() {
        use std::os::unix::process::ExitStatusExt;
        assert_eq!(Exit::from(ExitStatus::from_raw(2 << 8)), Exit::Code(2));
        assert_eq!(Exit::from(ExitStatus::from_raw(9)), Exit::Signal(9));
    }
}
