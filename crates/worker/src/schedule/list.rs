//! The waiting texts of one priority in fair-queueing order: FIFO within a tenant, interleaved between tenants.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use crate::schedule::job::Job;
use crate::schedule::next_batch::{LOOKAHEAD, WaitingText};
use sconce_http::fair_quota::FairQuota;
use sconce_http::keys::TenantId;

/// One waiting text of a job.
#[derive(Clone)]
pub(crate) struct Entry {
    pub(crate) job: Arc<Job>,
    pub(crate) index: usize,
    pub(super) waiting: WaitingText,
    /// Virtual finish time in tokens: when it would be done if all tenants were served at equal rates.
    pub(super) finish: u64,
}

impl Entry {
    pub(crate) fn tokens(&self) -> usize {
        self.waiting.tokens
    }
}

/// Waiting texts, ordered by virtual finish time. A tenant with little waiting work is served soon, regardless of the
/// load of other tenants.
#[derive(Default)]
pub(super) struct List {
    entries: VecDeque<Entry>,
    tokens: usize,
    tenants: HashMap<TenantId, TenantShare>,
    /// The virtual clock: the finish time of the text that was dequeued last.
    virtual_time: u64,
    /// Oversized jobs, of which only a window is in the list.
    backlog: Vec<Oversized>,
}

/// A job that enters the list one window at a time, so that it does not fill the queue.
struct Oversized {
    job: Arc<Job>,
    /// Index of its first text that is not in the list yet.
    next: usize,
    /// Its tokens in the list.
    listed: usize,
    /// Target for `listed`.
    window: usize,
}

impl Oversized {
    /// Tokens that are not in the list yet.
    fn backlog(&self) -> usize {
        self.job.texts[self.next..].iter().map(|text| text.ids.len()).sum()
    }
}

/// The waiting work of one tenant.
#[derive(Clone, Copy, Default)]
struct TenantShare {
    tokens: usize,
    /// Virtual finish time of its last text.
    finish: u64,
}

impl List {
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn tokens(&self) -> usize {
        self.tokens
    }

    /// Waiting tokens of `tenant`, and the number of tenants with waiting work, `tenant` included.
    pub(super) fn share(&self, tenant: TenantId) -> (usize, usize) {
        let own = self.tenants.get(&tenant).map_or(0, |share| share.tokens);
        (own, self.tenants.len() + usize::from(own == 0))
    }

    /// Texts and tokens in the backlog of oversized jobs.
    pub(super) fn backlog(&self) -> (usize, usize) {
        let texts = self.backlog.iter().map(|one| one.job.texts.len() - one.next).sum();
        (texts, self.backlog.iter().map(Oversized::backlog).sum())
    }

    /// Whether a backlog of at most `limit` tokens admits `tokens` more.
    pub(super) fn backlog_admits(&self, tenant: TenantId, tokens: usize, limit: usize) -> bool {
        let mut quota = FairQuota::default();
        for one in &self.backlog {
            quota.adjust(one.job.tenant, one.backlog(), 0);
        }
        quota.admits(tenant, tokens, limit)
    }

    /// Enqueues all texts of a job.
    pub(super) fn admit(&mut self, job: &Arc<Job>) {
        for index in 0..job.texts.len() {
            self.insert(job, index);
        }
    }

    /// Enqueues an oversized job, about `window` tokens at a time.
    pub(super) fn admit_oversized(&mut self, job: &Arc<Job>, window: usize) {
        self.backlog.push(Oversized { job: Arc::clone(job), next: 0, listed: 0, window: window.max(1) });
        self.refill();
    }

    /// Refills the windows of oversized jobs.
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

    /// Enqueues one text and returns its tokens.
    fn insert(&mut self, job: &Arc<Job>, index: usize) -> usize {
        let tokens = job.texts[index].ids.len();
        let share = self.tenants.entry(job.tenant).or_default();
        let finish = share.finish.max(self.virtual_time) + tokens as u64;
        let waiting = WaitingText { tokens, output_kind: job.output_kind, arrived: job.arrived };
        let entry = Entry { job: Arc::clone(job), index, waiting, finish };
        // The common case: one tenant appends.
        let at = match self.entries.back() {
            Some(last) if last.finish > finish => {
                self.entries.partition_point(|other| other.finish <= finish)
            }
            Some(_) | None => self.entries.len(),
        };
        self.entries.insert(at, entry);
        share.tokens += tokens;
        share.finish = finish;
        self.tokens += tokens;
        tokens
    }

    /// The texts that batch formation considers.
    pub(super) fn waiting(&self) -> Vec<WaitingText> {
        self.entries.iter().take(LOOKAHEAD).map(|entry| entry.waiting).collect()
    }

    /// Drops texts of cancelled jobs and returns their tokens.
    pub(super) fn purge(&mut self) -> usize {
        let before = self.tokens + self.backlog().1;
        self.backlog.retain(|one| !one.job.is_cancelled());
        if self.entries.iter().any(|entry| entry.job.is_cancelled()) {
            let (cancelled, kept): (VecDeque<Entry>, VecDeque<Entry>) =
                std::mem::take(&mut self.entries).into_iter().partition(|entry| entry.job.is_cancelled());
            self.entries = kept;
            for entry in &cancelled {
                self.forget(entry);
            }
        }
        before - self.tokens - self.backlog().1
    }

    /// Dequeues the entries at these indices, which ascend.
    pub(super) fn take(&mut self, members: &[usize]) -> Vec<Entry> {
        let end = members.last().map_or(0, |last| last + 1).min(self.entries.len());
        let mut next = members.iter().copied().peekable();
        let (mut taken, mut kept) = (Vec::with_capacity(members.len()), Vec::new());
        for (at, entry) in self.entries.drain(..end).enumerate() {
            if next.next_if_eq(&at).is_some() { taken.push(entry) } else { kept.push(entry) }
        }
        for entry in kept.into_iter().rev() {
            self.entries.push_front(entry);
        }
        if let Some(first) = taken.first() {
            self.virtual_time = self.virtual_time.max(first.finish);
        }
        for entry in &taken {
            self.forget(entry);
        }
        self.refill();
        taken
    }

    /// Removes an entry from the accounts. A tenant without waiting work is removed; without tenants the virtual clock
    /// restarts.
    fn forget(&mut self, entry: &Entry) {
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
            self.virtual_time = 0;
        }
    }
}
