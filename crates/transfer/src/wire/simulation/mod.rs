//! placeholder
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    AnyIncarnation,
    EndLeaseBeforeFence,
    GiveBackBeforeFence,
    AdmitAfterFence,
    IgnoreChecksum,
    CommitWithBorrows,
    CommitWithoutLease,
    SucceedWithoutCommit,
    SucceedWithoutBytes,
    RetryBeforeFence,
    AnyContent,
    NoticeOnlyFirst,
}
