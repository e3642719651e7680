//! How requests are followed: each rule by a case, everything against a slow reading of the whole bytes, and what hyper
//! makes of what passes.

mod cases;
mod random;
mod server;

use super::Requests;
use super::oracle::{self, Outcome, follow};
