//! `libkv_store_s3.so`: stores in a bucket of any S3 store, `s3://bucket[/path...]`, for every engine that
//! speaks `kv_store_v1`. What it does is [`S3Store`]'s; credentials, region and endpoint come from the
//! environment.

use transload_store::backend::s3::S3Store;

transload_store::export!(S3Store);
