//! The tokenizer of a folder: from `tokenizer.json`, or built from a vocabulary.

use std::fs::{self, Metadata};
use std::path::{Path, PathBuf};

use sconce_engines::regular_file;
use serde_json::Value;
use tokenizers::models::ModelWrapper;
use tokenizers::models::bpe::BPE;
use tokenizers::models::wordpiece::WordPiece;
use tokenizers::normalizers::BertNormalizer;
use tokenizers::pre_tokenizers::bert::BertPreTokenizer;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::processors::bert::BertProcessing;
use tokenizers::processors::roberta::RobertaProcessing;
use tokenizers::{AddedToken, Tokenizer};

use crate::regex_cost::{self, TooSlow};

/// The most bytes of a file that a tokenizer is made from: the largest published ones have half as many.
const LONGEST_FILE: u64 = 64 << 20;
/// The most letters of a word that WordPiece looks into: its work grows with their cube.
const LONGEST_WORD: usize = 256;
/// The most bytes of a token.
const LONGEST_TOKEN: usize = 1024;
/// The most bytes that a normalizer puts in for each match.
const LONGEST_CONTENT: usize = 64;

/// Why a tokenizer could not be had, or could not do its work.
#[derive(Debug, thiserror::Error)]
pub enum VocabularyError {
    /// No file that a tokenizer can be made from.
    #[error(
        "no tokenizer in `{0}`: looked for `tokenizer.json`, `vocab.txt`, and `vocab.json` with `merges.txt`\n\
         hint: python -c \"from transformers import AutoTokenizer; \
         AutoTokenizer.from_pretrained('{0}').save_pretrained('{0}')\" writes `tokenizer.json`",
        folder.display()
    )]
    Missing {
        /// Where it was looked for.
        folder: PathBuf,
    },
    /// A file that can't be read.
    #[error("`{}` can't be read", path.display())]
    Unreadable {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// A tokenizer that would make a short text cost minutes or gigabytes.
    #[error(
        "the tokenizer is refused for its cost: {what}: {value}, at most {most}\n\
         hint: fetch its files again from where the model was published"
    )]
    Beyond {
        /// What is too large.
        what: &'static str,
        /// How large it is.
        value: usize,
        /// The largest that is taken.
        most: usize,
    },
    /// A tokenizer whose regular expressions take too long.
    #[error(
        "the tokenizer is refused for its cost: its regular expressions took {took} ms for a text of {bytes} bytes, \
         at most {most} ms\nhint: fetch its files again from where the model was published"
    )]
    TooSlow {
        /// Bytes of the probe text.
        bytes: usize,
        /// Milliseconds that it took.
        took: usize,
        /// Milliseconds that it may take.
        most: usize,
    },
    /// A text with more bytes than are tokenized at once.
    #[error("the text has {bytes} bytes, and at most {most} are tokenized\nhint: cut it into several texts")]
    TooLong {
        /// Bytes of the text.
        bytes: usize,
        /// The most that are tokenized.
        most: usize,
    },
    /// More tokens than the model takes, after special tokens were added.
    #[error("the tokenizer made {tokens} tokens of a text, and the model takes {most}")]
    Overflow {
        /// Tokens that it made.
        tokens: usize,
        /// Tokens that the model takes.
        most: usize,
    },
    /// A special token that the vocabulary lacks.
    #[error("the vocabulary has no token `{0}`")]
    NoSuchToken(String),
    /// Ids that the model has no row for.
    #[error("the tokenizer knows {tokenizer} tokens and the model {model}")]
    TooLarge {
        /// Tokens that the tokenizer knows.
        tokenizer: usize,
        /// Tokens that the model knows.
        model: usize,
    },
    /// Special tokens alone fill the longest text.
    #[error(
        "texts of at most {length} tokens leave no room beside the {special} special tokens\n\
         hint: `--max-length` takes {} or more",
        special + 1
    )]
    NoRoom {
        /// The most tokens that a text may have.
        length: usize,
        /// Special tokens around each text.
        special: usize,
    },
    /// The tokenizer itself failed.
    #[error("the tokenizer failed")]
    Tokenizer(#[source] tokenizers::Error),
}

/// The files that the tokenizer of `folder` is made of, without those that are too long to be read: [`open`] refuses
/// them.
pub(crate) fn files(folder: &Path) -> Vec<PathBuf> {
    let is_readable = |metadata: Metadata| metadata.is_file() && metadata.len() <= LONGEST_FILE;
    let there = |name: &&str| fs::metadata(folder.join(name)).is_ok_and(is_readable);
    let alone = ["tokenizer.json"].into_iter().filter(there);
    let parts = ["tokenizer_config.json", "vocab.txt", "vocab.json", "merges.txt"].into_iter().filter(there);
    let names: Vec<&str> = if alone.clone().next().is_some() { alone.collect() } else { parts.collect() };
    names.into_iter().map(|name| folder.join(name)).collect()
}

/// The tokenizer of `folder`.
pub(crate) fn open(folder: &Path) -> Result<Tokenizer, VocabularyError> {
    let file = |name: &str| folder.join(name);
    let tokenizer = if file("tokenizer.json").is_file() {
        let bytes = read(&file("tokenizer.json"), LONGEST_FILE)?;
        Tokenizer::from_bytes(bytes).map_err(VocabularyError::Tokenizer)?
    } else if file("vocab.txt").is_file() {
        word_piece(&file("vocab.txt"), &Settings::read(&file("tokenizer_config.json")))?
    } else if file("vocab.json").is_file() && file("merges.txt").is_file() {
        let settings = Settings::read(&file("tokenizer_config.json"));
        byte_pairs(&file("vocab.json"), &file("merges.txt"), &settings)?
    } else {
        return Err(VocabularyError::Missing { folder: folder.to_owned() });
    };
    check(&tokenizer)?;
    Ok(tokenizer)
}

fn read(path: &Path, most: u64) -> Result<Vec<u8>, VocabularyError> {
    regular_file::read(path, most)
        .map_err(|source| VocabularyError::Unreadable { path: path.to_owned(), source })
}

/// Refuses a tokenizer whose parts would make a short text cost minutes or gigabytes.
fn check(tokenizer: &Tokenizer) -> Result<(), VocabularyError> {
    let beyond = |what, value: usize, most| {
        if value > most { Err(VocabularyError::Beyond { what, value, most }) } else { Ok(()) }
    };
    if let ModelWrapper::WordPiece(model) = tokenizer.get_model() {
        beyond("`max_input_chars_per_word`", model.max_input_chars_per_word, LONGEST_WORD)?;
    }
    let longest = tokenizer.get_vocab(true).keys().map(String::len).max().unwrap_or(0);
    beyond("bytes of the longest token", longest, LONGEST_TOKEN)?;
    let normalizer = serde_json::to_value(tokenizer.get_normalizer()).unwrap_or_default();
    beyond("bytes that the normalizer puts in for a match", longest_content(&normalizer), LONGEST_CONTENT)?;
    regex_cost::check(tokenizer).map_err(|TooSlow { bytes, took, most }| VocabularyError::TooSlow {
        bytes,
        took,
        most,
    })
}

/// The longest text that some part of a normalizer puts into its input.
fn longest_content(normalizer: &Value) -> usize {
    let own = ["content", "prepend"].into_iter().filter_map(|key| normalizer[key].as_str()).map(str::len);
    let parts = normalizer["normalizers"].as_array().into_iter().flatten().map(longest_content);
    own.chain(parts).max().unwrap_or(0)
}

/// `tokenizer_config.json`, where there is one.
struct Settings(Value);

impl Settings {
    fn read(path: &Path) -> Settings {
        Settings(
            read(path, LONGEST_FILE)
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

fn word_piece(vocabulary: &Path, settings: &Settings) -> Result<Tokenizer, VocabularyError> {
    read(vocabulary, LONGEST_FILE)?;
    let unknown = settings.token("unk_token", "[UNK]");
    let model = WordPiece::from_file(&path_text(vocabulary)).unk_token(unknown.clone()).build();
    let mut tokenizer = Tokenizer::new(model.map_err(VocabularyError::Tokenizer)?);
    let lowercase = settings.flag("do_lower_case").unwrap_or(true);
    let chinese = settings.flag("tokenize_chinese_chars").unwrap_or(true);
    tokenizer.with_pre_tokenizer(Some(BertPreTokenizer));
    tokenizer
        .with_normalizer(Some(BertNormalizer::new(true, chinese, settings.flag("strip_accents"), lowercase)))
        .map_err(VocabularyError::Tokenizer)?;
    let (open, close) = (settings.token("cls_token", "[CLS]"), settings.token("sep_token", "[SEP]"));
    let others = [settings.token("pad_token", "[PAD]"), settings.token("mask_token", "[MASK]"), unknown];
    add_special(&mut tokenizer, [&open, &close].into_iter().chain(&others))?;
    let (open, close) = (numbered(&tokenizer, open)?, numbered(&tokenizer, close)?);
    tokenizer.with_post_processor(Some(BertProcessing::new(close, open)));
    Ok(tokenizer)
}

fn byte_pairs(vocabulary: &Path, merges: &Path, settings: &Settings) -> Result<Tokenizer, VocabularyError> {
    read(vocabulary, LONGEST_FILE)?;
    read(merges, LONGEST_FILE)?;
    let model = BPE::from_file(&path_text(vocabulary), &path_text(merges))
        .build()
        .map_err(VocabularyError::Tokenizer)?;
    let mut tokenizer = Tokenizer::new(model);
    let prefix = settings.flag("add_prefix_space").unwrap_or(false);
    let trim = settings.flag("trim_offsets").unwrap_or(true);
    tokenizer.with_pre_tokenizer(Some(ByteLevel::new(prefix, trim, true)));
    let (open, close) = (settings.token("cls_token", "<s>"), settings.token("sep_token", "</s>"));
    let others = [settings.token("pad_token", "<pad>"), settings.token("unk_token", "<unk>")];
    add_special(&mut tokenizer, [&open, &close].into_iter().chain(&others))?;
    // A mask takes the space before it along, as RoBERTa's does.
    let mask = AddedToken::from(settings.token("mask_token", "<mask>"), true).lstrip(true);
    tokenizer.add_special_tokens([mask]).map_err(VocabularyError::Tokenizer)?;
    let (open, close) = (numbered(&tokenizer, open)?, numbered(&tokenizer, close)?);
    tokenizer.with_post_processor(Some(
        RobertaProcessing::new(close, open).trim_offsets(trim).add_prefix_space(prefix),
    ));
    Ok(tokenizer)
}

/// Marks the tokens of `names` that the vocabulary has as special.
fn add_special<'a>(
    tokenizer: &mut Tokenizer,
    names: impl Iterator<Item = &'a String>,
) -> Result<(), VocabularyError> {
    let known = names.filter(|name| tokenizer.token_to_id(name).is_some());
    let tokens: Vec<AddedToken> = known.map(|name| AddedToken::from(name.clone(), true)).collect();
    tokenizer.add_special_tokens(tokens).map_err(VocabularyError::Tokenizer)?;
    Ok(())
}

fn numbered(tokenizer: &Tokenizer, name: String) -> Result<(String, u32), VocabularyError> {
    match tokenizer.token_to_id(&name) {
        Some(id) => Ok((name, id)),
        None => Err(VocabularyError::NoSuchToken(name)),
    }
}
