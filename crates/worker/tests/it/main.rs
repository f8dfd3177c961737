//! Integration tests of the worker: real sockets, real models, and fake engines with injected faults.

mod anthropic;
mod catalog;
mod client;
mod console;
mod dashboard;
mod dialects;
mod fairness;
mod faults;
mod forwarding;
mod fuzz;
mod generation;
mod harness;
mod invalid_requests;
mod lifecycle;
mod limits;
mod member;
mod minilm;
mod multi_model;
mod ollama;
mod pause;
mod provers;
mod responses;
mod second_opinions;
mod tls_and_cors;
mod tools;
mod traces;
