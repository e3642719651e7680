//! Whose blocks a lease or a job has.

use super::action::BlocksOf;

/// The blocks of a lease or a job: its own, to be given back when it ends; or those of the other that it
/// works for, which gives them back.
///
/// A write lease that a pull has made so that its owner pushes has the pull's, and a push that a holder has
/// invited has the lease's.
#[derive(Debug)]
pub(crate) enum Held<B> {
    Own(B),
    Of(BlocksOf),
}
