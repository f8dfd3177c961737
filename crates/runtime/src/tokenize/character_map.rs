//! The character map of a SentencePiece normalizer: a double-array trie of texts, and their replacements.
//!
//! `tokenizers` follows it without bounds checks of its own, so an invalid map would panic on some text.

use super::error::TokenizerError;

/// Limit of the units of the trie. Published ones have a tenth.
const MAX_UNITS: usize = 1 << 19;

/// Rejects a map with a unit or a replacement out of bounds.
pub(super) fn check(map: &[u8]) -> Result<(), TokenizerError> {
    let invalid = || TokenizerError::InvalidCharacterMap;
    let (size, rest) = map.split_first_chunk::<4>().ok_or_else(invalid)?;
    let units = u32::from_le_bytes(*size) as usize / 4;
    if units > MAX_UNITS {
        let what = "units of the character map";
        return Err(TokenizerError::LimitExceeded { what, value: units, most: MAX_UNITS });
    }
    let (trie, replacements) = rest.split_at_checked(units * 4).ok_or_else(invalid)?;
    let trie = trie.as_chunks::<4>().0.iter().map(|bytes| Unit(u32::from_le_bytes(*bytes)));
    let trie: Vec<Unit> = trie.collect();
    let replacements = std::str::from_utf8(replacements).map_err(|_| invalid())?;
    if are_in_bounds(&trie, replacements) { Ok(()) } else { Err(invalid()) }
}

/// Whether every text leads to units of the trie and to whole replacements.
fn are_in_bounds(trie: &[Unit], replacements: &str) -> bool {
    let mut is_found = vec![false; trie.len()];
    let mut open = vec![0];
    while let Some(node) = open.pop() {
        // A text that ends or goes on here reads any of these 256 units.
        let Some(base) =
            trie.get(node).map(|unit| node ^ unit.offset()).filter(|base| base | 0xff < trie.len())
        else {
            return false;
        };
        if trie[node].has_value() && !replacements.is_char_boundary(trie[base].value()) {
            return false;
        }
        for byte in 1..=0xff {
            let child = base ^ byte;
            if trie[child].label() == byte && !is_found[child] {
                is_found[child] = true;
                open.push(child);
            }
        }
    }
    true
}

/// A unit of a double-array trie, as Darts-clone has it.
#[derive(Clone, Copy)]
struct Unit(u32);

impl Unit {
    fn has_value(self) -> bool {
        self.0 >> 8 & 1 == 1
    }

    /// The replacement, in a unit that holds one.
    fn value(self) -> usize {
        (self.0 & 0x7fff_ffff) as usize
    }

    /// The byte that leads here; above 255 in a unit that holds a value.
    fn label(self) -> usize {
        (self.0 & 0x8000_00ff) as usize
    }

    fn offset(self) -> usize {
        ((self.0 >> 10) as usize) << ((self.0 & 1 << 9) >> 6)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A map of `a` to a replacement at `value`, with units in which nothing else is found.
    fn map(units: usize, value: u32) -> Vec<u8> {
        let mut trie = vec![0x8000_0000u32; units];
        trie[0] = 256 << 10;
        if let Some(node) = trie.get_mut(256 ^ 0x61) {
            *node = (512 << 10) | 1 << 8 | 0x61;
        }
        if let Some(leaf) = trie.get_mut(256 ^ 0x61 ^ 512) {
            *leaf = 0x8000_0000 | value;
        }
        let size = (units as u32 * 4).to_le_bytes();
        size.into_iter().chain(trie.into_iter().flat_map(u32::to_le_bytes)).chain(*b"b\0").collect()
    }

    #[test]
    fn maps_out_of_bounds_are_refused() {
        assert!(check(&map(1024, 0)).is_ok());
        let normalizer = tokenizers::normalizers::Precompiled::from(&map(1024, 0)).expect("it is a map");
        assert_eq!(normalizer.normalize_string("cab"), "cbb", "the map is read as `tokenizers` reads it");
        assert!(check(&map(1024, 3)).is_err(), "a replacement beyond the text");
        assert!(check(&map(600, 0)).is_err(), "a unit beyond the trie");
        assert!(check(&map(MAX_UNITS + 1, 0)).is_err(), "too many units");
        assert!(check(&[]).is_err() && check(&[0; 4]).is_err() && check(&[8, 0, 0, 0, 1]).is_err());
    }
}
