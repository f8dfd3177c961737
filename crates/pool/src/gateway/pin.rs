//! Numerics pinning: the class that must answer a request, by `x-sconce-class` or by the index of `x-sconce-index`.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use axum::http::{HeaderMap, HeaderName};
use sconce_http::refusal::{Kind, Refusal};
use sconce_registry::Registration;
use tracing::warn;

use super::headers::{CLASS_HEADER, INDEX_HEADER};
use super::members::Members;
use super::refusals::no_worker;
use crate::backend::Backend;
use crate::choose::Request;
use crate::class::{NumericsClass, Pin};

/// Request header: `true` lets a tighter band of the same weights answer.
const ALLOW_TIGHTER_HEADER: HeaderName = HeaderName::from_static("x-sconce-allow-tighter");
/// Maximum number of bindings that are remembered.
const MAX_CACHED: usize = 65_536;

/// The bindings of indexes to classes.
pub(super) struct Pins {
    bindings: Arc<dyn Backend>,
    /// Bindings never change.
    cache: Mutex<HashMap<String, NumericsClass>>,
}

impl Pins {
    pub(super) fn new(bindings: Arc<dyn Backend>) -> Pins {
        Pins { bindings, cache: Mutex::default() }
    }

    /// The pin of a request with these headers. An index that is not bound is bound to the class of a worker that could
    /// answer the request now.
    pub(super) async fn pin(
        &self,
        headers: &HeaderMap,
        members: &Members,
        request: &Request<'_>,
    ) -> Result<Option<Pin>, Refusal> {
        let allow_tighter = flag(headers, &ALLOW_TIGHTER_HEADER)?;
        let named = match text(headers, &CLASS_HEADER)? {
            Some(class) => Some(parse(class)?),
            None => None,
        };
        let Some(index) = text(headers, &INDEX_HEADER)? else {
            return Ok(named.map(|class| Pin { class, allow_tighter }));
        };
        let class = if let Some(class) = self.bound(index).await? {
            class
        } else {
            let class = match &named {
                Some(class) => {
                    // A class that no worker has would answer no request to this index, ever.
                    let pin = Pin { class: class.clone(), allow_tighter };
                    let pinned = Request { pin: Some(&pin), ..*request };
                    members.choose(&pinned).map_err(|error| no_worker(&error, request.model))?;
                    class.clone()
                }
                None => class_of_a_worker(members, request)?,
            };
            self.bind(index, &class).await?
        };
        if named.as_ref().is_some_and(|named| *named != class) {
            let message = format!(
                "the index `{index}` has the numerics class `{class}`, not the one of `{CLASS_HEADER}`"
            );
            return Err(Refusal::new(Kind::Validation, message));
        }
        Ok(Some(Pin { class, allow_tighter }))
    }

    async fn bound(&self, index: &str) -> Result<Option<NumericsClass>, Refusal> {
        if let Some(class) = self.cache.lock().unwrap_or_else(PoisonError::into_inner).get(index) {
            return Ok(Some(class.clone()));
        }
        let bound = self.bindings.bound(index).await.map_err(|error| unavailable(index, &error))?;
        bound.map(|class| self.remember(index, &class)).transpose()
    }

    async fn bind(&self, index: &str, class: &NumericsClass) -> Result<NumericsClass, Refusal> {
        let bound = self.bindings.bind(index, &class.to_string()).await;
        self.remember(index, &bound.map_err(|error| unavailable(index, &error))?)
    }

    fn remember(&self, index: &str, class: &str) -> Result<NumericsClass, Refusal> {
        let class = parse(class)?;
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        if cache.len() >= MAX_CACHED {
            cache.clear();
        }
        cache.insert(index.to_owned(), class.clone());
        Ok(class)
    }
}

/// The class of a worker that could answer the request.
fn class_of_a_worker(members: &Members, request: &Request<'_>) -> Result<NumericsClass, Refusal> {
    let choice = members.choose(request).map_err(|error| no_worker(&error, request.model))?;
    class_of(&choice.registration, request.model).ok_or_else(|| {
        let message = format!("`{}` has no proved numerics class on any ready worker", request.model);
        Refusal::new(Kind::ClassUnavailable, message)
    })
}

/// The only class of the active placements of a model.
fn class_of(registration: &Registration, model: &str) -> Option<NumericsClass> {
    let has_name = |name: &String| name == model;
    let mut models = registration.models.iter();
    let model = models.find(|known| has_name(&known.model) || known.aliases.iter().any(has_name))?;
    let mut classes = model.placements.iter().filter(|placement| placement.active);
    let class = classes.next()?.class.as_ref()?;
    classes.all(|placement| placement.class.as_ref() == Some(class)).then(|| class.parse().ok()).flatten()
}

fn parse(class: &str) -> Result<NumericsClass, Refusal> {
    class
        .parse()
        .map_err(|error: crate::class::InvalidClass| Refusal::new(Kind::Validation, error.to_string()))
}

fn text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a str>, Refusal> {
    let mut values = headers.get_all(name).iter();
    let value = match (values.next(), values.next()) {
        (None, _) => return Ok(None),
        (Some(value), None) => value.to_str().ok().map(str::trim).filter(|text| !text.is_empty()),
        (Some(_), Some(_)) => None,
    };
    let invalid = || Refusal::new(Kind::Validation, format!("`{name}` must be one text of ASCII characters"));
    value.map(Some).ok_or_else(invalid)
}

fn flag(headers: &HeaderMap, name: &HeaderName) -> Result<bool, Refusal> {
    match text(headers, name)? {
        None | Some("false") => Ok(false),
        Some("true") => Ok(true),
        Some(_) => Err(Refusal::new(Kind::Validation, format!("`{name}` is `true` or `false`"))),
    }
}

fn unavailable(index: &str, error: &sconce_registry::RegistryError) -> Refusal {
    if let sconce_registry::RegistryError::Record(error) = error {
        return Refusal::new(Kind::Validation, error.to_string());
    }
    warn!(index, %error, "a binding could not be read");
    Refusal::new(Kind::NotReady, format!("the numerics class of the index `{index}` can't be read now"))
}
