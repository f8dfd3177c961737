//! Loads the tokenizer of a model folder, from `tokenizer.json` or from vocabulary files.

use std::fs::{self, Metadata};
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sconce_engines::regular_file;
use serde_json::Value;
use tokenizers::models::ModelWrapper;
use tokenizers::models::bpe::BPE;
use tokenizers::models::wordpiece::{WordPiece, WordPieceBuilder};
use tokenizers::normalizers::BertNormalizer;
use tokenizers::pre_tokenizers::bert::BertPreTokenizer;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::processors::bert::BertProcessing;
use tokenizers::processors::roberta::RobertaProcessing;
use tokenizers::{AddedToken, Tokenizer};

use super::character_map;
use super::error::TokenizerError;
use super::regex_cost::{self, TooSlow};

/// Size limit of a tokenizer file: twice the largest published one.
const MAX_FILE_BYTES: u64 = 64 << 20;
/// Limit of `max_input_chars_per_word`: the cost of WordPiece is cubic in it.
const MAX_WORD_CHARS: usize = 256;
/// Length limit of a token in bytes.
pub(super) const MAX_TOKEN_BYTES: usize = 1024;
/// Length limit of a normalizer's replacement text in bytes.
const MAX_REPLACEMENT_BYTES: usize = 64;

/// The tokenizer files of `folder`. Files above the size limit are left out: [`load`] rejects them.
pub(crate) fn files(folder: &Path) -> Vec<PathBuf> {
    let is_readable = |metadata: Metadata| metadata.is_file() && metadata.len() <= MAX_FILE_BYTES;
    let there = |name: &&str| fs::metadata(folder.join(name)).is_ok_and(is_readable);
    let alone = ["tokenizer.json"].into_iter().filter(there);
    let parts = ["tokenizer_config.json", "vocab.txt", "vocab.json", "merges.txt"].into_iter().filter(there);
    let names: Vec<&str> = if alone.clone().next().is_some() { alone.collect() } else { parts.collect() };
    names.into_iter().map(|name| folder.join(name)).collect()
}

/// Loads the tokenizer of `folder`.
pub(crate) fn load(folder: &Path) -> Result<Tokenizer, TokenizerError> {
    let file = |name: &str| folder.join(name);
    let tokenizer = if file("tokenizer.json").is_file() {
        let bytes = read(&file("tokenizer.json"), MAX_FILE_BYTES)?;
        // `tokenizers` normalizes added tokens while it parses.
        check_character_maps(&normalizer(&bytes))?;
        Tokenizer::from_bytes(bytes).map_err(TokenizerError::Tokenizer)?
    } else if file("vocab.txt").is_file() {
        read(&file("vocab.txt"), MAX_FILE_BYTES)?;
        let model = WordPiece::from_file(&path_text(&file("vocab.txt")));
        word_piece(model, &Settings::read(&file("tokenizer_config.json")))?
    } else if file("vocab.json").is_file() && file("merges.txt").is_file() {
        let settings = Settings::read(&file("tokenizer_config.json"));
        byte_pairs(&file("vocab.json"), &file("merges.txt"), &settings)?
    } else {
        return Err(TokenizerError::Missing { folder: folder.to_owned() });
    };
    check(&tokenizer)?;
    Ok(tokenizer)
}

fn read(path: &Path, most: u64) -> Result<Vec<u8>, TokenizerError> {
    regular_file::read(path, most)
        .map_err(|source| TokenizerError::Unreadable { path: path.to_owned(), source })
}

/// Rejects tokenizers that could spend minutes or gigabytes on a short text.
pub(super) fn check(tokenizer: &Tokenizer) -> Result<(), TokenizerError> {
    if let ModelWrapper::WordPiece(model) = tokenizer.get_model() {
        check_limit("`max_input_chars_per_word`", model.max_input_chars_per_word, MAX_WORD_CHARS)?;
    }
    let longest = tokenizer.get_vocab(true).keys().map(String::len).max().unwrap_or(0);
    check_limit("bytes of the longest token", longest, MAX_TOKEN_BYTES)?;
    let normalizer = serde_json::to_value(tokenizer.get_normalizer()).unwrap_or_default();
    check_limit(
        "bytes of a replacement in the normalizer",
        longest_replacement(&normalizer),
        MAX_REPLACEMENT_BYTES,
    )?;
    regex_cost::check(tokenizer).map_err(|TooSlow { bytes, took, most }| TokenizerError::TooSlow {
        bytes,
        took,
        most,
    })
}

pub(super) fn check_limit(what: &'static str, value: usize, most: usize) -> Result<(), TokenizerError> {
    if value > most { Err(TokenizerError::LimitExceeded { what, value, most }) } else { Ok(()) }
}

/// The normalizer in a `tokenizer.json`; null if it has none.
fn normalizer(tokenizer: &[u8]) -> Value {
    #[derive(serde::Deserialize)]
    struct File {
        #[serde(default)]
        normalizer: Value,
    }
    serde_json::from_slice::<File>(tokenizer).map_or(Value::Null, |file| file.normalizer)
}

/// Checks the character maps of a normalizer and its parts.
fn check_character_maps(normalizer: &Value) -> Result<(), TokenizerError> {
    if let Some(map) = normalizer["precompiled_charsmap"].as_str() {
        let map = STANDARD.decode(map).map_err(|_| TokenizerError::InvalidCharacterMap)?;
        character_map::check(&map)?;
    }
    normalizer["normalizers"].as_array().into_iter().flatten().try_for_each(check_character_maps)
}

/// Length of the longest replacement text in a normalizer and its parts.
fn longest_replacement(normalizer: &Value) -> usize {
    let own = ["content", "prepend"].into_iter().filter_map(|key| normalizer[key].as_str()).map(str::len);
    let parts = normalizer["normalizers"].as_array().into_iter().flatten().map(longest_replacement);
    own.chain(parts).max().unwrap_or(0)
}

/// Content of `tokenizer_config.json`; null without one.
pub(super) struct Settings(Value);

impl Settings {
    pub(super) fn new(settings: Value) -> Settings {
        Settings(settings)
    }

    fn read(path: &Path) -> Settings {
        Settings(
            read(path, MAX_FILE_BYTES)
                .ok()
                .and_then(|bytes| serde_json::from_slice(&bytes).ok())
                .unwrap_or_default(),
        )
    }

    fn flag(&self, key: &str) -> Option<bool> {
        self.0[key].as_bool()
    }

    /// A special token: a string, or an object with its content.
    fn token(&self, key: &str, default: &str) -> String {
        let value = &self.0[key];
        value.as_str().or_else(|| value["content"].as_str()).unwrap_or(default).to_owned()
    }
}

fn path_text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

/// A WordPiece tokenizer with BERT's normalizer and special tokens.
pub(super) fn word_piece(model: WordPieceBuilder, settings: &Settings) -> Result<Tokenizer, TokenizerError> {
    let unknown = settings.token("unk_token", "[UNK]");
    let model = model.unk_token(unknown.clone()).build();
    let mut tokenizer = Tokenizer::new(model.map_err(TokenizerError::Tokenizer)?);
    let lowercase = settings.flag("do_lower_case").unwrap_or(true);
    let chinese = settings.flag("tokenize_chinese_chars").unwrap_or(true);
    tokenizer.with_pre_tokenizer(Some(BertPreTokenizer));
    tokenizer
        .with_normalizer(Some(BertNormalizer::new(true, chinese, settings.flag("strip_accents"), lowercase)))
        .map_err(TokenizerError::Tokenizer)?;
    let (open, close) = (settings.token("cls_token", "[CLS]"), settings.token("sep_token", "[SEP]"));
    let others = [settings.token("pad_token", "[PAD]"), settings.token("mask_token", "[MASK]"), unknown];
    add_special(&mut tokenizer, [&open, &close].into_iter().chain(&others))?;
    let (open, close) = (with_id(&tokenizer, open)?, with_id(&tokenizer, close)?);
    tokenizer.with_post_processor(Some(BertProcessing::new(close, open)));
    Ok(tokenizer)
}

fn byte_pairs(vocabulary: &Path, merges: &Path, settings: &Settings) -> Result<Tokenizer, TokenizerError> {
    read(vocabulary, MAX_FILE_BYTES)?;
    read(merges, MAX_FILE_BYTES)?;
    let model = BPE::from_file(&path_text(vocabulary), &path_text(merges))
        .build()
        .map_err(TokenizerError::Tokenizer)?;
    let mut tokenizer = Tokenizer::new(model);
    let prefix = settings.flag("add_prefix_space").unwrap_or(false);
    let trim = settings.flag("trim_offsets").unwrap_or(true);
    tokenizer.with_pre_tokenizer(Some(ByteLevel::new(prefix, trim, true)));
    let (open, close) = (settings.token("cls_token", "<s>"), settings.token("sep_token", "</s>"));
    let others = [settings.token("pad_token", "<pad>"), settings.token("unk_token", "<unk>")];
    add_special(&mut tokenizer, [&open, &close].into_iter().chain(&others))?;
    // A mask takes the space before it along, as RoBERTa's does.
    let mask = AddedToken::from(settings.token("mask_token", "<mask>"), true).lstrip(true);
    tokenizer.add_special_tokens([mask]).map_err(TokenizerError::Tokenizer)?;
    let (open, close) = (with_id(&tokenizer, open)?, with_id(&tokenizer, close)?);
    tokenizer.with_post_processor(Some(
        RobertaProcessing::new(close, open).trim_offsets(trim).add_prefix_space(prefix),
    ));
    Ok(tokenizer)
}

/// Adds those of `names` that the vocabulary has as special tokens.
fn add_special<'a>(
    tokenizer: &mut Tokenizer,
    names: impl Iterator<Item = &'a String>,
) -> Result<(), TokenizerError> {
    let known = names.filter(|name| tokenizer.token_to_id(name).is_some());
    let tokens: Vec<AddedToken> = known.map(|name| AddedToken::from(name.clone(), true)).collect();
    tokenizer.add_special_tokens(tokens).map_err(TokenizerError::Tokenizer)?;
    Ok(())
}

fn with_id(tokenizer: &Tokenizer, name: String) -> Result<(String, u32), TokenizerError> {
    match tokenizer.token_to_id(&name) {
        Some(id) => Ok((name, id)),
        None => Err(TokenizerError::NoSuchToken(name)),
    }
}
