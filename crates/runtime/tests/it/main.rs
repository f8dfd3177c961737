//! One integration binary: two cores link once.

mod cards;
mod conformance;
mod evidence;
mod executors;
mod fakes;
mod families;
mod faults;
mod graphs;
mod heads;
mod hub;
mod instruct;
mod minilm;
mod models_page;
mod mutations;
mod pairs;
mod peek;
mod running;
mod shapes;
mod support;
mod task_faults;
mod tasks;
mod texts;
mod unread;
mod watched;
mod wider;
mod wider_mutations;
