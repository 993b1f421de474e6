//! The wire format of protobuf messages, as far as editing an ONNX file takes it.
//!
//! Decoding a file and encoding it again would lose every field that this crate does not know. So a file stays bytes: fields
//! are found in them, and a [`Patch`] exchanges some ranges for others. All else is copied as it is, once.

use std::ops::Range;

/// What is told of bytes that are no protobuf message.
pub(crate) const MALFORMED: &str = "the file is not laid out as an ONNX file is";

/// A field of a message. Ranges count from the start of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Field {
    /// The number that the schema gives it.
    pub(crate) number: u64,
    /// Tag, length and value.
    pub(crate) whole: Range<usize>,
    /// The value.
    pub(crate) body: Range<usize>,
    /// Where the value is a number of variable length: the number.
    pub(crate) value: Option<u64>,
    /// Where the value has a length written before it: that length's place.
    length: Option<Range<usize>>,
}

impl Field {
    /// Whether the value is bytes: text, packed numbers, or a message.
    pub(crate) fn has_length(&self) -> bool {
        self.length.is_some()
    }
}

/// The fields of the message that lies at `range`.
pub(crate) fn fields(bytes: &[u8], range: Range<usize>) -> Result<Vec<Field>, String> {
    let mut fields = Vec::new();
    let message = bytes.get(..range.end).ok_or(MALFORMED)?;
    let mut at = range.start;
    while at < range.end {
        let start = at;
        let tag = varint(message, &mut at)?;
        let (mut value, mut length) = (None, None);
        let begin = at;
        let body = match tag & 7 {
            0 => {
                value = Some(varint(message, &mut at)?);
                begin..at
            }
            1 => begin..begin + 8,
            2 => {
                let size = usize::try_from(varint(message, &mut at)?).map_err(|_| MALFORMED)?;
                length = Some(begin..at);
                at..at.checked_add(size).ok_or(MALFORMED)?
            }
            5 => begin..begin + 4,
            _ => return Err(MALFORMED.into()),
        };
        if body.end > range.end {
            return Err(MALFORMED.into());
        }
        at = body.end;
        fields.push(Field { number: tag >> 3, whole: start..at, body, value, length });
    }
    Ok(fields)
}

/// The fields with this number whose value is bytes.
pub(crate) fn messages(bytes: &[u8], range: Range<usize>, number: u64) -> Result<Vec<Field>, String> {
    let fields = fields(bytes, range)?.into_iter();
    Ok(fields.filter(|field| field.number == number && field.has_length()).collect())
}

/// The text in the last field with this number; empty where there is none, as protobuf has it.
pub(crate) fn text(bytes: &[u8], range: Range<usize>, number: u64) -> Result<&str, String> {
    match messages(bytes, range, number)?.last() {
        Some(field) => std::str::from_utf8(&bytes[field.body.clone()]).map_err(|_| MALFORMED.into()),
        None => Ok(""),
    }
}

/// The numbers in the fields with this number, packed or one by one.
pub(crate) fn numbers(bytes: &[u8], range: Range<usize>, number: u64) -> Result<Vec<i64>, String> {
    let mut numbers = Vec::new();
    for field in fields(bytes, range)?.into_iter().filter(|field| field.number == number) {
        if let Some(value) = field.value {
            numbers.push(value as i64);
            continue;
        }
        let packed = &bytes[..field.body.end];
        let mut at = field.body.start;
        while at < packed.len() {
            numbers.push(varint(packed, &mut at)? as i64);
        }
    }
    Ok(numbers)
}

/// A field of bytes, written.
pub(crate) fn message(number: u64, body: &[u8]) -> Vec<u8> {
    [&written(number << 3 | 2)[..], &written(body.len() as u64), body].concat()
}

/// A field that holds a number, written.
pub(crate) fn number(field: u64, value: u64) -> Vec<u8> {
    [written(field << 3), written(value)].concat()
}

/// A number of variable length, written.
pub(crate) fn written(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(10);
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}

/// Reads the number of variable length at `at`, which moves behind it.
fn varint(bytes: &[u8], at: &mut usize) -> Result<u64, String> {
    let mut value = 0_u64;
    for shift in (0..70).step_by(7) {
        let byte = *bytes.get(*at).ok_or(MALFORMED)?;
        *at += 1;
        // The tenth byte has room for one bit; protobuf's readers drop the others as well.
        value |= u64::from(byte & 0x7F).checked_shl(shift).unwrap_or(0);
        if byte < 0x80 {
            return Ok(value);
        }
    }
    Err(MALFORMED.into())
}

/// Exchanges of ranges of a file's bytes, all made at once at the end.
pub(crate) struct Patch<'a> {
    bytes: &'a [u8],
    splices: Vec<(Range<usize>, Vec<u8>)>,
    /// By how many bytes the splices make the file longer.
    growth: i64,
}

impl<'a> Patch<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, splices: Vec::new(), growth: 0 }
    }

    /// Exchanges a range, which must not overlap with another that is exchanged. Within a message that has a length, call this
    /// inside [`Patch::inside`] for it.
    pub(crate) fn replace(&mut self, range: Range<usize>, with: Vec<u8>) {
        self.growth += with.len() as i64 - range.len() as i64;
        self.splices.push((range, with));
    }

    /// Makes edits within a field's body, and corrects the length before it.
    pub(crate) fn inside(
        &mut self,
        field: &Field,
        edit: impl FnOnce(&mut Self) -> Result<(), String>,
    ) -> Result<(), String> {
        let before = self.growth;
        edit(self)?;
        let grown = self.growth - before;
        if grown != 0
            && let Some(length) = field.length.clone()
        {
            self.replace(length, written((field.body.len() as i64 + grown) as u64));
        }
        Ok(())
    }

    /// The edited file.
    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.splices.sort_by_key(|(range, _)| (range.start, range.end));
        let mut edited = Vec::with_capacity((self.bytes.len() as i64 + self.growth) as usize);
        let mut at = 0;
        for (range, with) in self.splices {
            edited.extend_from_slice(&self.bytes[at..range.start]);
            edited.extend_from_slice(&with);
            at = range.end;
        }
        edited.extend_from_slice(&self.bytes[at..]);
        edited
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_follow_an_edit_deep_inside() {
        let inner = message(3, &[7; 120]);
        let middle = [number(9, 5), message(2, &inner)].concat();
        let file = [message(1, &middle), number(4, 300)].concat();
        let outer = &fields(&file, 0..file.len()).unwrap()[0];
        let middle = &messages(&file, outer.body.clone(), 2).unwrap()[0];
        let inner = &messages(&file, middle.body.clone(), 3).unwrap()[0];
        let mut patch = Patch::new(&file);
        patch
            .inside(outer, |patch| {
                patch.inside(middle, |patch| {
                    patch.inside(inner, |patch| {
                        patch.replace(inner.body.end..inner.body.end, vec![8; 40]);
                        Ok(())
                    })
                })
            })
            .unwrap();
        let expected = message(3, &[vec![7; 120], vec![8; 40]].concat());
        let expected = [number(9, 5), message(2, &expected)].concat();
        assert_eq!(patch.finish(), [message(1, &expected), number(4, 300)].concat());
    }

    #[test]
    fn numbers_are_read_packed_and_one_by_one() {
        let minus_one = u64::MAX;
        let packed = message(7, &[written(minus_one), written(300)].concat());
        let file = [packed, number(7, 5), number(8, 6)].concat();
        assert_eq!(numbers(&file, 0..file.len(), 7).unwrap(), [-1, 300, 5]);
    }

    #[test]
    fn what_is_cut_short_is_told() {
        let file = message(1, b"abc");
        for length in 1..file.len() {
            assert!(fields(&file[..length], 0..length).is_err(), "{length}");
        }
        assert!(fields(&[0xFF; 11], 0..11).is_err());
        assert!(fields(&file, 0..file.len() + 1).is_err());
    }
}
