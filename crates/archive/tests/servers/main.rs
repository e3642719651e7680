//! Archives and objects on servers: the number of round trips, and repair.

#[path = "../objects/model.rs"]
mod model;
mod redis_archive;
mod redis_objects;
mod s3_objects;
