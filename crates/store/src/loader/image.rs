//! Checks of a library file before the system's loader opens it. The loader's error for a wrong file is "invalid ELF
//! header", and a truncated file may crash the process with SIGBUS.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use object::elf;
use object::endian::Endianness;
use object::read::ReadCache;
use object::read::elf::{FileHeader, ProgramHeader};

use super::error::{ImageFault, LoadError};

pub(super) fn check(path: &Path) -> Result<(), LoadError> {
    let unreadable = |source| LoadError::Io { path: path.to_owned(), source };
    let wrong = |fault| LoadError::Image { path: path.to_owned(), fault };
    // Check this first: opening a pipe would wait for its writer.
    if !path.metadata().map_err(unreadable)?.is_file() {
        return Err(wrong(ImageFault::NotAFile));
    }
    let mut file = File::open(path).map_err(unreadable)?;
    let start = first_bytes(&mut file).map_err(unreadable)?;
    if cfg!(target_vendor = "apple") {
        return match format_of(&start) {
            "a Mach-O file" => Ok(()),
            found => Err(wrong(format(found))),
        };
    }
    let cache = ReadCache::new(file);
    match start.get(..5) {
        Some([0x7f, b'E', b'L', b'F', class]) if *class == elf::ELFCLASS32.0 => {
            headers::<elf::FileHeader32<Endianness>>(&cache)
        }
        Some([0x7f, b'E', b'L', b'F', _]) => headers::<elf::FileHeader64<Endianness>>(&cache),
        _ => Err(format(format_of(&start))),
    }
    .map_err(wrong)
}

fn first_bytes(file: &mut File) -> io::Result<Vec<u8>> {
    let mut start = Vec::new();
    file.take(64).read_to_end(&mut start)?;
    Ok(start)
}

fn format(found: &'static str) -> ImageFault {
    ImageFault::Format { expected: if cfg!(target_vendor = "apple") { "a Mach-O file" } else { "an ELF file" }, found }
}

fn format_of(start: &[u8]) -> &'static str {
    match start {
        [] => "empty",
        [0x7f, b'E', b'L', b'F', ..] => "an ELF file",
        [0xfe, 0xed, 0xfa, 0xce | 0xcf, ..] | [0xce | 0xcf, 0xfa, 0xed, 0xfe, ..] | [0xca, 0xfe, 0xba, 0xbe, ..] => {
            "a Mach-O file"
        }
        [b'M', b'Z', ..] => "a Windows library",
        [b'!', b'<', b'a', b'r', b'c', b'h', b'>', ..] => "a static library",
        _ if start.iter().all(|byte| byte.is_ascii_graphic() || byte.is_ascii_whitespace()) => "a text",
        _ => "something else",
    }
}

/// Checks the machine, the kind, and that the file contains every segment that would be mapped.
fn headers<H: FileHeader<Endian = Endianness>>(cache: &ReadCache<File>) -> Result<(), ImageFault> {
    let damaged = |error: object::read::Error| ImageFault::Damaged { how: error.to_string() };
    let header = H::parse(cache).map_err(damaged)?;
    let endian = header.endian().map_err(damaged)?;
    let found = Machine {
        number: header.e_machine(endian).0,
        bits: if header.is_type_64() { 64 } else { 32 },
        little: endian == Endianness::Little,
    };
    if let Some(own) = Machine::own()
        && own != found
    {
        return Err(ImageFault::Machine { expected: own.to_string(), found: found.to_string() });
    }
    match header.e_type(endian) {
        elf::ET_DYN => {}
        elf::ET_REL => {
            return Err(ImageFault::Kind { found: "an object file" });
        }
        elf::ET_EXEC => return Err(ImageFault::Kind { found: "a program" }),
        elf::ET_CORE => {
            return Err(ImageFault::Kind { found: "a core dump" });
        }
        _ => {
            return Err(ImageFault::Kind { found: "something else" });
        }
    }
    let len = object::read::ReadRef::len(cache)
        .map_err(|()| ImageFault::Damaged { how: "its length cannot be read".into() })?;
    for segment in header.program_headers(endian, cache).map_err(damaged)? {
        let (from, bytes): (u64, u64) = (segment.p_offset(endian).into(), segment.p_filesz(endian).into());
        if segment.p_type(endian) == elf::PT_LOAD && from.checked_add(bytes).is_none_or(|end| end > len) {
            return Err(ImageFault::Damaged {
                how: format!("it is cut short at {len} bytes, before its segment of {bytes} at {from} ends"),
            });
        }
    }
    Ok(())
}

#[derive(PartialEq, Eq)]
struct Machine {
    number: u16,
    bits: u8,
    little: bool,
}

impl Machine {
    /// Returns the machine of this process, if it is one that this project is built for.
    fn own() -> Option<Self> {
        let number = if cfg!(target_arch = "x86_64") {
            elf::EM_X86_64
        } else if cfg!(target_arch = "aarch64") {
            elf::EM_AARCH64
        } else {
            return None;
        };
        Some(Self {
            number: number.0,
            bits: if cfg!(target_pointer_width = "64") { 64 } else { 32 },
            little: cfg!(target_endian = "little"),
        })
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match elf::Machine(self.number) {
            elf::EM_386 => write!(f, "x86")?,
            elf::EM_X86_64 => write!(f, "x86-64")?,
            elf::EM_ARM => write!(f, "ARM")?,
            elf::EM_AARCH64 => write!(f, "AArch64")?,
            elf::EM_RISCV => write!(f, "RISC-V")?,
            elf::EM_PPC64 => write!(f, "POWER")?,
            elf::EM_S390 => write!(f, "IBM Z")?,
            elf::EM_LOONGARCH => write!(f, "LoongArch")?,
            elf::Machine(number) => write!(f, "ELF machine {number}")?,
        }
        let order = if self.little { "little" } else { "big" };
        write!(f, " ({} bits, {order}-endian)", self.bits)
    }
}
