//! Boot ids: which start of a worker a record belongs to.

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::str::FromStr;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

/// Bits of a boot id below its timestamp.
const RANDOM_BITS: u32 = 80;

/// Identifies one start of a worker: milliseconds since the Unix epoch in the upper 48 bits, then 80 random bits, as in
/// a ULID. Of two boots of one worker id, the greater one is the newer.
///
/// A clock that was set back makes a new boot look old. It can register once the heartbeat of the other one has
/// expired.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct BootId(u128);

impl BootId {
    /// A boot id for a process that starts now.
    pub fn random() -> BootId {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        BootId::at(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
    }

    /// A boot id for a process that started `millis` milliseconds after the Unix epoch.
    pub fn at(millis: u64) -> BootId {
        BootId(u128::from(millis) << RANDOM_BITS | random_u128() >> (128 - RANDOM_BITS))
    }
}

/// Random bits. The keys of a `RandomState` come from the operating system.
fn random_u128() -> u128 {
    let half = |salt: u64| u128::from(RandomState::new().hash_one(salt));
    half(0) << 64 | half(1)
}

impl fmt::Display for BootId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// A text that is not a boot id.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a boot id: expected 32 hexadecimal digits")]
pub struct InvalidBootId(String);

impl FromStr for BootId {
    type Err = InvalidBootId;

    fn from_str(text: &str) -> Result<BootId, InvalidBootId> {
        let is_hex = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let value = is_hex.then(|| u128::from_str_radix(text, 16).ok()).flatten();
        value.map(BootId).ok_or_else(|| InvalidBootId(text.to_owned()))
    }
}

impl From<BootId> for String {
    fn from(boot: BootId) -> String {
        boot.to_string()
    }
}

impl TryFrom<String> for BootId {
    type Error = InvalidBootId;

    fn try_from(text: String) -> Result<BootId, InvalidBootId> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_boot_id_reads_back_what_it_prints() {
        let boot = BootId::random();
        assert_eq!(boot.to_string().parse(), Ok(boot));
        for text in ["", "12", "+0000000000000000000000000000001", "000000000000000000000000000000zz"] {
            assert_eq!(text.parse::<BootId>(), Err(InvalidBootId(text.to_owned())));
        }
    }

    #[test]
    fn a_later_boot_is_greater() {
        assert!(BootId::at(1_000) < BootId::at(1_001));
        assert!(BootId::at(1_000) < BootId::random());
    }

    #[test]
    fn boots_of_one_millisecond_differ() {
        let boots: BTreeSet<BootId> = (0..1000).map(|_| BootId::at(5)).collect();
        assert_eq!(boots.len(), 1000);
    }
}
