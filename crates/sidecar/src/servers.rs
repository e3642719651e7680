//! The servers known: their states, what is in flight at each, and which one is chosen.
