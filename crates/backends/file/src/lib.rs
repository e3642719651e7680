//! `libkv_store_file.so`: stores in a folder, `file:///absolute/path`, for every engine with `kv_store_v1`.
//! [`FileStore`] does the work.

use transload_store::backend::file::FileStore;

transload_store::export!(FileStore);
