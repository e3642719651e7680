//! `libkv_store_s3.so`: stores in a bucket of any S3 service, `s3://bucket[/path...]`, for every engine with
//! `kv_store_v1`. [`S3Store`] does the work. Credentials, region and endpoint come from the environment.

use transload_store::backend::s3::S3Store;

transload_store::export!(S3Store);
