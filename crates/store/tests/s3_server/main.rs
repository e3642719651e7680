//! The `s3` backend against two S3 servers of others: s3s-fs in this process, and moto where it is installed.

mod contract;
mod crash;
mod inventory;
