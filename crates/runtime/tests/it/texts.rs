//! Texts to vectors, against sentence-transformers and against unusual input.

use std::ops::ControlFlow;
use std::path::Path;

use sconce::tokenize::ModelTokenizer;
use sconce::{
    EmbedOptions, Embeddings, Error, Model, PoolingMode, Prompt, SimilarityOptions, TruncationStrategy,
    cosine,
};
use sconce_testkit::goldens::{self, Golden, TINY, apart};
use serde_json::json;

use crate::support::{Copy, Home, spec, texts};

const TOLERANCE: f64 = 1e-4;

/// The largest difference between `got` and the golden tensor `name`.
fn off(got: &Embeddings, golden: &Golden, name: &str) -> f64 {
    let got: Vec<f32> = got.iter().flatten().copied().collect();
    apart(&got, golden.numbers(name))
}

fn embed(home: &Home, folder: &Path, texts: &[String]) -> Embeddings {
    home.model(folder).open().expect("opens").embed(texts).expect("embeds")
}

fn widened(vector: &[f32]) -> Vec<f64> {
    vector.iter().map(|&x| f64::from(x)).collect()
}

fn norm(vector: &[f32]) -> f64 {
    widened(vector).iter().map(|x| x * x).sum::<f64>().sqrt()
}

#[test]
fn an_iterator_of_texts_gives_their_vectors_in_order_and_ends_after_an_error() {
    let home = Home::new();
    let model = home.model(&goldens::folder("tiny-bert")).open().expect("opens");
    // More than one call.
    let numbered: Vec<String> = (0..5000).map(|number| format!("text {number}")).collect();
    let got: Vec<Vec<f32>> = model.embed_iter(&numbered).collect::<Result<_, _>>().expect("embeds");
    let expected = model.embed(&[&numbered[0], &numbered[4999]]).expect("embeds");
    assert_eq!(got.len(), 5000);
    for (at, expected) in [0, 4999].into_iter().zip(&expected) {
        assert!(apart(&got[at], &widened(expected)) < 1e-6, "{}", numbered[at]);
    }
    let home = Home::new();
    let reranker = home.model(&goldens::folder("tiny-bert-rerank")).open().expect("opens");
    let mut vectors = reranker.embed_iter(&numbered);
    assert!(vectors.next().is_some_and(|first| first.is_err()));
    assert!(vectors.next().is_none());
}

#[test]
fn every_tiny_model_embeds_as_sentence_transformers_does() {
    let home = Home::new();
    for name in TINY {
        let model = home.model(&goldens::folder(name)).open().expect("opens");
        let golden = Golden::read(name, "golden.safetensors");
        let got = model.embed(&texts(name)).expect("embeds");
        let off = off(&got, &golden, "embed");
        println!("{name}: {off:.1e}");
        assert!(off < TOLERANCE, "{name} is off by {off}");
        tokens_are_counted_and_truncation_is_reported(name, &golden, &got);
        a_text_embeds_alike_alone(name, &model, &got);
        odd_texts_give_vectors(name, &model);
    }
}

#[test]
fn vectors_are_given_out_by_index_until_the_caller_breaks() {
    let home = Home::new();
    let model = home.model(&goldens::folder("tiny-bert")).open().expect("opens");
    let texts = texts("tiny-bert");
    for dimensions in [None, Some(8)] {
        let options = EmbedOptions { dimensions, force_dimensions: true, ..EmbedOptions::default() };
        let together = model.embed_with(&texts, &options).expect("embeds");
        let mut seen = vec![0; texts.len()];
        let metadata = model.embed_each(&texts, &options, |index, vector| {
            seen[index] += 1;
            assert_eq!(vector, &together[index]);
            ControlFlow::Continue(())
        });
        assert_eq!(metadata.expect("embeds"), together.metadata());
        assert_eq!(seen, vec![1; texts.len()]);
    }
    let mut count = 0;
    let ended = model.embed_each(&texts, &EmbedOptions::default(), |_, _| {
        count += 1;
        if count == 3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    assert!(ended.is_ok());
    assert_eq!(count, 3);
}

fn tokens_are_counted_and_truncation_is_reported(name: &str, golden: &Golden, got: &Embeddings) {
    let counts: Vec<usize> = golden.ids("counts").into_iter().map(|count| count as usize).collect();
    let tokens = ModelTokenizer::open(&goldens::folder(name), &spec(name).card).expect("a tokenizer");
    let tokenized: Vec<_> =
        texts(name).iter().map(|text| tokens.encode("", text).expect("tokenizes")).collect();
    assert_eq!(tokenized.iter().map(|text| text.ids.len()).collect::<Vec<_>>(), counts, "{name}");
    assert_eq!(got.tokens, counts.iter().sum::<usize>(), "{name}");
    let longest = if name == "tiny-bert" { 128 } else { 512 };
    let cut: Vec<usize> = (0..8).filter(|&text| counts[text] == longest).collect();
    assert_eq!(got.truncated.iter().map(|cut| cut.index).collect::<Vec<_>>(), cut, "{name}");
    for told in &got.truncated {
        assert_eq!((told.used, told.tokens), (longest, tokenized[told.index].full_length), "{name}");
        assert!(told.tokens > told.used, "{name}: {told:?}");
    }
}

fn a_text_embeds_alike_alone(name: &str, model: &Model, together: &Embeddings) {
    for (text, together) in texts(name).iter().zip(together) {
        let alone = model.embed(&[text]).expect("embeds");
        let off = apart(&alone[0], &widened(together));
        assert!(off <= 1e-5, "{name}: {text:.20} differs by {off}");
    }
}

fn odd_texts_give_vectors(name: &str, model: &Model) {
    let got = model.embed(&odd_texts()).unwrap_or_else(|error| panic!("{name}: {error}"));
    assert_eq!(got.len(), odd_texts().len());
    assert!(got.iter().all(|vector| vector.len() == model.card().width() && norm(vector) > 0.0), "{name}");
    assert_eq!(got.placements.len(), 1, "{name}");
}

#[test]
fn a_prompt_goes_before_every_text_by_name_or_as_literal_text() {
    let home = Home::new();
    let golden = Golden::read("tiny-bert", "golden.safetensors");
    let model = home.model(&goldens::folder("tiny-bert")).open().expect("opens");
    for prompt in [Prompt::Name("query".to_owned()), Prompt::Text("query: ".to_owned())] {
        let options = EmbedOptions { prompt: prompt.clone(), ..EmbedOptions::default() };
        let got = model.embed_with(&texts("tiny-bert"), &options).expect("embeds");
        let off = off(&got, &golden, "embed.query");
        assert!(off < TOLERANCE, "{prompt:?} is off by {off}");
    }
    let plain = model.embed(&texts("tiny-bert")).expect("embeds");
    assert!(off(&plain, &golden, "embed.query") > 1e-2);
}

#[test]
fn a_prompt_name_that_the_model_does_not_have_is_an_error_and_never_text() {
    let home = Home::new();
    let model = home.model(&goldens::folder("tiny-bert")).open().expect("opens");
    let prompt = Prompt::Name("qeury".to_owned());
    let embed = EmbedOptions { prompt: prompt.clone(), ..EmbedOptions::default() };
    let similar = SimilarityOptions { other_prompt: prompt.clone(), ..SimilarityOptions::default() };
    for error in [
        model.embed_with(&["text"], &embed).err(),
        model.similarity_with("text", &["other"], &similar).err(),
        model.encode_texts(&prompt, &["text"]).err(),
        sconce::operations::chunk::chunks(model.context(), &prompt, "text").err(),
    ] {
        let told = error.expect("the name is unknown").to_string();
        assert!(told.contains("no prompt `qeury`") && told.contains("did you mean `query`?"), "{told}");
    }
}

#[test]
fn the_two_sides_of_a_comparison_have_prompts_of_their_own() {
    let home = Home::new();
    let model = home.model(&goldens::folder("tiny-bert")).open().expect("opens");
    let vectors = model.embed(&["query: a lamp", "passage: the boat"]).expect("embeds");
    let prompt = Prompt::Name("query".to_owned());
    let options = SimilarityOptions { prompt, other_prompt: Prompt::Text("passage: ".to_owned()) };
    let got = model.similarity_with("a lamp", &["the boat"], &options).expect("compares");
    assert!((got.scores[0] - cosine(&vectors[0], &vectors[1])).abs() < 1e-5, "{:?}", got.scores);
    let plain = model.similarity("a lamp", &["the boat"]).expect("compares");
    assert!((got.scores[0] - plain.scores[0]).abs() > 1e-4, "{:?} {:?}", got.scores, plain.scores);
}

#[test]
fn the_models_default_prompt_is_used_where_none_is_named() {
    let home = Home::new();
    let golden = Golden::read("tiny-bert", "golden.safetensors");
    let copy = Copy::of("tiny-bert").setting(
        "config_sentence_transformers.json",
        "default_prompt_name",
        json!("query"),
    );
    let model = home.model(copy.path()).open().expect("opens");
    let got = model.embed(&texts("tiny-bert")).expect("embeds");
    assert!(off(&got, &golden, "embed.query") < TOLERANCE);
    let none = EmbedOptions { prompt: Prompt::NONE, ..EmbedOptions::default() };
    let got = model.embed_with(&texts("tiny-bert"), &none).expect("embeds");
    assert!(off(&got, &golden, "embed") < TOLERANCE);
}

#[test]
fn every_pooling_mode_is_that_of_sentence_transformers() {
    let home = Home::new();
    let golden = Golden::read("tiny-bert", "golden.safetensors");
    for (mode, name) in [
        (PoolingMode::Cls, "pool.cls"),
        (PoolingMode::Max, "pool.max"),
        (PoolingMode::Mean, "pool.mean"),
        (PoolingMode::MeanSqrtLen, "pool.mean_sqrt_len_tokens"),
        (PoolingMode::WeightedMean, "pool.weightedmean"),
        (PoolingMode::LastToken, "pool.lasttoken"),
    ] {
        let builder = home.model(&goldens::folder("tiny-bert")).pooling(mode).normalize(false);
        let got = builder.open().expect("opens").embed(&texts("tiny-bert")).expect("embeds");
        let off = off(&got, &golden, name);
        assert!(off < TOLERANCE, "{mode} is off by {off}");
    }
}

#[test]
fn a_prompt_that_is_not_pooled_is_passed_over() {
    let home = Home::new();
    let golden = Golden::read("tiny-bert", "golden.safetensors");
    let copy = Copy::of("tiny-bert").setting("1_Pooling/config.json", "include_prompt", json!(false));
    let model = home.model(copy.path()).normalize(false).open().expect("opens");
    let options = EmbedOptions { prompt: Prompt::Name("query".to_owned()), ..EmbedOptions::default() };
    let got = model.embed_with(&texts("tiny-bert"), &options).expect("embeds");
    let off = off(&got, &golden, "pool.noprompt");
    assert!(off < TOLERANCE, "off by {off}");
}

#[test]
fn a_prompt_longer_than_the_model_takes_still_gives_a_vector() {
    let home = Home::new();
    let copy = Copy::of("tiny-bert").setting("1_Pooling/config.json", "include_prompt", json!(false));
    let model = home.model(copy.path()).open().expect("opens");
    let options = EmbedOptions { prompt: Prompt::Text("long ".repeat(1000)), ..EmbedOptions::default() };
    let got = model.embed_with(&["text", ""], &options).expect("embeds");
    assert!(got.iter().all(|vector| (norm(vector) - 1.0).abs() < 1e-5));
    assert_eq!(got.truncated.len(), 2);
}

#[test]
fn a_tokenizer_is_built_from_a_vocabulary_where_there_is_no_tokenizer_json() {
    let home = Home::new();
    for name in ["tiny-bert", "tiny-roberta"] {
        let golden = Golden::read(name, "golden.safetensors");
        let copy = Copy::of(name).without("tokenizer.json");
        let got = embed(&home, copy.path(), &texts(name));
        let off = off(&got, &golden, "embed");
        assert!(off < TOLERANCE, "{name} is off by {off}");
    }
}

#[test]
fn a_vocabulary_gives_the_tokens_of_tokenizer_json_for_odd_texts_too() {
    for name in ["tiny-bert", "tiny-roberta"] {
        let copy = Copy::of(name).without("tokenizer.json");
        let card = spec(name).card;
        let own = ModelTokenizer::open(&goldens::folder(name), &card).expect("a tokenizer");
        let built = ModelTokenizer::open(copy.path(), &card).expect("a tokenizer");
        // RoBERTa's mask takes the space before it along; in a `tokenizer.json` of transformers 5 it does not.
        for text in odd_texts().into_iter().filter(|text| name == "tiny-bert" || !text.contains("<mask>")) {
            let (own, built) = (own.encode("", &text), built.encode("", &text));
            assert_eq!(own.expect("tokenizes"), built.expect("tokenizes"), "{name}: {text:.40?}");
        }
    }
}

#[test]
fn a_folder_without_any_tokenizer_says_what_was_looked_for() {
    let copy = Copy::of("tiny-camembert").without("tokenizer.json");
    let error = Home::new().model(copy.path()).open().err().expect("has no tokenizer");
    let text = error.to_string();
    for word in ["`tokenizer.json`", "`vocab.txt`", "`merges.txt`", "hint: "] {
        assert!(text.contains(word), "{text}");
    }
}

#[test]
fn a_tokenizer_that_knows_more_tokens_than_the_model_is_refused() {
    let copy = Copy::of("tiny-bert").setting("config.json", "vocab_size", json!(100));
    let error = Home::new().model(copy.path()).open().err().expect("does not fit");
    assert!(error.to_string().contains("256") && error.to_string().contains("100"), "{error}");
}

#[test]
fn a_tokenizer_that_would_cost_minutes_or_gigabytes_is_refused() {
    let open = |change: &dyn Fn(&mut serde_json::Value)| {
        let copy = Copy::of("tiny-bert").json("tokenizer.json", |json| change(json));
        ModelTokenizer::open(copy.path(), &spec("tiny-bert").card).err().map(|error| error.to_string())
    };
    assert_eq!(open(&|_| ()), None);
    let replace = |bytes: usize| {
        let part = json!({ "type": "Replace", "pattern": { "String": "a" }, "content": "x".repeat(bytes) });
        json!({ "type": "Sequence", "normalizers": [{ "type": "Lowercase" }, part] })
    };
    assert_eq!(open(&|json| json["normalizer"] = replace(64)), None);
    let refused = open(&|json| json["normalizer"] = replace(65)).expect("it writes 65 bytes for each letter");
    assert!(refused.contains("for its cost") && refused.contains("65, limit: 64"), "{refused}");
    let words = |most: u64| open(&|json| json["model"]["max_input_chars_per_word"] = json!(most));
    assert_eq!(words(256), None);
    let refused = words(1 << 40).expect("it looks into any word");
    assert!(refused.contains("`max_input_chars_per_word`: 1099511627776, limit: 256"), "{refused}");
    let refused = open(&|json| {
        let tokens = json["model"]["vocab"].as_object_mut().expect("a vocabulary");
        let id = tokens.remove("a").expect("a letter");
        tokens.insert("a".repeat(1025), id);
    });
    assert!(refused.expect("a long token").contains("1025, limit: 1024"));
}

#[test]
fn a_tokenizer_with_an_invalid_character_map_is_refused() {
    let part = |map: &str| json!({ "type": "Precompiled", "precompiled_charsmap": map });
    // No trie, and a trie whose first unit leads beyond it.
    for map in ["AAAA", "BAAAAAAAAAA=", "not base64"] {
        for normalizer in [part(map), json!({ "type": "Sequence", "normalizers": [part(map)] })] {
            let copy =
                Copy::of("tiny-bert").json("tokenizer.json", |json| json["normalizer"] = normalizer.clone());
            let refused = ModelTokenizer::open(copy.path(), &spec("tiny-bert").card).err().expect("refused");
            assert!(refused.to_string().contains("character map"), "{normalizer}: {refused}");
        }
    }
}

#[test]
fn a_text_that_is_too_long_is_refused_before_it_is_tokenized() {
    let tokens =
        ModelTokenizer::open(&goldens::folder("tiny-bert"), &spec("tiny-bert").card).expect("a tokenizer");
    let long = "a".repeat((16 << 20) + 1);
    let refused = [
        tokens.encode("", &long).map(|_| ()),
        tokens.encode(&long, "").map(|_| ()),
        tokens.encode_pair(&long, "b", TruncationStrategy::LongestFirst).map(|_| ()),
        tokens.encode_pair("a", &long, TruncationStrategy::LongestFirst).map(|_| ()),
        tokens.tokens(&long, false).map(|_| ()),
    ];
    for refused in refused {
        let error = refused.expect_err("it is too long").to_string();
        assert!(error.contains("16777217 bytes, limit: 16777216") && error.contains("hint: "), "{error}");
    }
}

#[test]
fn a_tokenizer_that_repeats_a_text_does_not_reach_the_model() {
    let copy = Copy::of("tiny-bert").json("tokenizer.json", |json| {
        let sequence = json!({ "Sequence": { "id": "A", "type_id": 0 } });
        json["post_processor"] = json!({
            "type": "TemplateProcessing", "single": vec![sequence; 2],
            "pair": [{ "Sequence": { "id": "A", "type_id": 0 } }, { "Sequence": { "id": "B", "type_id": 0 } }],
            "special_tokens": {},
        });
    });
    let tokens = ModelTokenizer::open(copy.path(), &spec("tiny-bert").card).expect("a tokenizer");
    assert!(tokens.encode("", "a").is_ok_and(|text| text.ids.len() > 1), "a short text fits twice");
    let error = tokens.encode("", &"a ".repeat(100)).expect_err("it does not fit").to_string();
    assert!(error.contains("tokens after special tokens were added, and `max_length` is 128"), "{error}");
}

fn cut(dimensions: usize, force: bool) -> EmbedOptions {
    EmbedOptions { dimensions: Some(dimensions), force_dimensions: force, ..EmbedOptions::default() }
}

fn refusal(result: Result<Embeddings, Error>) -> String {
    match result {
        Err(Error::Request(text)) => text,
        other => panic!("expected a refusal of the request, got {other:?}"),
    }
}

#[test]
fn vectors_are_cut_only_where_the_model_says_so_or_by_force() {
    let home = Home::new();
    let texts = texts("tiny-bert");
    let model = home.model(&goldens::folder("tiny-bert")).open().expect("opens");
    let whole = model.embed(&texts).expect("embeds");

    let text = refusal(model.embed_with(&texts, &cut(8, false)));
    assert!(text.contains("declares no") && text.contains("hint: `--force-dimensions`"), "{text}");
    assert_eq!(model.embed_with(&texts, &cut(32, false)).expect("is the whole"), whole);

    let forced = model.embed_with(&texts, &cut(8, true)).expect("embeds");
    for (short, long) in forced.iter().zip(&whole) {
        let length = norm(&long[..8]);
        let want: Vec<f64> = long[..8].iter().map(|&x| f64::from(x) / length).collect();
        assert!(apart(short, &want) < 1e-6 && (norm(short) - 1.0).abs() < 1e-6);
    }
}

#[test]
fn vectors_that_are_not_normalised_are_cut_as_they_are() {
    let model = Home::new().model(&goldens::folder("tiny-roberta")).open().expect("opens");
    let texts = texts("tiny-roberta");
    let (whole, short) = (model.embed(&texts), model.embed_with(&texts, &cut(8, true)));
    for (short, long) in short.expect("embeds").iter().zip(&whole.expect("embeds")) {
        assert_eq!(short, &long[..8]);
    }
}

#[test]
fn declared_dimensions_are_accepted_and_listed_for_others() {
    let home = Home::new();
    let only = Copy::of("tiny-bert").setting("config.json", "matryoshka_dimensions", json!([8, 16]));
    let model = home.model(only.path()).open().expect("opens");
    assert_eq!(model.embed_with(&["text"], &cut(16, false)).expect("is declared")[0].len(), 16);
    let text = refusal(model.embed_with(&["text"], &cut(12, false)));
    assert!(text.contains("8, 16") && text.contains("hint: `--force-dimensions`"), "{text}");

    let any = Copy::of("tiny-bert").setting("config.json", "is_matryoshka", json!(true));
    let model = home.model(any.path()).open().expect("opens");
    assert_eq!(model.embed_with(&["text"], &cut(5, false)).expect("is declared")[0].len(), 5);
}

#[test]
fn no_and_too_many_dimensions_are_refused_even_by_force() {
    let model = Home::new().model(&goldens::folder("tiny-distilbert")).open().expect("opens");
    for (dimensions, force) in [(0, false), (0, true), (17, false), (17, true), (usize::MAX, true)] {
        let text = refusal(model.embed_with(&["text"], &cut(dimensions, force)));
        assert!(text.contains("1 to 16"), "{text}");
    }
}

fn odd_texts() -> Vec<String> {
    let mut odd: Vec<String> = [
        "",
        " ",
        "\n\t\r\n",
        "\0",
        "a\0b\0\0c",
        "\u{feff}byte order mark",
        "\u{200b}\u{200d}\u{202e}zero width and reversed\u{202c}",
        "e\u{301}\u{301}\u{301}\u{301}",
        "\u{301}",
        "👩‍👩‍👧‍👦🏳️‍🌈",
        "\u{fffd}\u{ffff}\u{10ffff}\u{e000}",
        "العربية עברית हिन्दी ไทย 漢字 カタカナ 한국어",
        "[CLS] [SEP] <s> </s> <mask> [MASK] <pad> [UNK]",
        "##ing ▁ Ġ Ċ",
        "\u{1d400}\u{1f1e6}ﬁ½Ⅷ",
        "\u{7f}\u{80}\u{9f}\u{ad}",
    ]
    .map(str::to_owned)
    .to_vec();
    odd.push("x".repeat(100_000));
    odd.push("a word ".repeat(15_000));
    odd.push("é漢".repeat(20_000));
    odd
}

#[test]
fn no_texts_give_no_vectors() {
    let model = Home::new().model(&goldens::folder("tiny-bert")).open().expect("opens");
    let none = model.embed::<&str>(&[]).expect("embeds");
    assert!(none.is_empty() && none.tokens == 0 && none.truncated.is_empty());
}

#[test]
fn a_length_without_room_for_text_is_refused() {
    let home = Home::new();
    let error = home.model(&goldens::folder("tiny-bert")).max_length(2).open().err().expect("has no room");
    assert!(error.to_string().contains("2 special tokens"), "{error}");
    let model = home.model(&goldens::folder("tiny-bert")).max_length(3).open().expect("opens");
    let got = model.embed(&["some words"]).expect("embeds");
    assert_eq!((got.tokens, got.truncated.len()), (3, 1));
}
