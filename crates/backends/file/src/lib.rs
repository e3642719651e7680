//! `libkv_store_file.so`: stores in a folder, `file:///absolute/path`, for every engine that speaks
//! `kv_store_v1`. What it does is [`FileStore`]'s.

use transload_store::backend::file::FileStore;

transload_store::export!(FileStore);
