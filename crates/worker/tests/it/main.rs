//! The server from outside: real sockets, real models, and engines with faults.

mod access;
mod bad;
mod client;
mod dashboard;
mod docs;
mod fair;
mod faults;
mod fuzz;
mod life;
mod limits;
mod minilm;
mod provers;
mod several;
mod shapes;
mod stage;
mod traces;
mod unusual;
