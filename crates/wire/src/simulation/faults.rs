//! Rules that a world breaks on purpose, around correct machines: in what agents report, what is sent, and which lives
//! can be told apart. The effect is that of a broken machine, and must be noticed.

use std::collections::HashSet;

use transload_plan::content::ContentDigest;

/// A rule that is broken on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// Commits although the lease is over: a source's abort for that reason is sent as a commit.
    CommitWithoutLease,
    /// Ends leases without waiting for their readers: fences are reported too early.
    EndLeaseBeforeFence,
    /// Returns blocks while streams may still write them: fences are reported too early.
    GiveBackBeforeFence,
    /// Tries again while the last attempt may still write: fences are reported too early.
    RetryBeforeFence,
    /// Admits streams after the failure, although the machine has refused them.
    AdmitAfterFence,
    /// A transfer succeeds once all bytes have arrived: the commit is sent before the first of them.
    SucceedWithoutCommit,
    /// A transfer succeeds once the commit has arrived: streams are reported as arrived without placing their bytes.
    SucceedWithoutBytes,
    /// Does not compare checksums: the checksum sent is reported as the one computed.
    IgnoreChecksum,
    /// Does not compare content digests: asks are sent with the right one.
    AnyContent,
    /// Does not compare incarnations: every life of an agent has the same.
    AnyIncarnation,
    /// Notifies only the first owner that it is done: the other notices are lost.
    NoticeOnlyFirst,
    ReadBeforeMark,
    WriteBeforeMark,
}

/// A content digest that is wrong for every request.
pub(super) const WRONG: ContentDigest = ContentDigest([99; 32]);

/// The nodes and notices for which one owner has been notified.
#[derive(Default)]
pub(super) struct Told(pub(super) HashSet<(usize, u64)>);
