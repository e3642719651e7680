//! Tests of following requests: each rule by a case, everything against a slow reading, and what hyper reads of
//! accepted bytes.

mod cases;
mod random;
mod server;

use super::Requests;
use super::oracle::{self, Outcome, follow};
