//! `s3://`: a bucket of any S3 store.
