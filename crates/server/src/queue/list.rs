//! Texts that wait, in the order of fair shares: each owner's in their order of arrival, and owners side by side.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use crate::keys::Owner;
use crate::queue::Entry;
use crate::queue::job::Job;
use crate::queue::next_batch::{WINDOW, Waiting};

/// Texts that wait. Each is tagged with the tokens after which it would be done if every owner had an equal share of
/// the work, and the list is kept in the order of tags: who has little waiting is served soon, however much others
/// have.
#[derive(Default)]
pub(super) struct List {
    entries: VecDeque<Entry>,
    tokens: usize,
    /// What each owner has waiting, and the tag of its last text.
    owners: HashMap<Owner, Share>,
    /// The tag that the work has come to.
    now: u64,
}

#[derive(Clone, Copy, Default)]
struct Share {
    tokens: usize,
    last: u64,
}

impl List {
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn tokens(&self) -> usize {
        self.tokens
    }

    /// Tokens of `owner` that wait, and how many owners there are with it.
    pub(super) fn share(&self, owner: Owner) -> (usize, usize) {
        let own = self.owners.get(&owner).map_or(0, |share| share.tokens);
        (own, self.owners.len() + usize::from(own == 0))
    }

    /// Takes in the texts of a job.
    pub(super) fn admit(&mut self, job: &Arc<Job>) {
        let share = self.owners.entry(job.owner).or_default();
        let mut tag = share.last.max(self.now);
        for (index, text) in job.texts.iter().enumerate() {
            let tokens = text.ids.len();
            tag += tokens as u64;
            let waiting = Waiting { tokens, want: job.want, arrived: job.arrived };
            let entry = Entry { job: Arc::clone(job), index, waiting, tag };
            // Alone, an owner's texts go to the end.
            let place = match self.entries.back() {
                Some(last) if last.tag > tag => self.entries.partition_point(|other| other.tag <= tag),
                Some(_) | None => self.entries.len(),
            };
            self.entries.insert(place, entry);
            share.tokens += tokens;
            self.tokens += tokens;
        }
        share.last = tag;
    }

    /// The first of those that wait.
    pub(super) fn waiting(&self) -> Vec<Waiting> {
        self.entries.iter().take(WINDOW).map(|entry| entry.waiting).collect()
    }

    /// Drops what nobody waits for; its tokens.
    pub(super) fn purge(&mut self) -> usize {
        let before = self.tokens;
        if self.entries.iter().any(|entry| entry.job.is_gone()) {
            let (gone, stay): (VecDeque<Entry>, VecDeque<Entry>) =
                std::mem::take(&mut self.entries).into_iter().partition(|entry| entry.job.is_gone());
            self.entries = stay;
            for entry in &gone {
                self.let_go(entry);
            }
        }
        before - self.tokens
    }

    /// Takes out the entries at these places, which ascend.
    pub(super) fn take(&mut self, members: &[usize]) -> Vec<Entry> {
        let reach = members.last().map_or(0, |last| last + 1).min(self.entries.len());
        let mut next = members.iter().copied().peekable();
        let (mut taken, mut left) = (Vec::with_capacity(members.len()), Vec::new());
        for (at, entry) in self.entries.drain(..reach).enumerate() {
            if next.next_if_eq(&at).is_some() { taken.push(entry) } else { left.push(entry) }
        }
        for entry in left.into_iter().rev() {
            self.entries.push_front(entry);
        }
        if let Some(first) = taken.first() {
            self.now = self.now.max(first.tag);
        }
        for entry in &taken {
            self.let_go(entry);
        }
        taken
    }

    /// One entry less. An owner with nothing left is forgotten, and with the last of them the time.
    fn let_go(&mut self, entry: &Entry) {
        let tokens = entry.waiting.tokens;
        self.tokens -= tokens;
        if let Some(share) = self.owners.get_mut(&entry.job.owner) {
            share.tokens -= tokens;
            if share.tokens == 0 {
                self.owners.remove(&entry.job.owner);
            }
        }
        if self.owners.is_empty() {
            self.now = 0;
        }
    }
}
