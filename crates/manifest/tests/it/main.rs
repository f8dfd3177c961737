//! Tests of the diagnosis on whole Cargo projects.

mod projects;
