//! The `s3` backend against two independent S3 servers: s3s-fs in this process, and moto if it is installed.

mod contract;
mod crash;
mod inventory;
