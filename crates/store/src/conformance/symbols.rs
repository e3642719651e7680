//! The exported symbols of a library.

use std::path::Path;

use object::elf::{FileHeader32, FileHeader64};
use object::endian::Endianness;
use object::read::elf::{ElfFile, FileHeader};
use object::read::{FileKind, NameOrOrdinal, Object};

/// Names that linkers export by themselves.
const OF_THE_LINKER: [&str; 6] = ["_init", "_fini", "_edata", "_end", "__bss_start", "__data_start"];

pub(super) fn exports(path: &Path) -> Result<Vec<String>, String> {
    let file = std::fs::read(path).map_err(|error| error.to_string())?;
    match FileKind::parse(&*file) {
        Ok(FileKind::Elf64) => of_elf::<FileHeader64<Endianness>>(&file),
        Ok(FileKind::Elf32) => of_elf::<FileHeader32<Endianness>>(&file),
        _ => Err("only the exports of ELF files are read".into()),
    }
}

fn of_elf<H: FileHeader>(file: &[u8]) -> Result<Vec<String>, String> {
    let read = |error: object::read::Error| error.to_string();
    let file = ElfFile::<H>::parse(file).map_err(read)?;
    let mut names: Vec<String> = Vec::new();
    for export in file.exports().map_err(read)? {
        // ELF has only names. Ordinals exist on Windows.
        let export = export.map_err(read)?;
        let NameOrOrdinal::Name(name) = export.name() else {
            continue;
        };
        let name = String::from_utf8_lossy(name).into_owned();
        if !OF_THE_LINKER.contains(&name.as_str()) {
            names.push(name);
        }
    }
    names.sort_unstable();
    Ok(names)
}
