//! Rules that a world breaks on purpose, around machines that keep them: what an agent reports, what travels, and
//! which lives can be told apart. Whatever a broken machine would do happens, and has to be noticed.

use std::collections::HashSet;

use transload_plan::content::ContentDigest;

/// A rule that is broken on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// Commits though the lease is over: what a source says of its end becomes a commit.
    CommitWithoutLease,
    /// Ends leases without waiting for their readers: fences are reported before they are there.
    EndLeaseBeforeFence,
    /// Gives blocks back while streams may still write them, likewise.
    GiveBackBeforeFence,
    /// Tries again while the last attempt may still write, likewise.
    RetryBeforeFence,
    /// Lets streams in after the failure, which the machine has refused.
    AdmitAfterFence,
    /// Reports success once all bytes are there: a commit comes before the first of them.
    SucceedWithoutCommit,
    /// Reports success once the commit is there: streams are said to have arrived of which no byte is placed.
    SucceedWithoutBytes,
    /// Does not compare checksums: the one that was sent is said to be the one seen.
    IgnoreChecksum,
    /// Does not compare content digests: asks travel with the right one.
    AnyContent,
    /// Does not compare incarnations: every life of an agent has the same.
    AnyIncarnation,
    /// Tells only the first owner that it is done: the other notices are lost.
    NoticeOnlyFirst,
    /// Takes blocks for computed that only will be.
    ReadBeforeMark,
    /// Opens blocks that work before may still read.
    WriteBeforeMark,
}

/// The content that a job states which is wrong about it.
pub(super) const WRONG: ContentDigest = ContentDigest([99; 32]);

/// Notices that one owner has been told, of each node.
#[derive(Default)]
pub(super) struct Told(pub(super) HashSet<(usize, u64)>);
