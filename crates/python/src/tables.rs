//! Block tables from Python.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use transload::transfer::{BlockTable, Tables};

/// Reads one table for each group: a sequence of block numbers, with -1 for an entry without a block; or `None`, for
/// which block i is entry i.
pub(crate) fn read(tables: &Bound<'_, PyAny>) -> PyResult<Tables> {
    let tables = tables.try_iter()?.enumerate().map(|(group, table)| {
        let table = table?;
        if table.is_none() {
            return Ok(BlockTable::Identity);
        }
        let blocks: Vec<i64> = table.extract()?;
        let blocks = blocks.into_iter().enumerate().map(|(entry, block)| match block {
            -1 => Ok(BlockTable::NONE),
            block => u32::try_from(block).ok().filter(|block| *block != BlockTable::NONE).ok_or_else(|| {
                PyValueError::new_err(format!(
                    "tables[{group}][{entry}] is {block}: a block number is 0 to 2**32 - 2, and -1 is none"
                ))
            }),
        });
        Ok(BlockTable::List(blocks.collect::<PyResult<_>>()?))
    });
    Ok(Tables(tables.collect::<PyResult<_>>()?))
}
