//! The fuzz check of KVC files.

use std::io::Cursor;

use transload_archive::kvc::{Draft, Head, KvcError, parse};

/// Checks that reading at once and piece by piece agree, and that a readable file survives being written and read.
pub(crate) fn check(data: &[u8]) {
    let whole = parse(data);
    let mut disk = Cursor::new(data);
    let head = Head::read(&mut disk).expect("memory can be read");
    assert_eq!(head.info(), whole.clone().map(|kvc| kvc.info));
    let kvc = match whole {
        Ok(kvc) => kvc,
        Err(error) => {
            assert!(KvcError::CODES.contains(&error.code()));
            assert!(!error.to_string().is_empty());
            return;
        }
    };
    let sum = kvc.info.sum_payload(&mut disk, |_| {}).expect("likewise");
    assert_eq!(kvc.info.check_payload(&sum), kvc.verify(None));
    let key = kvc.info.key();
    assert_eq!(kvc.info.check_key(&key), Ok(()));

    let draft = Draft::from(&kvc.info);
    let mut again = Vec::new();
    draft.write(kvc.payload, &mut again).expect("it fitted before");
    let again = parse(&again).expect("what is written is right");
    assert_eq!(Draft::from(&again.info), draft);
    assert_eq!(again.payload, kvc.payload);
    assert_eq!(again.verify(Some(&key)), Ok(()));
}
