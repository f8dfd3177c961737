//! One integration binary: two cores link once.

mod families;
mod hub;
