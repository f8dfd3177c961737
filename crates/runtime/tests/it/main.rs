//! One integration binary: two cores link once.

mod cards;
mod evidence;
mod fakes;
mod families;
mod faults;
mod hub;
mod minilm;
mod mutations;
mod running;
mod shapes;
mod support;
mod texts;
mod watched;
