//! Metadata of an answer: tokens, truncated texts, placements and numerics classes.

use sconce_core::placement::Placement;
use serde::Serialize;

/// Metadata of an answer.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct OutputMetadata {
    /// Number of computed tokens.
    pub tokens: usize,
    /// Texts that exceeded `max_length`.
    pub truncated: Vec<Truncation>,
    /// Placements that computed the answer: several only if one failed in the meantime.
    pub placements: Vec<Placement>,
    /// Numerics classes of the answer. Results of one class are comparable.
    pub classes: Vec<String>,
    /// For each text, the index of its class in `classes`.
    #[serde(skip)]
    pub(super) class_of: Vec<usize>,
}

/// A truncated text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Truncation {
    /// Index of the text.
    pub index: usize,
    /// Number of its tokens.
    pub tokens: usize,
    /// Number of tokens that were used.
    pub used: usize,
}

impl OutputMetadata {
    /// Numerics class of the text at `index`.
    pub fn class(&self, index: usize) -> &str {
        class(&self.classes, &self.class_of, index)
    }

    /// Adds the metadata of another answer, whose texts follow the first `offset` texts.
    pub(crate) fn add(&mut self, other: OutputMetadata, offset: usize) {
        self.tokens += other.tokens;
        let shifted = |truncation: Truncation| Truncation { index: truncation.index + offset, ..truncation };
        self.truncated.extend(other.truncated.into_iter().map(shifted));
        for placement in other.placements {
            insert(&mut self.placements, placement);
        }
        let indices: Vec<usize> =
            other.classes.into_iter().map(|class| insert(&mut self.classes, class)).collect();
        let class_of = other.class_of.into_iter().map(|class| indices.get(class).copied().unwrap_or(0));
        self.class_of.extend(class_of);
    }
}

/// The class at `index`.
pub(super) fn class<'a>(classes: &'a [String], class_of: &[usize], index: usize) -> &'a str {
    class_of.get(index).and_then(|&class| classes.get(class)).map_or("", String::as_str)
}

/// The index of `item` in the list, after adding it if it is new.
pub(super) fn insert<T: PartialEq>(list: &mut Vec<T>, item: T) -> usize {
    list.iter().position(|known| *known == item).unwrap_or_else(|| {
        list.push(item);
        list.len() - 1
    })
}

#[cfg(test)]
mod tests {
    use sconce_core::device::Device;
    use sconce_core::placement::{Dtype, EngineId};

    use super::*;

    fn metadata(dtype: Dtype, class: &str, truncated: usize) -> OutputMetadata {
        let placement =
            Placement { engine: EngineId::Candle, device: Device::Cpu, weights: "model".to_owned(), dtype };
        OutputMetadata {
            tokens: 10,
            truncated: vec![Truncation { index: truncated, tokens: 9, used: 8 }],
            placements: vec![placement],
            classes: vec![class.to_owned()],
            class_of: vec![0, 0],
        }
    }

    #[test]
    fn metadata_adds_up_and_lists_each_class_once() {
        let mut all = metadata(Dtype::F32, "exact", 1);
        all.add(metadata(Dtype::F16, "half", 0), 2);
        all.add(metadata(Dtype::F32, "exact", 1), 4);
        assert_eq!(all.tokens, 30);
        assert_eq!(all.truncated.iter().map(|truncation| truncation.index).collect::<Vec<_>>(), [1, 2, 5]);
        assert_eq!(all.placements.len(), 2);
        assert_eq!(all.classes, ["exact", "half"]);
        let classes: Vec<&str> = (0..7).map(|index| all.class(index)).collect();
        assert_eq!(classes, ["exact", "exact", "half", "half", "exact", "exact", ""]);
    }
}
