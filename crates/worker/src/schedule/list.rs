//! Texts that wait, in the order of fair shares: each tenant's in their order of arrival, and tenants side by side.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use crate::schedule::job::Job;
use crate::schedule::next_batch::{WINDOW, Waiting};
use sconce_http::fair_quota::FairQuota;
use sconce_http::keys::TenantId;

/// One text of a job.
#[derive(Clone)]
pub(crate) struct Entry {
    pub(crate) job: Arc<Job>,
    pub(crate) index: usize,
    pub(super) waiting: Waiting,
    /// When it would be done if every tenant had an equal share, in tokens.
    pub(super) tag: u64,
}

impl Entry {
    pub(crate) fn tokens(&self) -> usize {
        self.waiting.tokens
    }
}

/// Texts that wait. Each is tagged with the tokens after which it would be done if every tenant had an equal share of
/// the work, and the list is kept in the order of tags: who has little waiting is served soon, however much others
/// have.
#[derive(Default)]
pub(super) struct List {
    entries: VecDeque<Entry>,
    tokens: usize,
    /// What each tenant has waiting, and the tag of its last text.
    tenants: HashMap<TenantId, Share>,
    /// The tag that the work has come to.
    now: u64,
    /// Oversized jobs, of which only a part waits in the list.
    backlog: Vec<Oversized>,
}

/// A job that enters the list by and by, so that it leaves room for others.
struct Oversized {
    job: Arc<Job>,
    /// The first of its texts that is not in the list.
    next: usize,
    /// Tokens of it in the list, and how many are to be there.
    listed: usize,
    window: usize,
}

impl Oversized {
    fn rest(&self) -> usize {
        self.job.texts[self.next..].iter().map(|text| text.ids.len()).sum()
    }
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

    /// Tokens of `tenant` that wait, and how many tenants there are with it.
    pub(super) fn share(&self, tenant: TenantId) -> (usize, usize) {
        let own = self.tenants.get(&tenant).map_or(0, |share| share.tokens);
        (own, self.tenants.len() + usize::from(own == 0))
    }

    /// Texts and tokens of oversized jobs that are not in the list yet.
    pub(super) fn backlog(&self) -> (usize, usize) {
        let texts = self.backlog.iter().map(|one| one.job.texts.len() - one.next).sum();
        (texts, self.backlog.iter().map(Oversized::rest).sum())
    }

    /// Whether the backlog has room for `tokens` more, where `most` may wait in it.
    pub(super) fn backlog_has_room(&self, tenant: TenantId, tokens: usize, most: usize) -> bool {
        let mut shares = FairQuota::default();
        for one in &self.backlog {
            shares.weigh(one.job.tenant, one.rest(), 0);
        }
        shares.has_room(tenant, tokens, most)
    }

    /// Takes in the texts of a job.
    pub(super) fn admit(&mut self, job: &Arc<Job>) {
        for index in 0..job.texts.len() {
            self.insert(job, index);
        }
    }

    /// Takes in an oversized job, about `window` tokens of it at a time.
    pub(super) fn admit_oversized(&mut self, job: &Arc<Job>, window: usize) {
        self.backlog.push(Oversized { job: Arc::clone(job), next: 0, listed: 0, window: window.max(1) });
        self.refill();
    }

    /// Takes in as much of the oversized jobs as their windows allow.
    fn refill(&mut self) {
        let mut backlog = std::mem::take(&mut self.backlog);
        backlog.retain_mut(|one| {
            while one.listed < one.window && one.next < one.job.texts.len() {
                one.listed += self.insert(&one.job, one.next);
                one.next += 1;
            }
            one.next < one.job.texts.len()
        });
        self.backlog = backlog;
    }

    /// Takes in one text; its tokens.
    fn insert(&mut self, job: &Arc<Job>, index: usize) -> usize {
        let tokens = job.texts[index].ids.len();
        let share = self.tenants.entry(job.tenant).or_default();
        let tag = share.last.max(self.now) + tokens as u64;
        let waiting = Waiting { tokens, output_kind: job.output_kind, arrived: job.arrived };
        let entry = Entry { job: Arc::clone(job), index, waiting, tag };
        // Alone, an tenant's texts go to the end.
        let place = match self.entries.back() {
            Some(last) if last.tag > tag => self.entries.partition_point(|other| other.tag <= tag),
            Some(_) | None => self.entries.len(),
        };
        self.entries.insert(place, entry);
        share.tokens += tokens;
        share.last = tag;
        self.tokens += tokens;
        tokens
    }

    /// The first of those that wait.
    pub(super) fn waiting(&self) -> Vec<Waiting> {
        self.entries.iter().take(WINDOW).map(|entry| entry.waiting).collect()
    }

    /// Drops what nobody waits for; its tokens.
    pub(super) fn purge(&mut self) -> usize {
        let before = self.tokens + self.backlog().1;
        self.backlog.retain(|one| !one.job.is_gone());
        if self.entries.iter().any(|entry| entry.job.is_gone()) {
            let (gone, stay): (VecDeque<Entry>, VecDeque<Entry>) =
                std::mem::take(&mut self.entries).into_iter().partition(|entry| entry.job.is_gone());
            self.entries = stay;
            for entry in &gone {
                self.let_go(entry);
            }
        }
        before - self.tokens - self.backlog().1
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
        self.refill();
        taken
    }

    /// One entry less. An tenant with nothing left is forgotten, and with the last of them the time.
    fn let_go(&mut self, entry: &Entry) {
        let tokens = entry.waiting.tokens;
        self.tokens -= tokens;
        if let Some(one) = self.backlog.iter_mut().find(|one| Arc::ptr_eq(&one.job, &entry.job)) {
            one.listed -= tokens;
        }
        if let Some(share) = self.tenants.get_mut(&entry.job.tenant) {
            share.tokens -= tokens;
            if share.tokens == 0 {
                self.tenants.remove(&entry.job.tenant);
            }
        }
        if self.tenants.is_empty() {
            self.now = 0;
        }
    }
}
