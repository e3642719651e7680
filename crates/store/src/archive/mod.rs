//! A request's blocks in one standard layout, saved out of any deployment and restored into any other.
