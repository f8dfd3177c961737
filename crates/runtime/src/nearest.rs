//! Suggestions for mistyped names.

/// Minimum Jaro-Winkler similarity of a suggestion.
const MIN_SIMILARITY: f64 = 0.8;

/// The name in `known` that is most similar to `name`, if similar enough.
pub(crate) fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let scored = known.into_iter().map(|other| (strsim::jaro_winkler(name, other), other));
    let best = scored.max_by(|a, b| a.0.total_cmp(&b.0));
    best.filter(|(similarity, _)| *similarity >= MIN_SIMILARITY).map(|(_, other)| other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_far_from_all_has_no_nearest() {
        assert_eq!(nearest("qeury", ["passage", "query"]), Some("query"));
        assert_eq!(nearest("zebra", ["passage", "query"]), None);
        assert_eq!(nearest("query", []), None);
    }
}
