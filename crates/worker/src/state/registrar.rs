//! Creates and registers metrics.

use prometheus::core::Collector;
use prometheus::{
    Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGaugeVec, Opts, Registry,
    exponential_buckets,
};

/// Creates and registers metrics.
pub(super) struct Registrar<'a> {
    pub(super) registry: &'a Registry,
}

impl Registrar<'_> {
    pub(super) fn register<T: Collector + Clone + 'static>(&self, metric: T) -> Result<T, prometheus::Error> {
        self.registry.register(Box::new(metric.clone()))?;
        Ok(metric)
    }

    pub(super) fn counter(&self, name: &str, help: &str) -> Result<IntCounter, prometheus::Error> {
        self.register(IntCounter::new(name, help)?)
    }

    pub(super) fn counters(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
    ) -> Result<IntCounterVec, prometheus::Error> {
        self.register(IntCounterVec::new(Opts::new(name, help), labels)?)
    }

    pub(super) fn gauges(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
    ) -> Result<IntGaugeVec, prometheus::Error> {
        self.register(IntGaugeVec::new(Opts::new(name, help), labels)?)
    }

    pub(super) fn times(&self, name: &str, help: &str) -> Result<Histogram, prometheus::Error> {
        self.register(Histogram::with_opts(times(name, help)?)?)
    }

    pub(super) fn many_times(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
    ) -> Result<HistogramVec, prometheus::Error> {
        self.register(HistogramVec::new(times(name, help)?, labels)?)
    }

    pub(super) fn sizes(&self, name: &str, help: &str) -> Result<Histogram, prometheus::Error> {
        self.register(Histogram::with_opts(sizes(name, help)?)?)
    }

    pub(super) fn many_sizes(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
    ) -> Result<HistogramVec, prometheus::Error> {
        self.register(HistogramVec::new(sizes(name, help)?, labels)?)
    }
}

/// Duration buckets from 0.1 ms to 26 s.
fn times(name: &str, help: &str) -> Result<HistogramOpts, prometheus::Error> {
    Ok(HistogramOpts::new(name, help).buckets(exponential_buckets(1e-4, 2.0, 19)?))
}

/// Size buckets from 1 to 524,288.
fn sizes(name: &str, help: &str) -> Result<HistogramOpts, prometheus::Error> {
    Ok(HistogramOpts::new(name, help).buckets(exponential_buckets(1.0, 2.0, 20)?))
}
