//! The exceptions: a base class, and one class for each kind of failure.

use std::error::Error;

use pyo3::create_exception;
use pyo3::exceptions::PyException;
use pyo3::prelude::*;

create_exception!(transload, TransloadError, PyException, "What all exceptions of Transload are.");
create_exception!(
    transload,
    DocumentError,
    TransloadError,
    "A deployment document has faults; the message lists all, each with its key path."
);
create_exception!(
    transload,
    PlanError,
    TransloadError,
    "Two deployments, a range of tokens or block tables do not go together."
);
create_exception!(
    transload,
    CacheMemoryError,
    TransloadError,
    "An object is no memory that can be registered, or an address is not inside of one."
);
create_exception!(
    transload,
    CudaError,
    TransloadError,
    "There is no CUDA here, or its driver says that a GPU, a stream or a mark cannot be used."
);
create_exception!(
    transload,
    IdentityError,
    TransloadError,
    "Certificates or keys could not be read, or do not suit what was asked for."
);
create_exception!(
    transload,
    TicketError,
    TransloadError,
    "A ticket cannot be minted or opened, or a text is not a ticket."
);
create_exception!(transload, LeaseError, TransloadError, "A lease could not be opened, or is over.");
create_exception!(
    transload,
    TransferError,
    TransloadError,
    "A pull or a push failed: nothing touches its blocks any more. `kind` is a word for counters, such as \
     `refused`, `timed_out` or `unreachable`; `is_misfit` says that all between the two agents fail so, until one of them is started \
     otherwise."
);
create_exception!(transload, AgentError, TransloadError, "An agent could not be bound, or has stopped.");
create_exception!(transload, StoreError, TransloadError, "A store could not be opened, or failed.");
create_exception!(
    transload,
    ArchiveError,
    TransloadError,
    "Blocks could not be saved or restored, or their store failed; blocks that were to be restored hold nothing of use \
     then."
);

pub(crate) fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    module.add("TransloadError", py.get_type::<TransloadError>())?;
    module.add("DocumentError", py.get_type::<DocumentError>())?;
    module.add("PlanError", py.get_type::<PlanError>())?;
    module.add("CacheMemoryError", py.get_type::<CacheMemoryError>())?;
    module.add("CudaError", py.get_type::<CudaError>())?;
    module.add("IdentityError", py.get_type::<IdentityError>())?;
    module.add("TicketError", py.get_type::<TicketError>())?;
    module.add("LeaseError", py.get_type::<LeaseError>())?;
    let transfer = py.get_type::<TransferError>();
    transfer.setattr("kind", "other")?;
    transfer.setattr("is_misfit", false)?;
    module.add("TransferError", transfer)?;
    module.add("AgentError", py.get_type::<AgentError>())?;
    module.add("StoreError", py.get_type::<StoreError>())?;
    module.add("ArchiveError", py.get_type::<ArchiveError>())
}

/// Formats an error and its causes in one line, without causes that the text already contains.
pub(crate) fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let message = cause.to_string();
        if !text.contains(&message) {
            text.push_str(": ");
            text.push_str(&message);
        }
        source = cause.source();
    }
    text
}

/// Makes a closure for `map_err`: `plan.bind(..).map_err(raise!(PlanError))`.
macro_rules! raise {
    ($exception:ident) => {
        |error| $exception::new_err($crate::errors::chain(&error))
    };
}
pub(crate) use raise;
