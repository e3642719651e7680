//! Refused calls of a plugin.

use std::ffi::c_int;

use crate::abi::{ERROR, INVALID};
use crate::error::StoreError;

pub(super) enum Refusal {
    Argument(String),
    Store(StoreError),
    Panic(String),
}

impl From<StoreError> for Refusal {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl Refusal {
    pub(super) fn code(&self) -> c_int {
        match self {
            Self::Argument(_)
            | Self::Store(StoreError::HashLength { .. } | StoreError::Name { .. } | StoreError::Uri(_)) => INVALID,
            Self::Store(_) | Self::Panic(_) => ERROR,
        }
    }

    pub(super) fn text(&self) -> String {
        match self {
            Self::Argument(wrong) => wrong.clone(),
            Self::Store(error) => error.to_string(),
            Self::Panic(with) => format!("the backend panicked, which is a fault in it: {with}"),
        }
    }
}
