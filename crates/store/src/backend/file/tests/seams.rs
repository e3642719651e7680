//! Two handles, one of which sees the other one's work half done.

use super::super::disk::{Disk, File, How};
use super::script::new_store;

#[test]
fn no_more_is_allocated_than_a_file_holds() {
    let disk = new_store();
    let file: Box<dyn File> = disk.open("tmp/x", How::Create).unwrap();
    file.write_all_at(b"0123456789", 0).unwrap();
    assert_eq!(file.read_vec_at(4, 6).unwrap(), b"6789");
    for (len, offset) in [(5, 6), (u64::MAX, 0), (u64::MAX, 1), (1 << 62, 0), (0, 11)] {
        let error = file.read_vec_at(len, offset).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::UnexpectedEof, "{len}");
    }
}
