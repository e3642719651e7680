//! Archives and objects on servers: what they cost there, and that they heal.

#[path = "../objects/model.rs"]
mod model;
mod redis_archive;
mod redis_objects;
mod s3_objects;
