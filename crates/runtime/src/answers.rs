//! Sequences to their rows, whatever the task: batches, the placement that serves, and an account of both.

use std::sync::Arc;

use sconce_core::batch::{Batch, OutputKind};
use sconce_core::card::Task;
use sconce_core::placement::Placement;
use serde::Serialize;

use crate::batching::{BUDGET, batches};
use crate::error::Error;
use crate::model::Model;
use crate::tokens::Tokenized;

/// Numbers that leave an engine at once: a row of scores for every word of a vocabulary is long.
const NUMBERS: usize = 16 << 20;

/// How an answer came about.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Account {
    /// Tokens that were computed.
    pub tokens: usize,
    /// The texts that were longer than the model takes.
    pub truncated: Vec<Truncation>,
    /// The placements that did the work: more than one only if one failed meanwhile.
    pub placements: Vec<Placement>,
    /// The numerics class of each: answers of one class may be compared with each other.
    pub classes: Vec<String>,
    /// The place of each text's class among them.
    #[serde(skip)]
    pub(crate) class_of: Vec<usize>,
}

/// A text that was cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Truncation {
    /// Which.
    pub index: usize,
    /// Tokens it has.
    pub tokens: usize,
    /// Tokens that were used.
    pub used: usize,
}

impl Account {
    /// The numerics class of the answer to the text at `index`.
    pub fn class(&self, index: usize) -> &str {
        class(&self.classes, &self.class_of, index)
    }

    /// Takes note of what another answer, whose texts come after `first` of this one, took.
    pub(crate) fn add(&mut self, other: Account, first: usize) {
        self.tokens += other.tokens;
        let moved = |cut: Truncation| Truncation { index: cut.index + first, ..cut };
        self.truncated.extend(other.truncated.into_iter().map(moved));
        for placement in other.placements {
            note(&mut self.placements, placement);
        }
        let places: Vec<usize> =
            other.classes.into_iter().map(|class| note(&mut self.classes, class)).collect();
        let places = other.class_of.into_iter().map(|class| places.get(class).copied().unwrap_or(0));
        self.class_of.extend(places);
    }
}

/// The class at `index`.
pub(crate) fn class<'a>(classes: &'a [String], class_of: &[usize], index: usize) -> &'a str {
    class_of.get(index).and_then(|&class| classes.get(class)).map_or("", String::as_str)
}

/// The place of `item` in the list, which has it from now on.
fn note<T: PartialEq>(list: &mut Vec<T>, item: T) -> usize {
    list.iter().position(|known| *known == item).unwrap_or_else(|| {
        list.push(item);
        list.len() - 1
    })
}

impl Model {
    /// Whether the model is for one of `tasks`, or the error that says what it is for.
    pub fn expect(&self, asked: &'static str, tasks: &[Task]) -> Result<Task, Error> {
        let task = &self.card().task;
        if tasks.contains(&task.value) {
            return Ok(task.value);
        }
        Err(Error::WrongTask { asked, has: task.value, by: said_by(&task.source) })
    }

    /// Computes every text and hands over its rows by its index, in no order.
    pub(crate) fn answer(
        &self,
        texts: &[Tokenized],
        mut take: impl FnMut(usize, &[f32]),
    ) -> Result<Account, Error> {
        let mut account = Account { class_of: vec![0; texts.len()], ..Account::default() };
        for (index, text) in texts.iter().enumerate() {
            account.tokens += text.ids.len();
            if text.is_truncated() {
                account.truncated.push(Truncation { index, tokens: text.whole, used: text.ids.len() });
            }
        }
        let (output_kind, width) = (self.output_kind(), self.card().width());
        let most = (NUMBERS / width.max(1)).max(1);
        let lengths: Vec<usize> = texts.iter().map(|text| text.ids.len()).collect();
        for members in batches(&lengths, self.serving().cost(), BUDGET) {
            for members in members.chunks(most) {
                let mut batch = Batch::new(output_kind);
                for &member in members {
                    let text = &texts[member];
                    batch.push_filled(&text.ids, &text.types, text.skip, text.unseen);
                }
                let served = self.serving().compute(&Arc::new(batch))?;
                let mut values = served.rows.values.as_slice();
                for &member in members {
                    let rows = match output_kind {
                        OutputKind::Pooled => 1,
                        OutputKind::Tokens | OutputKind::Projected => lengths[member],
                    };
                    let (own, rest) = values.split_at(rows * served.rows.width);
                    take(member, own);
                    values = rest;
                }
                note(&mut account.placements, served.placement);
                let class = note(&mut account.classes, served.class);
                for &member in members {
                    account.class_of[member] = class;
                }
            }
        }
        Ok(account)
    }
}

/// A file in backticks; words as they are.
fn said_by(by: &str) -> String {
    if by.contains(['.', '-']) && !by.contains(' ') { format!("`{by}`") } else { by.to_owned() }
}

#[cfg(test)]
mod tests {
    use sconce_core::device::Device;
    use sconce_core::placement::{Dtype, EngineId};

    use super::*;

    fn account(dtype: Dtype, class: &str, cut: usize) -> Account {
        let placement =
            Placement { engine: EngineId::Candle, device: Device::Cpu, weights: "model".to_owned(), dtype };
        Account {
            tokens: 10,
            truncated: vec![Truncation { index: cut, tokens: 9, used: 8 }],
            placements: vec![placement],
            classes: vec![class.to_owned()],
            class_of: vec![0, 0],
        }
    }

    #[test]
    fn accounts_add_up_and_name_each_class_once() {
        let mut all = account(Dtype::F32, "exact", 1);
        all.add(account(Dtype::F16, "half", 0), 2);
        all.add(account(Dtype::F32, "exact", 1), 4);
        assert_eq!(all.tokens, 30);
        assert_eq!(all.truncated.iter().map(|cut| cut.index).collect::<Vec<_>>(), [1, 2, 5]);
        assert_eq!(all.placements.len(), 2);
        assert_eq!(all.classes, ["exact", "half"]);
        let classes: Vec<&str> = (0..7).map(|index| all.class(index)).collect();
        assert_eq!(classes, ["exact", "exact", "half", "half", "exact", "exact", ""]);
    }

    #[test]
    fn only_names_of_files_are_literals() {
        for (by, expected) in [
            ("config.json", "`config.json`"),
            ("--task", "`--task`"),
            ("its labels", "its labels"),
            ("guessed", "guessed"),
            ("two files: a.json", "two files: a.json"),
        ] {
            assert_eq!(said_by(by), expected);
        }
    }
}
