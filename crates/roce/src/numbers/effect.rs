//! Names that any process can put into the system's list of sockets, and the processes that they lead to.

use super::*;

/// Any list: a few names for each block, each of them a name of this block's.
pub(crate) fn try_list(bytes: &[u8]) {
    let prefix = String::from_utf8(block_name(0)[1..].to_vec()).expect("it is text");
    let prefix = &prefix[..prefix.len() - 3];
    let mut text = b"Num       RefCount Protocol Flags    Type St Inode Path\n".to_vec();
    for part in bytes.split(|byte| *byte == 0) {
        let Some((first, rest)) = part.split_first() else { continue };
        if first & 1 == 0 {
            text.extend_from_slice(b"0000000000000000: 00000002 00000000 00010000 0005 01 12345 @");
            text.extend_from_slice(prefix.as_bytes());
        }
        text.extend_from_slice(rest);
        text.push(b'\n');
    }
    let found = listed(&text);
    assert!(found.len() <= text.len());
    for (block, names) in found {
        assert!(u64::from(block) < BLOCKS && !names.is_empty() && names.len() <= MOST_BESIDE);
        let (own, is_one) =
            (block_name(block), |name: &Vec<u8>| text.windows(name.len() - 1).any(|it| it == &name[1..]));
        for (index, name) in names.iter().enumerate() {
            assert!(name.starts_with(&own) && name[own.len()] == b'/' && is_one(name), "{block:x}: {name:?}");
            assert!(!names[..index].contains(name));
        }
    }
}
