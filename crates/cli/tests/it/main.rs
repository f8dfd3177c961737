//! One integration binary: two cores link once.

mod command;
mod manifest;
mod mpnet;
mod scene;
mod tasks;
