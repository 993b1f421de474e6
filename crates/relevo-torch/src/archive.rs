//! Whether some bytes are a TorchScript archive: told before torch sees them, and without unpickling anything.

/// What a file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A TorchScript archive.
    TorchScript,
    /// What `torch.save` writes: a pickle in an archive, without code.
    Saved,
    /// A pickle.
    Pickle,
    /// A zip archive that ends too early, or whose table of contents cannot be read.
    Truncated,
    /// A zip archive of something else.
    OtherArchive,
    /// No bytes at all.
    Empty,
    /// Anything else.
    Other,
}

const LOCAL_HEADER: &[u8] = b"PK\x03\x04";
const ENTRY: &[u8] = b"PK\x01\x02";
const END: &[u8] = b"PK\x05\x06";
const END_SIZE: usize = 22;
const ENTRY_SIZE: usize = 46;
/// A comment, which may follow the end record, is no longer than this.
const LONGEST_COMMENT: usize = 0xFFFF;

/// How such files begin.
pub(crate) fn begins_like_one(bytes: &[u8]) -> bool {
    bytes.starts_with(LOCAL_HEADER)
}

pub(crate) fn kind(bytes: &[u8]) -> Kind {
    if bytes.is_empty() {
        return Kind::Empty;
    }
    if !begins_like_one(bytes) {
        // Protocols 2 to 5 begin so.
        return if matches!(bytes, [0x80, 2..=5, ..]) { Kind::Pickle } else { Kind::Other };
    }
    let Some(names) = names(bytes) else { return Kind::Truncated };
    // Everything lies in one folder, whose name is free.
    let inside =
        |wanted: &str| names.iter().any(|name| name.split_once('/').is_some_and(|(_, rest)| rest.starts_with(wanted)));
    match (inside("data.pkl"), inside("code/")) {
        (true, true) => Kind::TorchScript,
        (true, false) => Kind::Saved,
        _ => Kind::OtherArchive,
    }
}

impl Kind {
    /// Why a file of this kind cannot be loaded, and what to do.
    pub(crate) fn refusal(self) -> &'static str {
        match self {
            Self::TorchScript => "it is a TorchScript archive",
            Self::Saved => {
                "it was written by torch.save, so it is a pickle, which may run any code when it is read, and is not read; \
                 export the module by torch.jit.trace(module.eval(), example).save(\"policy.pt\")"
            }
            Self::Pickle => {
                "it is a pickle, which may run any code when it is read, and is not read; export the module by \
                 torch.jit.trace(module.eval(), example).save(\"policy.pt\")"
            }
            Self::Truncated => "it is an archive whose end is missing; copy or export it again",
            Self::OtherArchive => {
                "it is a zip archive, but not one of TorchScript (there is no data.pkl in it); export the module by \
                 torch.jit.trace(module.eval(), example).save(\"policy.pt\")"
            }
            Self::Empty => "the file is empty; copy or export it again",
            Self::Other => {
                "it is not a TorchScript archive; export the module by torch.jit.trace(module.eval(), \
                 example).save(\"policy.pt\")"
            }
        }
    }
}

/// The names in the table of contents; `None` where it is not whole.
fn names(bytes: &[u8]) -> Option<Vec<String>> {
    let earliest = bytes.len().saturating_sub(END_SIZE + LONGEST_COMMENT);
    let end = earliest + bytes[earliest..].windows(END.len()).rposition(|window| window == END)?;
    let end = bytes.get(end..end + END_SIZE)?;
    let (count, size) = (number(end, 10, 2)?, number(end, 12, 4)?);
    // The offset may be in the 64-bit record that lies between the table and the end; the table begins with its first
    // entry in either case.
    let start = match number(end, 16, 4)? {
        0xFFFF_FFFF => {
            let from = bytes.len().saturating_sub(size.checked_add(END_SIZE + 20 + 56 + LONGEST_COMMENT)?);
            from + bytes[from..].windows(ENTRY.len()).position(|window| window == ENTRY)?
        }
        start => start,
    };
    let mut names = Vec::new();
    let mut rest = bytes.get(start..)?;
    for _ in 0..count {
        if !rest.starts_with(ENTRY) {
            return None;
        }
        let (name, extra, comment) = (number(rest, 28, 2)?, number(rest, 30, 2)?, number(rest, 32, 2)?);
        names.push(String::from_utf8_lossy(rest.get(ENTRY_SIZE..ENTRY_SIZE + name)?).into_owned());
        rest = rest.get(ENTRY_SIZE + name + extra + comment..)?;
    }
    Some(names)
}

/// A little-endian number.
fn number(bytes: &[u8], at: usize, size: usize) -> Option<usize> {
    Some(bytes.get(at..at + size)?.iter().rev().fold(0, |number, byte| number << 8 | usize::from(*byte)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn archive(names: &[&str]) -> Vec<u8> {
        let mut bytes = LOCAL_HEADER.to_vec();
        let start = bytes.len();
        for name in names {
            let mut entry = [0; ENTRY_SIZE];
            entry[..4].copy_from_slice(ENTRY);
            entry[28] = name.len() as u8;
            bytes.extend(entry);
            bytes.extend(name.bytes());
        }
        let size = bytes.len() - start;
        let mut end = [0; END_SIZE];
        end[..4].copy_from_slice(END);
        (end[10], end[12], end[16]) = (names.len() as u8, size as u8, start as u8);
        bytes.extend(end);
        bytes
    }

    #[test]
    fn kinds() {
        assert_eq!(kind(b""), Kind::Empty);
        assert_eq!(kind(b"hello"), Kind::Other);
        assert_eq!(kind(b"\x80\x02}q\x00."), Kind::Pickle);
        assert_eq!(kind(&archive(&["m/data.pkl", "m/code/__torch__.py"])), Kind::TorchScript);
        assert_eq!(kind(&archive(&["m/data.pkl", "m/data/0"])), Kind::Saved);
        assert_eq!(kind(&archive(&["word/document.xml"])), Kind::OtherArchive);
        let whole = archive(&["m/data.pkl", "m/code/__torch__.py"]);
        for length in 4..whole.len() {
            assert_eq!(kind(&whole[..length]), Kind::Truncated, "{length}");
        }
    }
}
