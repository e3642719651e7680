//! What the contract of `kv_store_v1` asks of a backend, item by item, and whether it keeps it.
