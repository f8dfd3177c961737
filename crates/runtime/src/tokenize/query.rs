//! Queries of late-interaction models: a marker before the text, and mask tokens after it.

use sconce_core::head::LateInteraction;

use super::error::TokenizerError;
use super::tokenizer::{ModelTokenizer, TokenSequence};

impl ModelTokenizer {
    /// Encodes a query with its marker, padded with mask tokens if the model uses query expansion.
    pub(crate) fn encode_query(
        &self,
        sides: &LateInteraction,
        text: &str,
    ) -> Result<TokenSequence, TokenizerError> {
        let limit = sides.expansion.map(|expansion| expansion.to).or(sides.query_length);
        let mut query = self.encode_within(limit.unwrap_or(usize::MAX), &sides.query, text)?;
        let to = sides.expansion.map_or(0, |expansion| expansion.to.min(self.max_length));
        if let Some(expansion) = sides.expansion.filter(|_| to > query.ids.len()) {
            let mask = ["[MASK]", "<mask>"].into_iter().find_map(|mask| self.id(mask));
            let mask = mask.ok_or_else(|| TokenizerError::NoSuchToken("[MASK]".to_owned()))?;
            query.masked = if expansion.attended { 0 } else { to - query.ids.len() };
            query.ids.resize(to, mask);
            query.type_ids.resize(to, 0);
            query.full_length = to;
        }
        Ok(query)
    }
}
