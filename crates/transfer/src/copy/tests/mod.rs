//! Every kernel, byte by byte, against an oracle that knows nothing of any of them.

mod between;
mod case;
mod oracle;
mod stream;
