//! `libkv_store_file.so`.
