//! The bytes that each token of a vocabulary adds to a text.

use std::collections::HashMap;

use serde_json::Value;
use tokenizers::Tokenizer;

/// Marks the start of a word in `SentencePiece`.
pub(super) const WORD_START: char = '\u{2581}';

/// What a token adds to a text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum TokenBytes {
    /// These bytes, which need not be whole characters.
    Text(Vec<u8>),
    /// Nothing: it is a special token of this name.
    Special(String),
    /// The vocabulary has no such token.
    #[default]
    None,
}

/// The bytes of all tokens, by id. None if a token's bytes depend on its neighbours, as in WordPiece.
pub(super) fn token_bytes(tokenizer: &Tokenizer) -> Option<Vec<TokenBytes>> {
    let decoder = serde_json::to_value(tokenizer.get_decoder()).unwrap_or_default();
    let notation = Notation::of(&decoder)?;
    let added = tokenizer.get_added_tokens_decoder();
    let vocabulary = tokenizer.get_vocab(true);
    let count = vocabulary.values().max().map_or(0, |last| *last as usize + 1);
    let mut all = vec![TokenBytes::None; count];
    for (token, id) in vocabulary {
        all[id as usize] = match added.get(&id) {
            Some(added) if added.special => TokenBytes::Special(token),
            Some(_) => TokenBytes::Text(notation.plain(token)),
            None => TokenBytes::Text(notation.bytes(token)),
        };
    }
    Some(all)
}

/// How strings of a vocabulary stand for bytes.
enum Notation {
    /// Each character stands for a byte.
    ByteLevel(HashMap<char, u8>),
    /// `▁` stands for a space, and `<0x0A>` for a byte.
    SentencePiece,
}

impl Notation {
    /// The notation that a decoder reads.
    fn of(decoder: &Value) -> Option<Notation> {
        match decoder["type"].as_str()? {
            "ByteLevel" => Some(Notation::ByteLevel(byte_characters())),
            "ByteFallback" | "Metaspace" => Some(Notation::SentencePiece),
            "Sequence" => decoder["decoders"].as_array()?.iter().find_map(Notation::of),
            _ => None,
        }
    }

    fn bytes(&self, token: String) -> Vec<u8> {
        let byte = || {
            let digits = token.strip_prefix("<0x")?.strip_suffix('>').filter(|digits| digits.len() == 2)?;
            u8::from_str_radix(digits, 16).ok()
        };
        match self {
            Notation::ByteLevel(bytes) => {
                let known: Option<Vec<u8>> = token.chars().map(|c| bytes.get(&c).copied()).collect();
                known.unwrap_or_else(|| token.into_bytes())
            }
            Notation::SentencePiece => byte().map_or_else(|| self.plain(token.clone()), |byte| vec![byte]),
        }
    }

    /// The bytes of an added token.
    fn plain(&self, token: String) -> Vec<u8> {
        match self {
            Notation::ByteLevel(_) => token.into_bytes(),
            Notation::SentencePiece => token.replace(WORD_START, " ").into_bytes(),
        }
    }
}

/// The characters that stand for bytes in byte-level BPE: printable bytes for themselves, the others from U+0100 on.
fn byte_characters() -> HashMap<char, u8> {
    let is_printable = |byte: &u8| matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    let plain = (0..=u8::MAX).filter(is_printable).map(|byte| (char::from(byte), byte));
    let others = (0..=u8::MAX).filter(|byte| !is_printable(byte));
    plain.chain(('\u{100}'..).zip(others)).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn tokenizer(decoder: &Value, vocabulary: &Value) -> Tokenizer {
        let json = json!({
            "version": "1.0",
            "added_tokens": [{
                "id": 0, "content": "<s>", "special": true, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false,
            }, {
                "id": 1, "content": "<b>é", "special": false, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false,
            }],
            "decoder": decoder,
            "model": { "type": "BPE", "vocab": vocabulary, "merges": [] },
        });
        json.to_string().parse().expect("a tokenizer")
    }

    #[test]
    fn bytes_are_those_that_the_decoder_gives() {
        let text = |bytes: &[u8]| TokenBytes::Text(bytes.to_vec());
        let byte_level = json!({ "type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true });
        let vocabulary = json!({ "<s>": 0, "<b>é": 1, "Ġa": 2, "Ã": 3, "Ċ": 5 });
        let bytes = token_bytes(&tokenizer(&byte_level, &vocabulary)).expect("its bytes are known");
        let special = TokenBytes::Special("<s>".to_owned());
        let added = text("<b>é".as_bytes());
        assert_eq!(
            bytes,
            [special.clone(), added.clone(), text(b" a"), text(&[0xC3]), TokenBytes::None, text(b"\n")]
        );
        let fallback = json!({ "type": "Sequence", "decoders": [
            { "type": "Replace", "pattern": { "String": "▁" }, "content": " " }, { "type": "ByteFallback" }, { "type": "Fuse" },
        ] });
        let vocabulary = json!({ "<s>": 0, "<b>é": 1, "▁a▁": 2, "<0xC3>": 3, "<0x1": 4, "é": 5 });
        let bytes = token_bytes(&tokenizer(&fallback, &vocabulary)).expect("its bytes are known");
        assert_eq!(bytes, [special, added, text(b" a "), text(&[0xC3]), text(b"<0x1"), text("é".as_bytes())]);
        let word_piece = json!({ "type": "WordPiece", "prefix": "##", "cleanup": true });
        assert_eq!(token_bytes(&tokenizer(&word_piece, &vocabulary)), None);
    }

    #[test]
    fn every_byte_has_a_character_of_the_alphabet() {
        let characters = byte_characters();
        assert_eq!(characters.values().collect::<std::collections::HashSet<_>>().len(), 256);
        let alphabet = tokenizers::pre_tokenizers::byte_level::ByteLevel::alphabet();
        assert!(characters.keys().all(|character| alphabet.contains(character)));
        assert_eq!((characters[&'Ġ'], characters[&'Ċ'], characters[&'ł']), (b' ', b'\n', 0xA0));
    }
}
