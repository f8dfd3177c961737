//! The shapes that texts come in, with a bound on how many of them are read at all.

use std::collections::BTreeSet;
use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{DeserializeOwned, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use crate::settings::MAX_INPUTS;

/// A list of which no more than a bound is read.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct BoundedVec<T>(pub(crate) Vec<T>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for BoundedVec<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<BoundedVec<T>, D::Error> {
        struct List<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for List<T> {
            type Value = BoundedVec<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<BoundedVec<T>, A::Error> {
                let mut few = Vec::new();
                while let Some(item) = list.next_element()? {
                    push(&mut few, item)?;
                }
                Ok(BoundedVec(few))
            }
        }
        deserializer.deserialize_seq(List(PhantomData))
    }
}

fn push<T, E: Error>(list: &mut Vec<T>, item: T) -> Result<(), E> {
    if list.len() >= MAX_INPUTS {
        return Err(E::custom(format!("more than {MAX_INPUTS} inputs")));
    }
    list.push(item);
    Ok(())
}

/// The most values that a list of enumerated values is read for.
const MOST_VALUES: usize = 64;

/// A list of enumerated values, each kept once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Values<T>(pub(crate) BTreeSet<T>);

impl<'de, T: Deserialize<'de> + Ord> Deserialize<'de> for Values<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Values<T>, D::Error> {
        struct List<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de> + Ord> Visitor<'de> for List<T> {
            type Value = Values<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Values<T>, A::Error> {
                let (mut values, mut read) = (BTreeSet::new(), 0);
                while let Some(value) = list.next_element()? {
                    read += 1;
                    if read > MOST_VALUES {
                        return Err(A::Error::custom(format!("more than {MOST_VALUES} values in a list")));
                    }
                    values.insert(value);
                }
                Ok(Values(values))
            }
        }
        deserializer.deserialize_seq(List(PhantomData))
    }
}

/// Texts, or token ids: one or many.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Inputs {
    /// One text.
    One(String),
    /// Texts.
    Texts(Vec<String>),
    /// One text as token ids.
    Ids(Vec<u32>),
    /// Texts as token ids.
    ManyIds(Vec<Vec<u32>>),
}

/// What a list of inputs holds.
enum Item {
    Text(String),
    Id(u32),
    Ids(Vec<u32>),
}

impl<'de> Deserialize<'de> for Item {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Item, D::Error> {
        struct One;
        impl<'de> Visitor<'de> for One {
            type Value = Item;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text, a token id or a list of token ids")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Item, E> {
                Ok(Item::Text(text.to_owned()))
            }

            fn visit_string<E: Error>(self, text: String) -> Result<Item, E> {
                Ok(Item::Text(text))
            }

            fn visit_u64<E: Error>(self, id: u64) -> Result<Item, E> {
                u32::try_from(id).map(Item::Id).map_err(|_| E::custom(format!("no token has the id: {id}")))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Item, A::Error> {
                let mut ids = Vec::new();
                while let Some(id) = list.next_element()? {
                    ids.push(id);
                }
                Ok(Item::Ids(ids))
            }
        }
        deserializer.deserialize_any(One)
    }
}

impl<'de> Deserialize<'de> for Inputs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Inputs, D::Error> {
        match InputsOr::<IgnoredAny>::deserialize(deserializer)? {
            InputsOr::Inputs(inputs) => Ok(inputs),
            InputsOr::Other(_) => Err(D::Error::custom("an object is no input; expected a text or a list")),
        }
    }
}

/// Inputs, or an object in their place.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum InputsOr<T> {
    /// Inputs.
    Inputs(Inputs),
    /// Something else.
    Other(T),
}

impl<'de, T: DeserializeOwned> Deserialize<'de> for InputsOr<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<InputsOr<T>, D::Error> {
        struct All<T>(PhantomData<T>);
        impl<'de, T: DeserializeOwned> Visitor<'de> for All<T> {
            type Value = InputsOr<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text, or a list of texts, of token ids or of lists of token ids")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<InputsOr<T>, E> {
                Ok(InputsOr::Inputs(Inputs::One(text.to_owned())))
            }

            fn visit_string<E: Error>(self, text: String) -> Result<InputsOr<T>, E> {
                Ok(InputsOr::Inputs(Inputs::One(text)))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<InputsOr<T>, A::Error> {
                T::deserialize(MapAccessDeserializer::new(map)).map(InputsOr::Other)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<InputsOr<T>, A::Error> {
                let mixed = || A::Error::custom("texts and token ids are mixed in one list");
                let mut inputs = Inputs::Texts(Vec::new());
                let mut first = true;
                while let Some(item) = list.next_element()? {
                    if std::mem::take(&mut first) {
                        inputs = match item {
                            Item::Text(text) => Inputs::Texts(vec![text]),
                            Item::Id(id) => Inputs::Ids(vec![id]),
                            Item::Ids(ids) => Inputs::ManyIds(vec![ids]),
                        };
                        continue;
                    }
                    match (&mut inputs, item) {
                        (Inputs::Texts(texts), Item::Text(text)) => push(texts, text)?,
                        (Inputs::Ids(ids), Item::Id(id)) => ids.push(id),
                        (Inputs::ManyIds(many), Item::Ids(ids)) => push(many, ids)?,
                        _ => return Err(mixed()),
                    }
                }
                Ok(InputsOr::Inputs(inputs))
            }
        }
        deserializer.deserialize_any(All(PhantomData))
    }
}

impl Inputs {
    /// Whether these are token ids.
    pub(crate) fn has_ids(&self) -> bool {
        matches!(self, Inputs::Ids(_) | Inputs::ManyIds(_))
    }

    /// The texts; none where they came as token ids.
    pub(crate) fn texts(&self) -> &[String] {
        match self {
            Inputs::One(text) => std::slice::from_ref(text),
            Inputs::Texts(texts) => texts,
            Inputs::Ids(_) | Inputs::ManyIds(_) => &[],
        }
    }

    /// The bytes of each text, and four for each id.
    pub(crate) fn bytes(&self) -> Vec<usize> {
        match self {
            Inputs::One(text) => vec![text.len()],
            Inputs::Texts(texts) => texts.iter().map(String::len).collect(),
            Inputs::Ids(ids) => vec![4 * ids.len()],
            Inputs::ManyIds(many) => many.iter().map(|ids| 4 * ids.len()).collect(),
        }
    }
}

/// What a classifier is given: a text or a pair, or many of either.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Sequences {
    /// Each a text alone or a pair.
    pub(crate) sequences: Vec<(String, Option<String>)>,
    /// Whether they came as a list.
    pub(crate) many: bool,
}

impl<'de> Deserialize<'de> for Sequences {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Sequences, D::Error> {
        /// A text, or a list of one or two.
        enum Item {
            Text(String),
            List(Vec<String>),
        }
        impl<'de> Deserialize<'de> for Item {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Item, D::Error> {
                struct One;
                impl<'de> Visitor<'de> for One {
                    type Value = Item;

                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        f.write_str("a text, a pair of texts, or a list of either")
                    }

                    fn visit_str<E: Error>(self, text: &str) -> Result<Item, E> {
                        Ok(Item::Text(text.to_owned()))
                    }

                    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Item, A::Error> {
                        let mut texts = Vec::new();
                        while let Some(text) = list.next_element()? {
                            push(&mut texts, text)?;
                        }
                        Ok(Item::List(texts))
                    }
                }
                deserializer.deserialize_any(One)
            }
        }
        struct All;
        impl<'de> Visitor<'de> for All {
            type Value = Sequences;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text, a pair of texts, or a list of lists of one or two texts")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Sequences, E> {
                Ok(Sequences { sequences: vec![(text.to_owned(), None)], many: false })
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Sequences, A::Error> {
                let (mut flat, mut sequences) = (Vec::new(), Vec::new());
                while let Some(item) = list.next_element()? {
                    match item {
                        Item::Text(text) if sequences.is_empty() => push(&mut flat, text)?,
                        Item::List(texts) if flat.is_empty() => push(&mut sequences, pair(texts)?)?,
                        Item::Text(_) | Item::List(_) => {
                            return Err(A::Error::custom("texts and lists are mixed in one list"));
                        }
                    }
                }
                if flat.is_empty() {
                    return Ok(Sequences { sequences, many: true });
                }
                Ok(Sequences { sequences: vec![pair(flat)?], many: false })
            }
        }
        fn pair<E: Error>(texts: Vec<String>) -> Result<(String, Option<String>), E> {
            let mut texts = texts.into_iter();
            match (texts.next(), texts.next(), texts.next()) {
                (Some(one), second, None) => Ok((one, second)),
                _ => Err(E::custom("expected one text or two")),
            }
        }
        deserializer.deserialize_any(All)
    }
}

/// A document: a text, or an object with a field `text`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Document(pub(crate) String);

impl<'de> Deserialize<'de> for Document {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Document, D::Error> {
        struct One;
        impl<'de> Visitor<'de> for One {
            type Value = Document;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text, or an object with a field `text`")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Document, E> {
                Ok(Document(text.to_owned()))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Document, A::Error> {
                let mut text = None;
                while let Some(name) = map.next_key::<String>()? {
                    if name == "text" {
                        text = Some(map.next_value()?);
                    } else {
                        map.next_value::<IgnoredAny>()?;
                    }
                }
                text.map(Document).ok_or_else(|| A::Error::missing_field("text"))
            }
        }
        deserializer.deserialize_any(One)
    }
}

#[cfg(test)]
mod tests {
    use serde::de::DeserializeOwned;
    use serde_json::json;

    use super::*;

    fn inputs(value: serde_json::Value) -> Option<Inputs> {
        serde_json::from_value(value).ok()
    }

    #[test]
    fn texts_and_ids_come_alone_or_in_lists_and_never_mixed() {
        assert_eq!(inputs(json!("a")), Some(Inputs::One("a".to_owned())));
        assert_eq!(inputs(json!(["a", "b"])), Some(Inputs::Texts(vec!["a".to_owned(), "b".to_owned()])));
        assert_eq!(inputs(json!([1, 2])), Some(Inputs::Ids(vec![1, 2])));
        assert_eq!(inputs(json!([[1], [2, 3]])), Some(Inputs::ManyIds(vec![vec![1], vec![2, 3]])));
        assert_eq!(inputs(json!([])), Some(Inputs::Texts(Vec::new())));
        for wrong in [
            json!(["a", 1]),
            json!([1, "a"]),
            json!({}),
            json!(1),
            json!([-1]),
            json!([1e20]),
            json!([[["a"]]]),
        ] {
            assert_eq!(inputs(wrong.clone()), None, "{wrong}");
        }
        assert_eq!(inputs(json!(vec!["a"; MAX_INPUTS + 1])), None);
    }

    #[test]
    fn enumerated_values_are_kept_once_and_a_long_list_of_them_is_refused() {
        let read = |value| serde_json::from_value::<Values<String>>(value).ok();
        assert_eq!(read(json!(["b", "a", "b"])), Some(Values(["a", "b"].map(str::to_owned).into())));
        assert!(read(json!(vec!["a"; MOST_VALUES])).is_some_and(|values| values.0.len() == 1));
        assert_eq!(read(json!(vec!["a"; MOST_VALUES + 1])), None);
    }

    #[test]
    fn a_value_of_another_type_is_refused_with_the_expected_one() {
        fn refusal<T: DeserializeOwned>(value: serde_json::Value) -> String {
            serde_json::from_value::<T>(value).err().map(|error| error.to_string()).unwrap_or_default()
        }
        for (refusal, expected) in [
            (refusal::<Values<String>>(json!(1)), "expected a list"),
            (
                refusal::<Inputs>(json!(true)),
                "expected a text, or a list of texts, of token ids or of lists of token ids",
            ),
            (refusal::<Inputs>(json!([true])), "expected a text, a token id or a list of token ids"),
            (
                refusal::<Sequences>(json!(1)),
                "expected a text, a pair of texts, or a list of lists of one or two texts",
            ),
            (refusal::<Sequences>(json!([1])), "expected a text, a pair of texts, or a list of either"),
        ] {
            assert!(refusal.contains(expected), "{refusal}");
        }
    }

    #[test]
    fn a_flat_list_of_two_is_one_pair() {
        let read = |value| serde_json::from_value::<Sequences>(value).ok();
        let pair = ("a".to_owned(), Some("b".to_owned()));
        let alone = ("c".to_owned(), None);
        assert_eq!(read(json!("c")), Some(Sequences { sequences: vec![alone.clone()], many: false }));
        assert_eq!(read(json!(["a", "b"])), Some(Sequences { sequences: vec![pair.clone()], many: false }));
        let many = Sequences { sequences: vec![pair, alone], many: true };
        assert_eq!(read(json!([["a", "b"], ["c"]])), Some(many));
        assert_eq!(read(json!(["a", "b", "c"])), None);
        assert_eq!(read(json!([["a"], "b"])), None);
    }
}
