//! What is remembered of requests.
