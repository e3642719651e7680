//! `libkv_store_s3.so`.
