//! `libkv_store_redis.so`.
