//! The server from outside: real sockets, real models, and engines with faults.

mod bad;
mod client;
mod faults;
mod fuzz;
mod life;
mod minilm;
mod shapes;
mod stage;
