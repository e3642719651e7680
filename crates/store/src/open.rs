//! From a URI to a store.
