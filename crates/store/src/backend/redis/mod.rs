//! `redis://` and `rediss://`: a Redis or Valkey server.
