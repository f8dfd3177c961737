//! Spans that an application sees when it embeds the library.

use std::sync::{Arc, Mutex};

use sconce_testkit::goldens;
use tracing::span::{Attributes, Id};
use tracing::{Subscriber, subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::{LookupSpan, Registry};

use crate::support::Home;

/// Collects the path of every span.
#[derive(Clone, Default)]
struct Paths(Arc<Mutex<Vec<String>>>);

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Paths {
    fn on_new_span(&self, _: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let scope = context.span_scope(id).into_iter().flatten();
        let mut names: Vec<&str> = scope.map(|span| span.name()).collect();
        names.reverse();
        self.0.lock().expect("no panic").push(names.join("/"));
    }
}

#[test]
fn an_application_sees_the_spans_of_loads_proofs_and_batches() {
    let (home, paths) = (Home::unproved(), Paths::default());
    subscriber::with_default(Registry::default().with(paths.clone()), || {
        let model = home.model(&goldens::folder("tiny-bert")).open().expect("it opens");
        model.embed(&["one", "two"]).expect("it embeds");
    });
    let paths = paths.0.lock().expect("no panic");
    for expected in ["prove", "load", "tokenize", "batch", "batch/engine"] {
        assert!(paths.iter().any(|path| path == expected), "no span `{expected}`: {paths:?}");
    }
}
