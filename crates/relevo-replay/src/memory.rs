//! Whether there is the memory that a buffer takes.

use crate::{
    error::{Error, Result},
    ring::Ring,
    sampler::Sampler,
    schema::{Schema, WORD},
};

/// Bytes that a prioritized sampler takes for each step: priorities, masses and owners, with the trees over them.
const PRIORITIZED: usize = 40;

/// Refuses a buffer that the machine has not the memory for.
pub(crate) fn check(capacity: usize, schema: &Schema, sampler: Sampler) -> Result<()> {
    let sampler = match sampler {
        Sampler::Uniform => 0,
        Sampler::Prioritized(_) => PRIORITIZED,
    };
    let steps = Ring::words(capacity, schema.words()).and_then(|words| words.checked_mul(WORD));
    let needed = steps.and_then(|bytes| bytes.checked_add(capacity.checked_mul(sampler)?));
    let there = available();
    match needed {
        Some(needed) if there.is_none_or(|there| needed <= there) => Ok(()),
        needed => {
            let needed = needed.map_or_else(|| "more bytes than can be counted".into(), gigabytes);
            let there = there.map_or_else(|| "fewer".into(), gigabytes);
            Err(Error::Memory(format!(
                "a capacity of {capacity} steps takes {needed} of memory, and {there} are free; make it smaller, or keep the steps \
                 in files"
            )))
        }
    }
}

fn gigabytes(bytes: usize) -> String {
    format!("{:.1} GB", bytes as f64 / 1e9)
}

/// Bytes that the system could give, where it tells.
fn available() -> Option<usize> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kilobytes: usize = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kilobytes * 1024)
}
