//! Backends around a backend: faults, throttling, metrics, checksums.
