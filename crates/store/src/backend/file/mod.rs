//! `file://`: a folder of any POSIX file system, crash-safe and deduplicating.
