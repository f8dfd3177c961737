//! The conformance suite of engines.

use std::thread;

use sconce_core::batch::{Batch, OutputKind, Rows};
use sconce_core::engine::{Encoder, Engine, EngineError, ModelSpec};
use sconce_core::placement::Placement;

use crate::compare::{largest, max_difference};

/// A placement to test.
pub struct Examined<'a> {
    /// The engine.
    pub engine: &'a dyn Engine,
    /// The model.
    pub subject: &'a ModelSpec,
    /// The placement.
    pub placement: Placement,
    /// Tolerance, relative to the largest value, when a text is computed in another batch.
    pub tolerance: f32,
}

/// Tests a placement.
///
/// # Panics
/// If it does not conform.
pub fn examine(examined: &Examined<'_>) {
    let encoder = examined.load();
    let encoder = encoder.as_ref();
    examined.a_text_is_the_same_alone_and_in_company(encoder);
    examined.the_order_of_texts_does_not_matter(encoder);
    examined.every_length_is_finite(encoder);
    examined.tokens_come_back_one_for_one(encoder);
    examined.what_can_not_be_computed_is_refused(encoder);
    examined.many_ask_one_model_at_once(encoder);
    examined.models_load_and_run_beside_each_other(encoder);
}

impl Examined<'_> {
    fn load(&self) -> Box<dyn Encoder> {
        self.engine.load(self.subject, &self.placement).expect("the model loads")
    }

    /// A text of this length, with ids generated from `seed`.
    fn text(&self, length: usize, seed: usize) -> Vec<u32> {
        let vocabulary = self.subject.card.sizes.value.vocabulary;
        // The first ids are special tokens, and one of them is padding.
        (0..length).map(|place| (5 + (seed * 31 + place * 17) % (vocabulary - 5)) as u32).collect()
    }

    fn pooled(&self, encoder: &dyn Encoder, texts: &[Vec<u32>]) -> Rows {
        let rows =
            encoder.encode(&batch(texts, OutputKind::Pooled)).expect("the batch is computed").into_rows();
        let width = self.subject.card.width();
        assert_eq!((rows.width, rows.values.len()), (width, width * texts.len()), "{}", self.placement);
        assert_eq!(rows.norms.len(), texts.len(), "a norm for each text");
        assert!(rows.values.iter().chain(&rows.norms).all(|x| x.is_finite()), "{}", self.placement);
        rows
    }

    fn expect_close(&self, got: &[f32], want: &[f32], what: &str) {
        let off = max_difference(got, want);
        let allowed = f64::from(self.tolerance) * largest(want.iter().map(|x| x.abs()));
        assert!(off <= allowed, "{}: {what} is off by {off}, allowed {allowed}", self.placement);
    }

    fn texts(&self) -> Vec<Vec<u32>> {
        let longest = self.subject.card.max_length.value;
        let lengths = [3, 1, longest, 17, 64, 2, 33, 16, longest / 2, 5, 128];
        lengths.iter().enumerate().map(|(seed, &length)| self.text(length.clamp(1, longest), seed)).collect()
    }

    fn a_text_is_the_same_alone_and_in_company(&self, encoder: &dyn Encoder) {
        let texts = self.texts();
        let together = self.pooled(encoder, &texts);
        for (text, together) in texts.iter().zip(together.iter()) {
            let alone = self.pooled(encoder, std::slice::from_ref(text));
            self.expect_close(
                together,
                &alone.values,
                &format!("a text of {} tokens in company", text.len()),
            );
        }
    }

    fn the_order_of_texts_does_not_matter(&self, encoder: &dyn Encoder) {
        let mut texts = self.texts();
        let forth = self.pooled(encoder, &texts);
        texts.reverse();
        let back = self.pooled(encoder, &texts);
        for (forth, back) in forth.iter().zip(back.iter().collect::<Vec<_>>().into_iter().rev()) {
            self.expect_close(back, forth, "a text in another order");
        }
    }

    fn every_length_is_finite(&self, encoder: &dyn Encoder) {
        for length in 1..=self.subject.card.max_length.value {
            self.pooled(encoder, &[self.text(length, length)]);
        }
    }

    fn tokens_come_back_one_for_one(&self, encoder: &dyn Encoder) {
        let texts = self.texts();
        let rows =
            encoder.encode(&batch(&texts, OutputKind::Tokens)).expect("the batch is computed").into_rows();
        let tokens: usize = texts.iter().map(Vec::len).sum();
        assert_eq!(rows.values.len(), tokens * self.subject.card.sizes.value.hidden, "{}", self.placement);
        let mut rest = rows.values.as_slice();
        for text in &texts {
            let (own, after) = rest.split_at(text.len() * rows.width);
            rest = after;
            let alone = encoder.encode(&batch(std::slice::from_ref(text), OutputKind::Tokens));
            let alone = alone.expect("the batch is computed").into_rows();
            self.expect_close(own, &alone.values, &format!("the tokens of a text of {}", text.len()));
        }
    }

    fn what_can_not_be_computed_is_refused(&self, encoder: &dyn Encoder) {
        let sizes = &self.subject.card.sizes.value;
        let mut overlapping = batch(&[self.text(4, 0), self.text(4, 1)], OutputKind::Pooled);
        overlapping.sequences[1].start = 2;
        for (what, batch) in [
            ("an empty batch", Batch::new(OutputKind::Pooled)),
            ("an empty text", batch(&[Vec::new()], OutputKind::Pooled)),
            ("a text that is too long", batch(&[vec![5; sizes.positions + 1]], OutputKind::Pooled)),
            ("an id that is out of range", batch(&[vec![5, sizes.vocabulary as u32]], OutputKind::Pooled)),
            ("texts that overlap", overlapping),
        ] {
            let refused = encoder.encode(&batch);
            assert!(matches!(refused, Err(EngineError::Malformed(_))), "{}: {what}", self.placement);
        }
        self.pooled(encoder, &self.texts());
    }

    fn many_ask_one_model_at_once(&self, encoder: &dyn Encoder) {
        let texts = self.texts();
        let want = self.pooled(encoder, &texts);
        thread::scope(|scope| {
            for first in 0..4 {
                let (texts, want) = (&texts, &want);
                scope.spawn(move || {
                    for _ in 0..3 {
                        let got = self.pooled(encoder, &texts[first % texts.len()..]);
                        let own = &want.values[first % texts.len() * want.width..];
                        self.expect_close(&got.values, own, "a text beside those of others");
                    }
                });
            }
        });
    }

    fn models_load_and_run_beside_each_other(&self, encoder: &dyn Encoder) {
        let texts = self.texts();
        let want = self.pooled(encoder, &texts);
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    let own = self.load();
                    for _ in 0..3 {
                        let got = self.pooled(own.as_ref(), &texts);
                        self.expect_close(&got.values, &want.values, "a model beside others");
                    }
                });
            }
        });
    }
}

fn batch(texts: &[Vec<u32>], output_kind: OutputKind) -> Batch {
    let mut batch = Batch::new(output_kind);
    for ids in texts {
        batch.push(ids, &vec![0; ids.len()], 0);
    }
    batch
}
